"""The paper's layouts filled from runs with made numbers: what is known is printed, what is not says why."""

import math

import pytest
import runs

from rcray.aggregate.benchmark_tables import table_of_runs
from rcray.aggregate.catalogue import catalogue_of_runs
from rcray.aggregate.collect import collect
from rcray.aggregate.comparison import beside_published
from rcray.aggregate.estimators import estimator_pairs
from rcray.aggregate.groups import compare
from rcray.aggregate.paper import BENCHMARK_TABLES, SIX
from rcray.aggregate.places import Places
from rcray.aggregate.runtime import hours_and_minutes
from rcray.aggregate.summary import SECONDS
from rcray.aggregate.tables import entry_text, to_csv, to_markdown
from rcray.config import Experiment
from rcray.config.benchmarks import BENCHMARKS
from rcray.store import Store
from rcray.sweep.grid import expand

MAIN, PYTHIA, HH, EMA, EPOCHS = BENCHMARK_TABLES


@pytest.fixture
def store(tmp_path):
    return Store.open(tmp_path / "store")


def experiment(**changes):
    run = {
        "model": "mistral-7b",
        "data": {"name": "ultrafeedback", "train_pairs": 3200, "eval_pairs": 256},
        "fidelity": "official",
        "train": {"batch_size": 16, "micro_batch_size": 8},
    }
    grid = {"objective": ["dpo", "cpo"], "calibration.enabled": [False, True]}
    return Experiment(name="some", run=run | changes.pop("run", {}), grid=grid | changes.pop("grid", {}), **changes)


def scores(first: float, step: float = 0.01) -> dict[str, float | None]:
    return {f"{name}/{BENCHMARKS[name].metric}": first + i * step for i, name in enumerate(SIX)}


def filled(store, cells, first=0.30, **protocol):
    for i, cell in enumerate(cells):
        run = runs.write_ok(store, cell, steps=20)
        runs.add_benchmarks(run, scores(first + 0.01 * i), **protocol)
    return collect(store, cells)


def rows_of(table):
    """Rows by group and labels, as texts by column title."""
    labels = sum(column.align == "left" for column in table.columns)
    rows = {}
    for row in table.rows:
        texts = [entry_text(column, entry) for column, entry in zip(table.columns, row.entries, strict=True)]
        rows[row.group, *texts[:labels]] = dict(zip([c.title for c in table.columns], texts, strict=True))
    return rows


def test_the_main_table_from_runs(store):
    results = filled(store, expand(experiment()))
    table = table_of_runs(MAIN, Places.of(results))
    rows = rows_of(table)
    assert len(rows) == 28  # the paper's rows, whatever was run
    dpo, dpo_rc = rows["Mistral-7B", "DPO", "w/o"], rows["Mistral-7B", "DPO", "w/"]
    assert dpo["MMLU-Pro"] == "30.00 ± 1.00"
    assert dpo["Average"] == "32.50"
    assert dpo_rc["Average"] == "33.50"
    assert (dpo["Δ"], dpo_rc["Δ"]) == ("–", "+1.00")
    assert rows["Qwen2.5-7B", "DPO", "w/o"]["ARC"] == "not planned"
    assert rows["Mistral-7B", "SimPO", "w/"]["Average"] == "not planned"
    best = {row.entries[1].words for row in table.rows if row.entries[2].best and row.entries[0].words == "CPO"}
    assert best == {"w/"}
    assert all(entry.runs for row in table.rows[:2] for entry in row.entries[2:9])
    assert "Standard errors of grouped benchmarks: pooled." in table.notes
    assert to_csv(table).splitlines()[1].startswith("Mistral-7B,DPO,w/o,30,1,31,1,32,1,33,1,34,1,35,1,32.5")


def test_what_has_no_score_says_why(store):
    cells = expand(experiment(grid={"objective": ["dpo", "cpo", "simpo", "ddro"]}))
    runs.add_benchmarks(runs.write_ok(store, cells[0], 20), scores(0.3) | {"arc/acc_norm": None})
    runs.add_benchmarks(runs.write_ok(store, cells[1], 20), scores(0.4))
    for cell, status in zip(cells[2:], ("failed", "oom", "degenerate", "running"), strict=False):
        runs.make(store, cell, status, error="it broke", steps=10)
    runs.write_ok(store, cells[6], 20)
    table = table_of_runs(MAIN, Places.of(collect(store, cells)))
    rows = rows_of(table)
    assert rows["Mistral-7B", "DPO", "w/o"]["ARC"] == "degenerate"
    assert rows["Mistral-7B", "DPO", "w/o"]["Average"] == "degenerate"
    assert rows["Mistral-7B", "DPO", "w/o"]["BBH"] == "31.00 ± 1.00"
    assert rows["Mistral-7B", "DPO", "w/"]["Average"] == "42.50"
    assert rows["Mistral-7B", "DPO", "w/"]["Δ"] == "degenerate"  # no difference with a degenerate model
    words = [rows["Mistral-7B", *key]["GSM8K"] for key in (("CPO", "w/o"), ("CPO", "w/"), ("SimPO", "w/o"))]
    assert words == ["failed", "oom", "degenerate"]
    assert rows["Mistral-7B", "SimPO", "w/"]["GSM8K"] == "running"
    assert rows["Mistral-7B", "DDRO", "w/o"]["GSM8K"] == "not evaluated"
    assert rows["Mistral-7B", "DDRO", "w/"]["GSM8K"] == "pending"
    tip = next(row.entries[5].tip for row in table.rows)
    assert tip == "every answer is the first choice"
    assert "0.227" not in to_markdown(table)
    assert "22.7" not in to_markdown(table)


