"""Unpaired rows, {prompt, completion, label}: read, paired up, encoded, trained on; else refused."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from rcray.config import run_id
from rcray.config.data import DataConfig
from rcray.config.objectives import BY_NAME
from rcray.data.dialogue import Answer, Pair, Skipped, Turn
from rcray.data.encode import Rendering, whole_pair
from rcray.data.encoded import EncodeReport
from rcray.data.pairs import check_pairs, load_pairs
from rcray.data.prepare import prepare_data
from rcray.data.schedule import Schedule
from rcray.data.survey import survey
from rcray.data.unpaired import pair_up
from rcray.errors import DataError
from rcray.models.load import load_model
from rcray.objectives import objective
from rcray.objectives.base import incentives
from rcray.train.launch import launch
from tests.math.linear_pairs import random_pairs
from tests.small_runs import encode_pairs, records, small_config

WORDS = ["map", "sun", "red", "dog", "cat", "blue", "tree", "one", "two"]


def row(i, label, **changes):
    prompt, answer = WORDS[i % 9], f"{WORDS[(i + 1) % 9]} {WORDS[(i + 4) % 9]}"
    return {"prompt": f"{prompt} {i}", "completion": answer, "label": label, **changes}


@pytest.fixture
def file(tmp_path):
    """Two wanted answers to every unwanted one."""

    def write(rows):
        path = tmp_path / "rows.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in rows))
        return path

    write.usual = lambda: write([row(i, i % 3 != 0) for i in range(90)])
    return write


def data_of(path, **fields):
    return DataConfig(name=str(path), format="unpaired", eval_pairs=4, **fields)


def answers(*labels):
    return [Answer(f"r{i}", (Turn("user", f"p{i}"),), f"a{i}", label) for i, label in enumerate(labels)]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ("wl", ["r0 + r1"]),
        ("wwl", ["r0 + r2", "r1 + r2"]),
        ("lwlll", ["r1 + r0", "r1 + r2", "r1 + r3", "r1 + r4"]),
        ("wlwlwww", ["r0 + r1", "r2 + r3", "r4 + r1", "r5 + r3", "r6 + r1"]),
    ],
)
def test_the_rarer_label_comes_again_until_the_other_is_used_up(labels, expected):
    pairs = list(pair_up(answers(*(label == "w" for label in labels))))
    assert [pair.row for pair in pairs] == expected
    first = pairs[0]
    assert first.prompt_l != first.prompt and first.chosen != first.rejected


def test_rows_left_out_are_named_once_and_a_missing_label_is_refused():
    bad = Skipped("r9", "dropped empty", "the answer is empty")
    items = list(pair_up([bad, *answers(True, True, True, False), bad]))
    assert [item for item in items if isinstance(item, Skipped)] == [bad, bad]
    assert sum(isinstance(item, Pair) for item in items) == 3
    with pytest.raises(DataError, match=r"no usable row is unwanted \(label: false\)"):
        list(pair_up(answers(True, True)))


@given(
    counts=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    batch_size=st.integers(1, 12),
    seed=st.integers(0, 3),
    bucketing=st.booleans(),
)
def test_in_an_epoch_every_row_counts_in_one_step_and_there_once(counts, batch_size, seed, bucketing):
    pairs, steps_of_rows = max(counts), [{}, {}]
    behind = np.array([(i % counts[0], i % counts[1]) for i in range(pairs)])
    sizes = np.arange(pairs) * 7 % 11 if bucketing else None
    schedule = Schedule(pairs, batch_size, batch_size, epochs=2, seed=seed, sizes=sizes, behind=behind)
    last = range(schedule.steps_per_epoch, schedule.total_steps)
    for step in last:
        weights = schedule.weights(step)
        for rows in schedule.micro_batches(step):
            for i in rows:
                for side, row in enumerate(behind[i]):
                    counted = steps_of_rows[side].setdefault(int(row), {})
                    counted[step] = counted.get(step, 0) + weights[i, side]
    for side in steps_of_rows:
        for counted in side.values():
            assert sorted(round(weight, 9) for weight in counted.values())[-1] == 1
            assert sum(counted.values()) == pytest.approx(1)
    if last and pairs % batch_size == 0:
        assert tuple(map(len, steps_of_rows)) == counts


def test_pairs_that_share_a_row_stay_together():
    """So that all but two rows of a step have all their pairs in it, and the labels are mixed alike in every step."""
    behind = np.array([(i, i % 30) for i in range(120)])
    schedule = Schedule(120, 16, 4, epochs=1, seed=2, behind=behind)
    counted = []
    for step in range(schedule.total_steps):
        rows = [i for part in schedule.micro_batches(step) for i in part]
        counted.append(schedule.weights(step)[rows].sum(0))
    assert all(wanted == 16 and 3 <= unwanted <= 5 for wanted, unwanted in counted)


def test_a_file_is_split_by_rows_and_paired_within_each_part(file):
    config = data_of(file.usual())
    check_pairs(config)
    splits = load_pairs(config)
    train, held_out = ([p for p in part if isinstance(p, Pair)] for part in (splits.train, splits.held_out))
    assert len(held_out) == 4
    trained, kept = ({name for pair in part for name in pair.rows} for part in (train, held_out))
    assert not trained & kept and len(kept) == 8 and len(trained) == 82
    assert len(train) == 60 - 4  # as many as there are wanted answers
    again = [pair.row for pair in load_pairs(config).train if isinstance(pair, Pair)]
    assert again == [pair.row for pair in train]
    drawn = [p for p in load_pairs(data_of(file.usual(), train_pairs=10)).train if isinstance(p, Pair)][:10]
    assert len({pair.row for pair in drawn}) == 10
    assert survey(config, small_config().model).train == pytest.approx(len(train), abs=3)


BAD_ROWS = {
    "a label that is none": (row(1, "yes"), "dropped no label", "'label' is neither true nor false: 'yes'"),
    "a score for a label": (row(1, 0.5), "dropped no label", "0.5"),
    "no label": (row(1, None), "dropped null", "'label' is null"),
    "an empty answer": (row(1, True, completion=" "), "dropped empty", "the answer is empty"),
    "two turns": (
        row(1, True, completion=[{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]),
        "dropped no answer", "not one assistant turn",
    ),
    "no text": (row(1, True, completion=3), "dropped not text", "'completion'"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_ROWS)
def test_a_bad_row_is_left_out_by_name_and_its_partner_is_not(file, name):
    line, kind, reason = BAD_ROWS[name]
    path = file([line, *(row(i, i % 2 == 0) for i in range(2, 40))])
    items = list(load_pairs(data_of(path)).train)
    (skipped,) = [item for item in items if isinstance(item, Skipped) and item.kind == kind]
    assert reason in skipped.reason and "rows.jsonl:1" in skipped.row
    with pytest.raises(DataError, match=r"rows\.jsonl:1"):
        check_pairs(data_of(path, bad_rows="fail"))


def test_labels_and_answers_as_files_write_them(tmp_path):
    path = tmp_path / "rows.csv"
    lines = [f"what is {i},word {i},{label}" for i, label in enumerate(["True", "0", "false", "1"] * 10)]
    path.write_text("\n".join(["prompt,completion,label", *lines]))
    pairs = [item for item in load_pairs(data_of(path)).train if isinstance(item, Pair)]
    assert pairs and all(int(p.chosen.split()[1]) % 4 in (0, 3) for p in pairs)


def test_pairs_without_their_columns_are_told_of_the_format(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("prompt,completion,label\na,b,True\n")
    with pytest.raises(DataError, match="no column 'chosen'") as caught:
        check_pairs(DataConfig(name=str(path)))
    assert "data.format: unpaired" in caught.value.fix
    lines = tmp_path / "rows.jsonl"  # where only a row can tell its columns
    lines.write_text(json.dumps(row(1, True)) + "\n")
    (skipped,) = load_pairs(DataConfig(name=str(lines), eval_split=None)).train
    assert "data.format: unpaired" in skipped.reason


def test_two_prompts_survive_encoding_and_the_cache(file, store):
    loaded = load_model(small_config().model, store.cache)
    config = data_of(file.usual())
    prepared = prepare_data(config, loaded.tokenizer, store.cache)
    in_memory = encode_pairs(load_pairs(config).train, loaded.tokenizer, config)
    assert list(prepared.train.pairs) == list(in_memory.pairs)
    assert prepared.train.fingerprint() == in_memory.fingerprint()
    assert (prepared.train.lengths == in_memory.lengths).all()
    pair = prepared.train.pairs[0]
    assert pair.prompt != pair.prompt_l
    for prompt, answer in ((pair.prompt, pair.chosen), pair.rejected_row):
        alone = loaded.tokenizer.decode(prompt + answer)
        assert any(
            line["prompt"] in alone and line["completion"] in alone for line in (row(i, True) for i in range(90))
        )
    sums = prepared.train.lengths @ (2, 1, 1)
    assert sums[0] == pair.tokens
    assert [len(set(side)) for side in prepared.train.behind.T.tolist()] == [56, 26]
    again = prepare_data(config, loaded.tokenizer, store.cache)  # from the files
    assert (again.train.behind == in_memory.behind).all()


def test_each_side_is_cut_by_itself():
    """As rows: a long unwanted answer does not shorten the wanted one's prompt."""
    from rcray.data.encode import truncated
    from rcray.data.encoded import EncodedPair

    config = DataConfig(max_length=20, max_prompt_length=8)
    pair = EncodedPair("a", tuple(range(15)), (1, 2), tuple(range(30)), tuple(range(10)))
    kept = truncated(pair, config)
    assert (kept.prompt, kept.chosen) == (pair.prompt, pair.chosen)
    assert (kept.prompt_l, kept.rejected) == (pair.prompt_l[-8:], pair.rejected[:12])


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_objectives_say_rightly_whether_they_separate(name):
    """A sum of one term per side has no mixed derivative; weights multiply loss and incentives of their own side."""
    bound, batch = objective(name), random_pairs(3)
    loss = bound.formula.loss(batch.pairs, bound.params)
    assert isinstance(loss, tuple) == bound.params.traits.separates
    if not bound.params.traits.separates:
        return
    from dataclasses import replace

    weights = torch.tensor([[0.5, 1.0, 0.0], [2.0, 0.25, 1.0]], dtype=torch.float64)
    weighted = replace(batch.pairs, weights=weights)
    torch.testing.assert_close(bound.loss(weighted), weights[0] * loss[0] + weights[1] * loss[1])
    for double in (True, False):
        plain, seen = (incentives(bound, pairs, double=double) for pairs in (batch.pairs, weighted))
        for side, weight in zip("wl", weights, strict=True):
            d, log_d = f"d_{side}", f"log_d_{side}"
            torch.testing.assert_close(getattr(seen, d), weight * getattr(plain, d))
            torch.testing.assert_close(getattr(seen, log_d), getattr(plain, log_d) + weight.log())


