"""Benchmarks of models, objectives and settings that the paper does not have, in its layout."""

import pytest
import runs
from test_paper_tables import catalogue, experiment, filled, rows_of

from rcray.aggregate.collect import collect
from rcray.aggregate.figures import sensitivity
from rcray.aggregate.groups import compare
from rcray.aggregate.report import build_report
from rcray.config import Experiment
from rcray.store import Store
from rcray.sweep.grid import expand


@pytest.fixture
def store(tmp_path):
    return Store.open(tmp_path / "store")


def test_other_models_get_the_same_layout(store):
    tiny = experiment(
        run={"model": "tiny-neox", "data": {"train_pairs": 3200, "eval_pairs": 256}},
        grid={"objective": ["dpo"], "calibration.enabled": [False, True], "calibration.ema_beta": [0.5, 0.98]},
    )
    cells = expand(tiny)
    for i, cell in enumerate(cells):
        run = runs.write_ok(store, cell, 20)
        runs.add_benchmarks(run, {"rcray_choice/acc": 0.5 + i / 100, "rcray_cloze/exact_match": 0.25})
    tables = {table.name: table for table in catalogue(collect(store, cells)).tables}
    assert "main" not in tables
    rows = rows_of(tables["benchmarks"])
    assert rows["tiny-neox", "DPO", "w/o"]["rcray_choice"] == "50.00 ± 1.00"
    assert rows["tiny-neox", "DPO", "w/"]["Δ"] == "+1.00"
    assert [key[1] for key in rows_of(tables["ema-tiny-neox-dpo"])] == ["w/o RC", "0.5", "0.98"]


def test_other_settings_than_the_usual_ones_are_in_a_table_too(store):
    """Other epochs than the fewest, another momentum than the paper's: no benchmark that was run goes unprinted."""
    other = Experiment(
        name="some",
        run={"data": {"train_pairs": 3200, "eval_pairs": 256}, "calibration": {"ema_beta": 0.9}},
        cells=[{"objective": "dpo"}, {"objective": "cpo", "train.epochs": 3}],
        grid={"calibration.enabled": [False, True], "calibration.kind": ["published", "update"]},
    )
    cells = expand(other)
    for cell in cells:
        runs.add_benchmarks(runs.write_ok(store, cell, 20), {"rcray_choice/acc": 0.5})
    tables = {table.name: table for table in catalogue(collect(store, cells)).tables}
    shown = [key[1:] for name in ("benchmarks", "benchmarks-3-epochs") for key in rows_of(tables[name])]
    kinds = ("w/o", "w/", "w/ (ema_beta=0.9)")  # the update's kind reads no momentum
    assert shown == [(objective, rc) for objective in ("DPO", "CPO") for rc in kinds]


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        ({"train": {"epochs": 3}}, ["w/o", "w/"]),
        ({"calibration": {"ema_beta": 0.5}}, ["w/o", "w/ (ema_beta=0.5)"]),
    ],
)
def test_the_papers_models_under_settings_that_it_does_not_have(store, settings, shown):
    """No table of the paper has a row for them."""
    results = filled(store, expand(experiment(run=settings, grid={"objective": ["dpo"]})))
    tables = {table.name: table for table in catalogue(results).tables}
    rows = rows_of(tables["benchmarks"])
    assert list(rows) == [("Mistral-7B", "DPO", rc) for rc in shown]
    assert rows["Mistral-7B", "DPO", shown[1]]["Average"] == "33.50"


def test_a_table_is_a_file_whatever_its_model_is_called(store):
    own = experiment(
        run={"model": {"name": "./my.models/one", "method": "full"}, "data": {"train_pairs": 320, "eval_pairs": 256}},
        grid={"objective": ["dpo"], "calibration.enabled": [True], "calibration.ema_beta": [0.5, 0.98]},
    )
    cells = expand(own)
    for cell in cells:
        runs.add_benchmarks(runs.write_ok(store, cell, 20), {"rcray_choice/acc": 0.5})
    for _ in range(2):  # the second one also clears away what the first has left
        report = build_report(store, own, cells, figures=False)
        assert {path.parent for path in report.tables} == {store.experiment("some") / "tables"}
    assert "Ablation of the EMA momentum, dpo on one" in report.html.read_text()


def test_momenta_are_those_of_the_published_calibration(store, monkeypatch):
    """Another kind has none, and is no point of their curve."""
    kinds = experiment(
        run={"model": "tiny-neox", "data": {"train_pairs": 3200, "eval_pairs": 256}},
        grid={
            "objective": ["dpo"],
            "calibration.kind": ["published", "update"],
            "calibration.ema_beta": [0.5, 0.98],
        },
    )
    cells = expand(kinds)
    runs.write_runs(store, cells)
    monkeypatch.setattr(sensitivity, "draw_sensitivity", lambda name, title, score, series: series)
    results = collect(store, cells)
    (((series,),),) = [list(sensitivity.draw_sensitivities(compare(results), results))]
    assert [beta for beta, _ in series.points] == [0.5, 0.98]