def test_seeds_give_mean_spread_n_and_a_paired_test(store):
    cells = expand(experiment(grid={"objective": ["dpo"], "train.seed": [1, 2, 3]}))
    for i, cell in enumerate(cells):
        gain = (0.02, 0.03, 0.04)[i % 3] if cell.config.calibration.enabled else 0.0
        run = runs.write_ok(store, cell, 20)
        runs.add_benchmarks(run, scores(0.30 + 0.01 * cell.config.train.seed + gain, 0.0))
    table = table_of_runs(MAIN, Places.of(collect(store, cells)))
    rows = rows_of(table)
    without, with_rc = rows["Mistral-7B", "DPO", "w/o"], rows["Mistral-7B", "DPO", "w/"]
    assert without["ARC"] == "32.00 ± 1.00"
    assert (without["Average"], without["Seeds"]) == ("32.00 ± 1.00", "3")
    assert with_rc["Δ"] == "+3.00 ± 1.00"
    assert float(with_rc["p"]) == pytest.approx(0.035, abs=5e-4)  # t = 3 / (1 / sqrt 3) = 5.196, 2 degrees
    assert "p: two-sided paired t-test" in " ".join(table.notes)


def test_mixed_protocols_are_refused_or_footnoted(store):
    cells = expand(experiment(grid={"objective": ["dpo", "cpo"]}))
    for i, cell in enumerate(cells):
        runs.add_benchmarks(runs.write_ok(store, cell, 20), scores(0.3), task_version="2.0" if i == 1 else "1.0")
    table = table_of_runs(MAIN, Places.of(collect(store, cells)))
    rows = rows_of(table)
    assert rows["Mistral-7B", "DPO", "w/"]["Δ"] == "protocols differ"
    assert rows["Mistral-7B", "CPO", "w/"]["Δ"] == "0.00"
    assert rows["Mistral-7B", "DPO", "w/"]["MMLU-Pro"].endswith("[a]")
    assert rows["Mistral-7B", "DPO", "w/o"]["MMLU-Pro"] == "30.00 ± 1.00"
    note = next(note for note in table.notes if note.startswith("[a]"))
    assert "mmlu_pro" in note
    assert "task version 2.0" in note
    assert "rows without this mark: task version 1.0" in note


def test_seeds_measured_differently_are_not_averaged(store):
    cells = expand(experiment(grid={"objective": ["dpo"], "train.seed": [1, 2], "calibration.enabled": [False]}))
    for cell, version in zip(cells, ("1.0", "2.0"), strict=True):
        runs.add_benchmarks(runs.write_ok(store, cell, 20), scores(0.3), task_version=version)
    row = rows_of(table_of_runs(MAIN, Places.of(collect(store, cells))))["Mistral-7B", "DPO", "w/o"]
    assert row["ARC"] == "mixed protocols"
    assert row["Average"] == "mixed protocols"


def test_a_degenerate_seed_is_not_averaged_away(store):
    cells = expand(experiment(grid={"objective": ["dpo"], "train.seed": [1, 2], "calibration.enabled": [False]}))
    for cell, value in zip(cells, (0.3, None), strict=True):
        runs.add_benchmarks(runs.write_ok(store, cell, 20), scores(0.3) | {"arc/acc_norm": value})
    row = rows_of(table_of_runs(MAIN, Places.of(collect(store, cells))))["Mistral-7B", "DPO", "w/o"]
    assert row["ARC"] == "1 of 2 degenerate"
    assert row["BBH"] == "31.00 ± 0.00"


