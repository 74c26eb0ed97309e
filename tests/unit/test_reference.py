"""The reference cache: computed once per content, checked on a sample, rebuilt when damaged."""

import logging
import threading
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from rcray.config.data import DataConfig
from rcray.config.model import ModelConfig
from rcray.data.batch import collate
from rcray.data.pairs import load_pairs
from rcray.models import inference, reference
from rcray.models.capabilities import capabilities_of
from rcray.models.forward import body_of
from rcray.models.likelihood import side_logps
from rcray.models.load import LoadedModel, load_model
from rcray.models.precision import Precision
from rcray.models.reference import reference_logps
from tests.small_runs import encode_pairs

CPU = torch.device("cpu")


@dataclass
class Counted:
    """Counts the rows a model is asked for."""

    rows: int = 0

    def __call__(self, _module, args, kwargs):
        self.rows += len(args[0] if args else kwargs["input_ids"])


@pytest.fixture
def counted(neox):
    allowed = capabilities_of(neox.model)
    assert allowed.plain_head and allowed.packs_rows  # tried once, by forwards of their own
    count = Counted()
    handle = body_of(neox.model).register_forward_pre_hook(count, with_kwargs=True)
    yield count
    handle.remove()


@pytest.fixture
def data(neox):
    return pairs_of(neox, 20)


def pairs_of(loaded, count, **lengths):
    config = DataConfig(train_pairs=count, **lengths)
    return encode_pairs(load_pairs(config).train, loaded.tokenizer, config)


def files(cache):
    return sorted((cache / "reference").glob("*.parquet"))


def same(a, b):
    return all(torch.equal(getattr(a, name), getattr(b, name)) for name in ("sum_w", "sum_l", "n_w", "n_l"))


def test_values_are_the_models(neox, data, tmp_path):
    logps = reference_logps(neox, data, tmp_path, CPU)
    with torch.no_grad():
        for i in (0, 7, 19):
            batch = collate(data.pairs, [i])
            chosen, rejected = side_logps(neox.model, batch.chosen), side_logps(neox.model, batch.rejected)
            assert logps.sum_w[i].item() == pytest.approx(chosen.sums.item(), abs=1e-4)
            assert logps.sum_l[i].item() == pytest.approx(rejected.sums.item(), abs=1e-4)
    assert logps.n_w.tolist() == [len(pair.chosen) for pair in data.pairs]
    assert logps.n_l.tolist() == [len(pair.rejected) for pair in data.pairs]


def test_the_second_call_reads_the_file_and_runs_only_the_sample(neox, data, tmp_path, counted):
    first = reference_logps(neox, data, tmp_path, CPU)
    assert len(data.pairs) <= counted.rows <= 2 * len(data.pairs), "one row for both answers, or one for each"
    counted.rows = 0
    second = reference_logps(neox, data, tmp_path, CPU)
    assert reference._SAMPLE <= counted.rows <= 2 * reference._SAMPLE, "the sample, nothing else"
    assert same(first, second)
    assert len(files(tmp_path)) == 1


def test_it_leaves_the_model_as_it_was(neox, data, tmp_path):
    neox.model.train()
    logps = reference_logps(neox, data, tmp_path, CPU)
    assert neox.model.training
    assert all(parameter.grad is None for parameter in neox.model.parameters())
    assert not logps.sum_w.requires_grad


def truncate(path):
    path.write_bytes(path.read_bytes()[:-40])


def empty(path):
    path.write_bytes(b"")


def lose_a_row(path):
    pq.write_table(pq.read_table(path).slice(1), path)


def lose_a_column(path):
    pq.write_table(pq.read_table(path).drop_columns(["n_w"]), path)


def shift(path):
    table = pq.read_table(path)
    wrong = pa.array([value + 1.0 for value in table["sum_l"].to_pylist()])
    pq.write_table(table.set_column(table.schema.get_field_index("sum_l"), "sum_l", wrong), path)


def poison(path):
    table = pq.read_table(path)
    wrong = pa.array([float("nan")] * table.num_rows)
    pq.write_table(table.set_column(table.schema.get_field_index("sum_w"), "sum_w", wrong), path)


@pytest.mark.parametrize("damage", [truncate, empty, lose_a_row, lose_a_column, shift, poison])
def test_a_damaged_file_is_rebuilt_with_a_warning(neox, data, tmp_path, caplog, damage):
    first = reference_logps(neox, data, tmp_path, CPU)
    (path,) = files(tmp_path)
    damage(path)
    with caplog.at_level(logging.WARNING):
        second = reference_logps(neox, data, tmp_path, CPU)
    assert "building it again" in caplog.text
    assert path.name in caplog.text
    assert same(first, second)
    caplog.clear()
    reference_logps(neox, data, tmp_path, CPU)
    assert caplog.text == "", "the file is sound again"


