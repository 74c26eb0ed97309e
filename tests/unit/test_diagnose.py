"""Which pairs will hurt: planted ones are found, products equal gradients, a filter leaves rows out and no more."""

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from benchmarks.diagnosis import found_in_worst, plant, settings
from rcray.cli import app
from rcray.config import run_id
from rcray.config.data import DataConfig
from rcray.data.batch import collate
from rcray.data.pairs import load_pairs
from rcray.data.prepare import prepare_data
from rcray.diagnose.diagnosis import DROPPED, diagnose
from rcray.diagnose.measures import NOT_PREDICTED, measure_pairs, predicted_pathways
from rcray.diagnose.text import answer_overlap
from rcray.errors import DataError
from rcray.models.likelihood import side_logps
from rcray.objectives import objective
from tests.small_runs import small_config


@pytest.fixture
def planted(tmp_path):
    return tmp_path / "planted", plant(tmp_path / "planted", 240, 16)


def test_planted_pairs_lie_in_the_worst_decile_by_the_right_column(planted, store):
    folder, kinds = planted
    diagnosis = diagnose([settings(folder, 16)], store, None)
    assert {kind: len(rows) for kind, rows in kinds.items()} == {"swapped": 8, "copied": 8, "near-identical": 8}
    assert found_in_worst(diagnosis, kinds) == {"swapped": 1.0, "copied": 1.0, "near-identical": 1.0}
    assert set().union(*kinds.values()) <= set(diagnosis.dropped(DROPPED, 0.1))


@pytest.mark.parametrize(("likelihood", "form"), [("sum", "gram"), ("mean", "gram"), ("sum", "direct")])
def test_measures_equal_autograd_and_sums_of_hidden_states(neox, tmp_path, likelihood, form, monkeypatch):
    monkeypatch.setattr("rcray.calibration.head_scores.exact_form", lambda *_, **__: form)
    model = neox.model.double()
    data = prepare_data(small_config().data, neox.tokenizer, tmp_path).train
    index = [3, 0, 5]
    measures = measure_pairs(model, data, index, torch.device("cpu"), likelihood)
    head = model.get_output_embeddings().weight
    for column, i in enumerate(index):
        batch, scores, states = collate(data.pairs, [i]), [], []
        for side in (batch.chosen, batch.rejected):
            logps = side_logps(model, side)
            z = logps.sums / logps.lengths if likelihood == "mean" else logps.sums
            scores.append(torch.autograd.grad(z.sum(), head)[0])
            hidden = model.base_model(input_ids=side.ids).last_hidden_state[0, :-1]
            states.append(hidden[side.response[0, 1:].bool()].detach())
        expected = [(a * b).sum().item() for a, b in ((scores[0], scores[0]), (scores[1], scores[1]), tuple(scores))]
        measured = [measures.score_w[column], measures.score_l[column], measures.score_wl[column]]
        assert measured == pytest.approx(expected, rel=1e-9)
        w, l = (state.sum(0) for state in states)  # noqa: E741  the paper's letter
        assert measures.ches[column] == pytest.approx((w @ l - w @ w).item(), rel=1e-9)
        w, l = (state.mean(0) for state in states)  # noqa: E741
        assert measures.ches_per_token[column] == pytest.approx((w @ l - w @ w).item(), rel=1e-9)


def test_the_predicted_pathway_is_that_of_a_small_step_at_the_head(neox, tmp_path):
    model = neox.model.double()
    data = prepare_data(small_config().data, neox.tokenizer, tmp_path).train
    index = list(range(6))
    measures = measure_pairs(model, data, index, torch.device("cpu"), "sum")
    for name in ("dpo", "cpo"):
        words = predicted_pathways(measures, objective(name).params, "sum")
        for i, word in zip(index, words, strict=True):
            assert word == _after_a_step(model, data.pairs, i, objective(name))
    assert predicted_pathways(measures, objective("ti-dpo").params, "sum") == NOT_PREDICTED