def test_mixed_fidelity_and_data_stand_apart(store):
    one = filled(store, expand(experiment()))
    other = filled(store, expand(experiment(run={"fidelity": "paper"})), first=0.5)
    short = {"data": {"name": "ultrafeedback", "train_pairs": 1600, "eval_pairs": 256}}
    third = filled(store, expand(experiment(run=short)), first=0.6)
    table = table_of_runs(MAIN, Places.of([*one, *other, *third]))
    labels = [row.entries[1] for row in table.rows if row.entries[0].words == "DPO" and row.group == "Mistral-7B"]
    assert len(labels) == 6
    assert sum("fidelity=paper" in label.words for label in labels) == 2
    assert sum("train_pairs=1600" in label.words for label in labels) == 2
    rows = [row for row in table.rows if row.entries[0].words == "DPO" and row.group == "Mistral-7B"]
    deltas = [entry_text(table.columns[-1], row.entries[-1]) for row in rows]
    assert deltas == ["–"] * 3 + ["+1.00"] * 3  # each against its own
    notes = " ".join(table.notes)
    assert "fidelity preset: paper; rows without this mark: official" in notes
    assert "train_pairs 1600" in notes
    assert {row.entries[0].mark for row in rows} == {"", "ab", "c"}  # the preset brings its likelihood with it


def test_a_row_with_rc_has_no_difference_to_other_settings(store):
    one = filled(store, expand(experiment(grid={"objective": ["dpo"], "calibration.enabled": [False]})))
    run = {"fidelity": "paper"}
    other = filled(store, expand(experiment(run=run, grid={"objective": ["dpo"], "calibration.enabled": [True]})))
    rows = rows_of(table_of_runs(MAIN, Places.of([*one, *other])))
    assert rows["Mistral-7B", "DPO [ab]", "w/"]["Δ"] == "settings differ"


def test_ours_beside_published(store):
    """Made to be 1 point above the published ARC of DPO with RC, 60.92 ± 1.43, and far off elsewhere."""
    cells = expand(experiment(grid={"objective": ["dpo"], "calibration.enabled": [True]}))
    run = runs.write_ok(store, cells[0], 20)
    runs.add_benchmarks(run, scores(0.10, 0.0) | {"arc/acc_norm": 0.6192}, stderr=0.0143)
    table = beside_published(MAIN, Places.of(collect(store, cells)))
    assert (table.compared, table.within) == (7, 1)
    rows = {row.entries[2].words: row.entries for row in table.table.rows}
    arc = [entry_text(c, e) for c, e in zip(table.table.columns, rows["ARC"], strict=True)]
    assert arc[3:] == ["61.92 ± 1.43", "60.92 ± 1.43", "+1.00", "2.02", "yes"]
    assert rows["BBH"][-1].words == "no"
    average = rows["Average"]
    assert average[4].value == 0.3644
    assert average[4].spread == pytest.approx(
        math.sqrt(0.42**2 + 3.01**2 + 1.74**2 + 1.43**2 + 0.45**2 + 1.34**2) / 600
    )
    assert beside_published(HH, Places.of(collect(store, cells))) is None


def test_rows_are_found_by_content(store):
    """The EMA and epoch tables take their cells from any file; a full-score twin does not take a row twice."""
    ema = experiment(
        run={"model": "pythia-2.8b", "objective": "dpo"},
        grid={"objective": ["dpo"], "calibration.enabled": [True], "calibration.ema_beta": [0.5, 0.98, 0.999]},
    )
    results = filled(store, expand(ema))
    places = Places.of(results)
    assert places.covers(EMA)
    assert places.covers(PYTHIA)
    assert not places.covers(MAIN)
    assert not places.covers(EPOCHS)
    rows = rows_of(table_of_runs(EMA, places))
    assert [key[1] for key in rows] == ["w/o RC", "0.5", "0.9", "0.95", "0.98", "0.999"]
    assert rows["Pythia-2.8B", "0.5"]["Average"] == "31.50"
    assert rows["Pythia-2.8B", "0.9"]["Average"] == "not planned"
    assert rows_of(table_of_runs(PYTHIA, places))["Pythia-2.8B", "DPO", "w/"]["Average"] == "32.50"  # that of 0.98
    twins = experiment(
        grid={"objective": ["dpo"], "calibration.enabled": [False], "calibration.scores": ["adapters", "full"]}
    )
    rows = rows_of(table_of_runs(MAIN, Places.of(filled(store, expand(twins)))))
    assert rows["Mistral-7B", "DPO", "w/o"]["MMLU-Pro"] == "30.00 ± 1.00"
    epochs = experiment(grid={"objective": ["dpo"], "train.epochs": [1, 2]})
    rows = rows_of(table_of_runs(EPOCHS, Places.of(filled(store, expand(epochs)))))
    assert list(rows)[1:] == [("Mistral-7B", rc, n) for rc in ("w/o RC", "w/ RC") for n in ("1", "2")]
    assert rows["Mistral-7B", "w/ RC", "2"]["Average"] == "35.50"