def off_by(path, shares):
    """Moves the chosen sums of the sample that is checked, by these shares of what a bfloat16 run is allowed."""
    table = pq.read_table(path)
    sums, tokens = (table[name].to_numpy().copy() for name in ("sum_w", "n_w"))
    sample = list(range(0, len(sums), len(sums) // reference._SAMPLE))[: reference._SAMPLE]
    for row, share in zip(sample, shares, strict=True):
        sums[row] += share * Precision(torch.bfloat16).tolerance(torch.tensor(float(tokens[row]))).item()
    pq.write_table(table.set_column(table.schema.get_field_index("sum_w"), "sum_w", pa.array(sums)), path)


@pytest.fixture
def in_bfloat16(neox):
    """A model whose weights are exact, and which is held to what bfloat16 allows."""
    before = capabilities_of(neox.model).precision
    capabilities_of(neox.model).precision = Precision(torch.bfloat16)
    yield neox
    capabilities_of(neox.model).precision = before


def test_the_sample_is_judged_as_a_whole(in_bfloat16, data, tmp_path, caplog):
    """One sum in thirty is further off than one is allowed, on a real model: a start must not cost a reference."""
    reference_logps(in_bfloat16, data, tmp_path, CPU)
    (path,) = files(tmp_path)
    off_by(path, (1.5, 0.5, -0.5, 0.0))
    reference_logps(in_bfloat16, data, tmp_path, CPU)
    assert caplog.text == "" and files(tmp_path) == [path]
    off_by(path, (2.0, 2.0, -2.0, 2.0))
    reference_logps(in_bfloat16, data, tmp_path, CPU)
    assert "nats off a live forward" in caplog.text and "torch.bfloat16 allows" in caplog.text


def test_what_disagrees_is_said_and_kept(neox, data, tmp_path, caplog):
    reference_logps(neox, data, tmp_path, CPU)
    (path,) = files(tmp_path)
    kept = []
    for _ in range(2):
        shift(path)
        kept.append(path.read_bytes())
        reference_logps(neox, data, tmp_path, CPU)
    aside = sorted(path.parent.glob("*.disagrees*"))
    assert sorted(file.read_bytes() for file in aside) == sorted(kept), "each of them, whatever came before"
    assert all(file.name in caplog.text for file in aside)


def test_another_process_may_put_it_aside_first(neox, data, tmp_path, monkeypatch):
    expected = reference_logps(neox, data, tmp_path, CPU)
    (path,) = files(tmp_path)
    shift(path)
    compare = reference._disagreement

    def compared(*args):
        found = compare(*args)
        path.unlink()
        return found

    monkeypatch.setattr(reference, "_disagreement", compared)
    assert torch.equal(reference_logps(neox, data, tmp_path, CPU).sum_w, expected.sum_w)


def test_a_failed_build_publishes_nothing(neox, data, tmp_path, monkeypatch):
    def fail(*_args, **_kwargs):
        raise RuntimeError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(reference, "pair_sums", fail)
        with pytest.raises(RuntimeError, match="no memory"):
            reference_logps(neox, data, tmp_path, CPU)
    assert files(tmp_path) == []
    reference_logps(neox, data, tmp_path, CPU)  # the lock was given back
    assert len(files(tmp_path)) == 1


def test_the_key_shows_weights_lengths_and_rows(neox, data, tmp_path):
    reference_logps(neox, data, tmp_path, CPU)
    reference_logps(neox, pairs_of(neox, 19), tmp_path, CPU)
    assert len(files(tmp_path)) == 2
    shortened = pairs_of(neox, 20, max_length=20, max_prompt_length=8)
    assert shortened.report.rows("truncated")
    reference_logps(neox, shortened, tmp_path, CPU)
    assert len(files(tmp_path)) == 3
    with torch.no_grad():
        neox.model.get_output_embeddings().weight[0, 0] += 1e-3
    changed = LoadedModel(neox.model, neox.tokenizer)
    reference_logps(changed, data, tmp_path, CPU)
    assert len(files(tmp_path)) == 4


def test_two_at_once_build_one_file(neox, data, tmp_path, monkeypatch):
    """The second waits for the first and reads what it wrote."""
    builds = []
    whole = reference._forward

    def noted(loaded, encoded, index, device, **said):
        if len(index) == len(encoded.pairs):
            builds.append(threading.get_ident())
        return whole(loaded, encoded, index, device, **said)

    monkeypatch.setattr(reference, "_forward", noted)
    logps, gate = [], threading.Barrier(2)

    def work():
        gate.wait()
        logps.append(reference_logps(neox, data, tmp_path, CPU))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(builds) == 1
    assert len(logps) == 2 and same(*logps)
    assert len(files(tmp_path)) == 1
    assert [p.name for p in (tmp_path / "reference").iterdir() if p.name.startswith(".")] == [], "no temporary left"


def test_more_pairs_than_one_batch(neox, data, tmp_path, monkeypatch):
    whole = reference_logps(neox, data, tmp_path / "a", CPU)
    monkeypatch.setitem(inference.TOKENS, "cpu", 100)
    parts = reference_logps(neox, data, tmp_path / "b", CPU)
    torch.testing.assert_close(parts.sum_w, whole.sum_w, rtol=0, atol=1e-4)
    assert torch.equal(parts.n_l, whole.n_l)


# -- models with an adapter


@pytest.mark.parametrize("method", ["lora", "qlora"])
def test_of_a_trained_adapter_it_is_the_model_it_started_from(model_cache, data, tmp_path, method):
    config = ModelConfig(name="tiny-neox", method=method)
    before = load_model(config, model_cache)
    fresh = reference_logps(before, data, tmp_path / "fresh", CPU)
    after = load_model(config, model_cache)
    with torch.no_grad():
        for name, parameter in after.model.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.1)
    moved = reference_logps(after, data, tmp_path / "moved", CPU)
    assert same(fresh, moved)
    assert [path.name for path in files(tmp_path / "fresh")] == [path.name for path in files(tmp_path / "moved")]
    with torch.no_grad():
        batch = collate(data.pairs, range(4))
        assert (side_logps(after.model, batch.chosen).sums - moved.sum_w[:4]).abs().min() > 0.1, "it is on again"
    assert all(p.requires_grad for name, p in after.model.named_parameters() if "lora_" in name)


def test_full_and_lora_runs_share_one_file(neox, model_cache, data, tmp_path):
    reference_logps(neox, data, tmp_path, CPU)
    reference_logps(load_model(ModelConfig(name="tiny-neox", method="lora"), model_cache), data, tmp_path, CPU)
    assert len(files(tmp_path)) == 1
    reference_logps(load_model(ModelConfig(name="tiny-neox", method="qlora"), model_cache), data, tmp_path, CPU)
    assert len(files(tmp_path)) == 2


def test_processes_divide_the_shards_and_a_killed_ones_work_stays(neox, data, tmp_path, monkeypatch):
    monkeypatch.setattr(reference, "SHARD", 6)  # 20 pairs: three whole shards and a short one
    expected = reference_logps(neox, data, tmp_path / "whole", CPU)
    forward, rows = reference._forward, []

    def dies_on_the_third(loaded, encoded, index, device, **said):
        if len(rows) == 2:
            raise KeyboardInterrupt
        rows.append(index)
        return forward(loaded, encoded, index, device, **said)

    monkeypatch.setattr(reference, "_forward", dies_on_the_third)
    with pytest.raises(KeyboardInterrupt):
        reference_logps(neox, data, tmp_path / "shared", CPU)

    again, gate = [], threading.Barrier(2)

    def counts(loaded, encoded, index, device, **said):
        again.append(index)
        return forward(loaded, encoded, index, device, **said)

    monkeypatch.setattr(reference, "_forward", counts)
    waits = []

    def work():
        gate.wait()
        waits.append(reference_logps(neox, data, tmp_path / "shared", CPU))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done = sorted(row for shard in rows + again for row in shard)
    assert done == list(range(20)), "every pair once, the finished ones not again"
    assert len(waits) == 2
    assert same(waits[0], expected) and same(waits[1], expected)
    assert not list((tmp_path / "shared" / "reference").glob("*.shards"))


def test_long_pairs_come_in_smaller_shards_and_progress_moves_inside_them(neox, data, tmp_path, monkeypatch):
    sizes = data.lengths @ (2, 1, 1)
    order = inference.length_order(data.lengths).tolist()
    whole = reference_logps(neox, data, tmp_path / "whole", CPU)
    assert reference._cut(data.lengths, 10**6) == [order], "few tokens: one shard of at most so many pairs"
    room = 4 * int(sizes.max())
    shards = reference._cut(data.lengths, room)
    assert [i for shard in shards for i in shard] == order and len(shards) > 2
    assert all(sizes[shard].sum() <= room for shard in shards)
    assert all(len(shard) == 1 for shard in reference._cut(data.lengths, 1)), "a longer pair goes alone"
    said = []
    monkeypatch.setattr(reference, "report", lambda phase, done, total: said.append((phase, done, total)))
    monkeypatch.setitem(inference.TOKENS, "cpu", 2 * int(sizes.max()))
    logps = reference_logps(neox, data, tmp_path / "parts", CPU)
    torch.testing.assert_close(logps.sum_w, whole.sum_w, rtol=0, atol=1e-4)
    done = [at for _, at, _ in said]
    assert done == sorted(done) and done[0] == 0 and done[-1] == 20 and len(set(done)) > 6
    assert {(phase, total) for phase, _, total in said} == {("reference", 20)}