def test_what_unpaired_rows_are_not_for_is_refused(file):
    path = str(file.usual())

    def run(**settings):
        data = {"name": path, "format": "unpaired", "train_pairs": 16, "eval_pairs": 4}
        return small_config(data=data, **settings)

    with pytest.raises(ValidationError, match=r"objective 'dpo' compares two answers .*kto, ddro, dil-bce") as caught:
        run()
    assert "sppo-hard" in str(caught.value)
    with pytest.raises(ValidationError, match="unpaired rows share no prompt"):
        run(objective={"name": "kto"}, execution={"prompt_sharing": "on"})
    with pytest.raises(ValidationError, match="format 'unpaired' has no meaning for 'synthetic'"):
        small_config(objective={"name": "kto"}, data={"format": "unpaired"})
    kl = {"name": "kto", "baseline": "kl"}
    with pytest.raises(ValidationError, match="is taken from 2 pairs at least"):
        run(objective=kl, train={"micro_batch_size": 1})
    with pytest.raises(ValidationError, match="micro_batch_tokens may leave one alone"):
        run(objective=kl, train={"micro_batch_tokens": 64})
    assert run_id(run(objective=kl)) != run_id(run(objective={"name": "kto"}))
    plain = small_config(data={"name": path})
    named = small_config(data={"name": path, "columns": {"completion": "completion"}})
    assert run_id(plain) == run_id(named), "a default says nothing"