def _after_a_step(model, pairs, i, loss):
    """What a plain gradient step at the head, on one pair, does to it."""
    from rcray.objectives import PairLogps
    from rcray.records.columns import pathway_of

    batch, head = collate(pairs, [i]), model.get_output_embeddings().weight

    def likelihoods():
        return [side_logps(model, side).sums for side in (batch.chosen, batch.rejected)]

    z_w, z_l = likelihoods()
    n = torch.ones_like(z_w)
    value = loss.loss(PairLogps(z_w, z_l, n, n, z_w.detach(), z_l.detach())).sum()
    (gradient,) = torch.autograd.grad(value, head)
    with torch.no_grad():
        head -= 1e-7 * gradient
        after = likelihoods()
        head += 1e-7 * gradient
    return pathway_of(*((b - a).item() for a, b in zip((z_w, z_l), after, strict=True)))


def test_overlap():
    assert answer_overlap((1, 2, 3), (1, 2, 3)) == 1
    assert answer_overlap((1, 2, 3), (4, 5)) == 0
    assert 0.5 < answer_overlap((1, 2, 3, 4, 5, 6), (1, 2, 3, 4, 5, 7)) < 1


def test_a_filter_leaves_out_training_rows_alone(planted, store):
    folder, _ = planted
    plain, filtered = settings(folder, 16).data, settings(folder, 16, exclude_rows=[5, 2, 5]).data
    assert filtered.exclude_rows == (2, 5)

    def rows(config):
        splits = load_pairs(config)
        return [item.row for item in splits.train if hasattr(item, "chosen")], [item.row for item in splits.held_out]

    before, after = rows(plain), rows(filtered)
    assert after[0] == [row for i, row in enumerate(before[0]) if i not in (2, 5)]
    assert after[1] == before[1]
    with pytest.raises(DataError, match=r"data.exclude_rows: row 240 of a source whose rows are 0 to 239"):
        list(load_pairs(settings(folder, 16, exclude_rows=[240]).data).train)


def test_excluded_rows_are_part_of_an_identity_only_where_there_are_some():
    plain = small_config()
    assert "exclude_rows" not in plain.data.content()
    assert run_id(small_config(data={"exclude_rows": []})) == run_id(plain)
    some, others = (small_config(data={"exclude_rows": rows}) for rows in ([1, 2], [1, 3]))
    assert len({run_id(config) for config in (plain, some, others)}) == 3
    assert some.data.content()["exclude_rows"].startswith("2 rows, ")
    assert some.total_steps == (64 - 2) // 8


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([-1], "-1 is not the number of a row"),
        ([True], "True is not the number of a row"),
        (["a"], "'a' is not the number of a row"),
        ("no-such.rows", "no-such.rows: cannot be read"),
    ],
)
def test_wrong_rows_are_refused(given, said):
    with pytest.raises(ValueError, match=said):
        DataConfig(exclude_rows=given)


def test_a_file_of_rows_says_which_line_is_wrong(tmp_path):
    file = tmp_path / "bad.rows"
    file.write_text("# two rows\n3  # copied\n\n1\n")
    assert DataConfig(exclude_rows=str(file)).exclude_rows == (1, 3)
    file.write_text("3\n1.5\n")
    with pytest.raises(ValueError, match=r"bad.rows:2: '1.5' is not the number of a row"):
        DataConfig(exclude_rows=str(file))


def test_the_command_writes_page_json_and_filter(planted, store, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    folder, kinds = planted
    rows = tmp_path / "bad.rows"
    given = ["diagnose", "--model", "tiny-neox", "--data", str(folder), "--set", "data.split=train"]
    given += ["--set", "data.eval_split=test", "--set", "data.eval_pairs=16", "--store", str(store.root)]
    done = CliRunner().invoke(app, [*given, "--write-filter", str(rows), "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    printed = json.loads(done.stdout)
    assert printed["facts"]["pairs"] == 240
    assert printed["facts"]["duplicates"] == pytest.approx(8 / 240)
    assert 0.8 < printed["facts"]["ranked_rightly"] < 1
    assert sum(printed["pathways"]["DPO"].values()) == pytest.approx(1)
    written = DataConfig(exclude_rows=str(rows)).exclude_rows
    assert kinds["copied"] | kinds["swapped"] | kinds["near-identical"] <= set(written)
    page = store.root / "diagnoses" / "diagnosis" / "diagnosis.html"
    assert "Worst by: CHES per token" in page.read_text()
    assert np.isfinite(json.loads(page.with_suffix(".json").read_text())["pairs"]["ches"]).all()
