"""Two estimators on one training, and runs fetched from MLflow."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import runs

from rcray.aggregate.collect import collect
from rcray.aggregate.command import Request, run_report
from rcray.aggregate.dynamics_tables import head_full_table
from rcray.aggregate.estimators import estimator_pairs
from rcray.aggregate.figures.estimators import draw_head_full
from rcray.aggregate.mlflow_source import fetch_runs
from rcray.aggregate.summary import CENTRE_GAP, RHO_CORRELATION, SAME_SIDE, WIDTH_GAP
from rcray.aggregate.tables import entry_text
from rcray.config import Experiment
from rcray.errors import StoreError
from rcray.store import Store
from rcray.sweep.grid import expand
from rcray.train.dynamics import read_dynamics


@pytest.fixture
def store(tmp_path):
    return Store.open(tmp_path / "store")


def add_full(run, shift):
    """A second estimator's columns: the band moved by `shift` nats."""
    for path in sorted(run.dynamics.glob("*.parquet")):
        table = pq.read_table(path)
        table = table.drop_columns([name for name in table.column_names if name.endswith("_full")])
        for name in ("log_r_star", "band_lower", "band_upper"):
            table = table.append_column(f"{name}_full", pa.array(table[name].to_numpy() + shift))
        inside = np.abs(table["log_r"].to_numpy() - table["log_r_star_full"].to_numpy())
        half = (table["band_upper"].to_numpy() - table["band_lower"].to_numpy()) / 2
        table = table.append_column("in_band_full", pa.array(inside <= half))
        table = table.append_column("rho_full", pa.array(table["rho"].to_numpy() * 0.9))
        pq.write_table(table, path)


def test_both_estimators_in_one_run(store):
    cells = runs.cells_of(runs.quickstart())
    runs.write_runs(store, cells[:2])
    add_full(store.run(cells[0].run_id), 0.25)
    results = collect(store, cells[:2])
    (pair,) = estimator_pairs(results)
    assert pair.metrics[SAME_SIDE].n == 200
    assert pair.metrics[CENTRE_GAP].value == pytest.approx(0.25)
    assert pair.metrics[WIDTH_GAP].value == pytest.approx(0.0, abs=1e-12)
    assert pair.metrics[RHO_CORRELATION].value == pytest.approx(1.0)
    records = pair.records()
    assert pair.metrics[SAME_SIDE].value == np.mean(records["in_band"] == records["in_band_full"])
    assert 0 < pair.metrics[SAME_SIDE].value < 1
    table = head_full_table([pair])
    texts = [entry_text(column, entry) for column, entry in zip(table.columns, table.rows[0].entries, strict=True)]
    assert texts[:2] == ["DPO", "w/o"]
    assert texts[5:] == ["0.250", "0.000", "1.000", "200"]
    assert draw_head_full(pair).name == "head-full-tiny-neox-dpo-without-rc-seed42"


def test_the_same_training_with_two_estimators(store):
    """Two runs without RC that differ in `calibration.scores` alone; with RC they would be two trainings."""
    experiment = Experiment(
        name="scores",
        run=runs.quickstart().run | {"objective": "dpo"},
        grid={"calibration.scores": ["head", "full"], "calibration.enabled": [False, True]},
    )
    cells = expand(experiment)
    runs.write_runs(store, cells)
    (pair,) = estimator_pairs(collect(store, cells))
    assert (pair.rc, pair.head.cell.config.calibration.scores, pair.full.cell.config.calibration.scores) == (
        "w/o",
        "head",
        "full",
    )
    assert pair.metrics[SAME_SIDE].value == 1.0
    assert pair.metrics[CENTRE_GAP].value == 0.0
    runs.make(store, cells[2], "failed", error="it broke")
    (store.run(cells[2].run_id).dynamics / "part-00000001-00000100.parquet").unlink()
    (store.run(cells[2].run_id).dynamics / "part-00000101-00000200.parquet").unlink()
    (pair,) = estimator_pairs(collect(store, cells))
    assert (pair.metrics, pair.word) == ({}, "failed")
    assert draw_head_full(pair) is None
    assert "failed" in {entry.words for entry in head_full_table([pair]).rows[0].entries}


@pytest.mark.parametrize("state", ["oom", "failed", "pending"])
def test_a_run_that_was_to_record_both_and_has_no_records_stays_in_the_table(store, state):
    run = runs.quickstart().run | {"objective": "dpo", "calibration": {"scores": ["head", "full"]}}
    (cell,) = expand(Experiment(name="both", run=run))
    if state != "pending":
        runs.make(store, cell, state, error="it broke")
    (pair,) = estimator_pairs(collect(store, [cell]))
    assert (pair.metrics, pair.word) == ({}, state)
    assert {entry.words for entry in head_full_table([pair]).rows[0].entries} == {"DPO", "w/o", state}


def test_runs_come_back_from_mlflow(store, tmp_path):
    """The files that a sweep delivers are enough for the same results; of two runs of a cell, the finished one."""
    from mlflow.tracking import MlflowClient

    experiment = runs.quickstart()
    cells = runs.cells_of(experiment)[:2]
    run = runs.write_ok(store, cells[0], steps=20)
    run.adjusted.write_text('{"note": "in smaller portions"}')
    items = run.items("abc")
    items.parent.mkdir()
    items.write_bytes(b"of each pair")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    client = MlflowClient(tracking_uri=uri)
    owner = client.create_experiment(experiment.name, (tmp_path / "artifacts").as_uri())
    for state in ("FINISHED", "RUNNING"):
        tags = {"rcray.kind": "cell", "rcray.run_id": cells[0].run_id}
        there = client.create_run(owner, run_name=cells[0].label, tags=tags).info.run_id
        if state == "FINISHED":
            for path in (run.status, run.evaluation, run.adjusted):
                client.log_artifact(there, str(path))
            client.log_artifact(there, str(items), "items")
            pq.write_table(read_dynamics(run.dynamics), tmp_path / "dynamics.parquet")
            client.log_artifact(there, str(tmp_path / "dynamics.parquet"))
            client.set_terminated(there, state)
    for _ in range(2):  # a second fetch finds the files of the first
        fetched = fetch_runs(uri, [experiment.name], cells, tmp_path / "fetched")
        ours, here = collect(fetched, cells), collect(store, cells)
        assert [result.status for result in ours] == ["ok", "pending"]
        assert str(ours[0].metrics) == str(here[0].metrics)  # nan is not equal to itself
        assert ours[0].note == here[0].note == "in smaller portions"
        assert ours[0].run.items("abc").read_bytes() == b"of each pair"
    with pytest.raises(StoreError, match="has no experiment 'elsewhere'"):
        fetch_runs(uri, ["elsewhere"], cells, tmp_path / "fetched")


def test_a_report_put_elsewhere_removes_nothing(store, tmp_path):
    """Somebody may keep the tables of a paper there."""
    experiment = runs.quickstart()
    cells = runs.cells_of(experiment)[:2]
    runs.write_runs(store, cells)
    mine = [tmp_path / "paper" / folder / name for folder, name in (("tables", "mine.tex"), ("figures", "mine.pdf"))]
    for path in mine:
        path.parent.mkdir(parents=True)
        path.write_text("of somebody else")
    for _ in range(2):
        run_report(Request([(experiment, cells)], store.root, out=tmp_path / "paper", figures=False))
    run_report(Request(published=True, out=tmp_path / "paper"))
    assert all(path.exists() for path in mine)