@pytest.mark.parametrize("kind", ["", "update"])
def test_a_run_on_unpaired_rows_parts_the_two_labels(file, store, kind):
    """Wanted answers are of one kind, unwanted of another, so that a few steps tell them apart."""
    rows = [row(i, i % 3 != 0) for i in range(120)]
    for line in rows:
        line["completion"] = "sun red dog" if line["label"] else "two cat one"
    config = small_config(
        data={"name": str(file(rows)), "format": "unpaired", "train_pairs": 64, "eval_pairs": 4},
        objective={"name": "kto", "baseline": "kl"},
        train={"learning_rate": 3e-4, "probe_pairs": 4},
        calibration={"enabled": bool(kind), "kind": kind or "published"},
    )
    assert launch(config, store).status == "ok"
    seen = records(store, config)
    gap = seen.probe_z_w - seen.probe_z_l
    assert gap.dropna().iloc[-1] > gap.iloc[0] + 0.5
    assert seen.d_l.iloc[0] == pytest.approx(seen.d_w.iloc[0] / 2, rel=0.2), "two wanted rows to an unwanted one"


def test_a_plan_measures_a_step(file, store):
    from rcray.sweep.measure import measure

    data = {"name": str(file.usual()), "format": "unpaired", "train_pairs": 16, "eval_pairs": 4}
    measured = measure(small_config(data=data, objective={"name": "dil-bce"}), store)
    assert measured.pairs == 16 and measured.pair_seconds > 0


def test_show_pairs_prints_both_prompts(file, store):
    from rcray.data.display import describe_pairs

    tokenizer = load_model(small_config().model, store.cache).tokenizer
    text = describe_pairs(tokenizer, {"paper": data_of(file.usual())}, 1)
    assert "prompt of the rejected, " in text and text.count("scored") == 2
    pair = next(item for item in load_pairs(data_of(file.usual())).train if isinstance(item, Pair))
    assert whole_pair(pair, Rendering(tokenizer), EncodeReport()).prompt_l is not None