def catalogue(results):
    return catalogue_of_runs("t", results, compare(results), estimator_pairs(results))


def test_win_rates_of_runs_stand_beside_published_ones(store):
    cells = expand(experiment(run={"model": "pythia-2.8b"}, grid={"objective": ["dpo"]}))
    for cell in cells:
        runs.write_ok(store, cell, 20)
    rates = {"alpaca_eval/win_rate": 0.61, "alpaca_eval/lc_win_rate": 0.58}
    runs.add_benchmarks(store.run(cells[1].run_id), rates, stderr=0.0125, note="against no RC; judge x, mode y")
    table = next(t for t in catalogue(collect(store, cells)).tables if t.name == "alpaca-eval")
    (row,) = [[entry_text(c, e) for c, e in zip(table.columns, row.entries, strict=True)] for row in table.rows]
    assert row == ["DPO", "61.00 ± 1.25", "58.00 ± 1.25", "70.56"]
    assert table.rows[0].entries[1].tip == "against no RC; judge x, mode y"
    assert "alpaca_eval" not in {c.key for t in catalogue(collect(store, cells)).tables for c in t.columns}


def test_a_benchmark_measured_twice_is_no_number(store):
    (cell,) = expand(experiment(grid={"objective": ["dpo"], "calibration.enabled": [False]}))
    run = runs.write_ok(store, cell, 20)
    runs.add_benchmarks(run, scores(0.3))
    runs.add_benchmarks(run, {"arc/acc_norm": 0.9}, shots=0)
    row = rows_of(table_of_runs(MAIN, Places.of(collect(store, [cell]))))["Mistral-7B", "DPO", "w/o"]
    assert (row["ARC"], row["BBH"]) == ("ambiguous", "31.00 ± 1.00")


def test_runtime_of_runs(store):
    cells = runs.cells_of(runs.quickstart())
    runs.write_runs(store, cells[:4])
    runs.make(store, cells[5], "failed", error="it broke")
    table = next(t for t in catalogue(collect(store, cells)).tables if t.name == "runtime")
    rows = {row.entries[0].words: row.entries for row in table.rows}
    titles = [column.title for column in table.columns]
    assert titles == ["Metric", "BCE", "CPO", "DPO", "Average"]
    assert rows["w/o RC Time"][1].words == "pending"
    assert rows["w/ RC Time"][1].words == "failed"
    assert rows["Δ (%)"][1].words == "–"
    measured = collect(store, cells)[2].value(SECONDS) / 60
    assert rows["w/o RC Time"][2].value == pytest.approx(measured)
    both = [rows["w/o RC Time"][i].value for i in (2, 3)]
    assert rows["w/o RC Time"][4].value == pytest.approx(sum(both) / 2)


@pytest.mark.parametrize(
    ("minutes", "text"), [(646, "10h 46m"), (660, "11h 00m"), (48, "48m"), (0.5, "30.0s"), (0, "0m"), (61, "1h 01m")]
)
def test_durations(minutes, text):
    assert hours_and_minutes(minutes) == text


# -- the start model


def started(store, **grid):
    run = {"train": {"batch_size": 16, "micro_batch_size": 8}}
    return filled(store, expand(experiment(run=run, grid={"objective": ["dpo"], "train.epochs": [0, 1], **grid})))


def test_the_start_model_fills_the_baseline_of_the_epoch_ablation(store):
    places = Places.of(started(store, **{"train.epochs": [0, 1, 2]}))
    rows = rows_of(table_of_runs(EPOCHS, places))
    assert rows["Mistral-7B", "Baseline", ""]["Average"] == "32.50"
    assert ("Mistral-7B", "w/ RC", "2") in rows
    text = to_markdown(beside_published(EPOCHS, places).table)
    assert "Baseline" in text


def test_any_table_shows_the_start_model_where_there_is_one(store):
    results = started(store)
    rows = rows_of(table_of_runs(MAIN, Places.of(results)))
    assert [key[1] for key in rows][:2] == ["Baseline", "DPO"]
    assert rows["Mistral-7B", "Baseline", ""]["Δ"] == "–"
    trained = [result for result in results if not result.cell.config.is_start_model]
    assert "Baseline" not in to_markdown(table_of_runs(MAIN, Places.of(trained)))


def test_the_start_model_is_a_row_of_the_results(store):
    results = started(store)
    (first, *_) = compare(results)
    assert (first.title, first.without.rc, first.with_rc) == ("start model", "–", ())
    tables = {table.name: table for chapter in catalogue(results).chapters for table in chapter.tables}
    assert "start model" in to_markdown(tables["results"])
