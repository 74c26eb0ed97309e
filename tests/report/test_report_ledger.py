"""Exported ledgers: the same report without store or server, and a real one kept here.

quickstart-ledger/ was written by `rcray report experiments/quickstart.yaml --export-ledger DIR` after a real sweep, and
quickstart-tables/ by `rcray report --ledger tests/report/quickstart-ledger --out DIR --no-figures`. The ledger was
later moved to the layout of a store; it had kept the columns that figures draw, and of the steps' seconds only their
sum, which stands at the last step.
"""

import json
import shutil
from pathlib import Path

import pytest
import runs

from rcray.aggregate.collect import collect
from rcray.aggregate.command import Request, run_report
from rcray.aggregate.exported import export_ledger, exported_experiments
from rcray.aggregate.figures.dynamics import draw_dynamics
from rcray.aggregate.groups import compare
from rcray.aggregate.report import write_report
from rcray.errors import ConfigError, StoreError
from rcray.records.ledger import write_stopped
from rcray.store import Store

HERE = Path(__file__).parent
REAL = HERE / "quickstart-ledger"
TABLES = HERE / "quickstart-tables"


@pytest.fixture
def store(tmp_path):
    return Store.open(tmp_path / "store")


def test_the_committed_ledger_rebuilds_its_tables_byte_for_byte(tmp_path):
    report = run_report(Request(ledger=REAL, out=tmp_path / "report", figures=False))
    assert {path.name for path in report.tables} == {path.name for path in TABLES.iterdir()}
    changed = [path.name for path in report.tables if path.read_bytes() != (TABLES / path.name).read_bytes()]
    assert changed == []
    assert {result.status for result in report.results} == {"ok"}
    assert not list(REAL.rglob("report*"))


def read(ledger):
    """Experiments and results of a ledger, as `rcray report --ledger` reads them."""
    store = Store.at(ledger)
    planned = exported_experiments(store)
    cells = {cell.run_id: cell for _, cells in planned for cell in cells}
    return [experiment for experiment, _ in planned], collect(store, list(cells.values()))


def test_figures_of_the_committed_ledger_are_deterministic():
    dpo = compare(read(REAL)[1])[0]
    first, second = (draw_dynamics(dpo, dpo.with_rc[0]) for _ in range(2))
    assert first.name == "dynamics-tiny-neox-dpo"
    assert first.files == second.files


def test_the_committed_ledger_is_small():
    assert 50_000 < sum(path.stat().st_size for path in REAL.rglob("*") if path.is_file()) < 400_000


def test_a_ledger_gives_what_the_store_gives(store, tmp_path):
    experiment = runs.quickstart()
    cells = runs.cells_of(experiment)
    runs.write_runs(store, cells[:3])
    runs.make(store, cells[3], "failed", error="it broke", steps=30)
    runs.write_ok(store, cells[5])
    store.run(cells[5].run_id).evaluation.write_text("{")  # damaged: failed, with its reason
    (store.run(cells[2].run_id).dynamics / "part-00000001-00000100.parquet").write_bytes(b"not parquet")
    results = collect(store, cells)
    assert [result.status for result in results] == ["ok", "ok", "failed", "failed", "pending", "failed"]
    export_ledger(tmp_path / "ledger", [(experiment, cells)], results)
    experiments, again = read(tmp_path / "ledger")
    assert [r.status for r in again] == [r.status for r in results]
    assert [r.error for r in again] == [r.error.replace(str(store.root), str(tmp_path / "ledger")) for r in results]
    assert [r.cell.label for r in again] == [r.cell.label for r in results]
    assert [str(r.metrics) for r in again] == [str(r.metrics) for r in results]  # nan is not equal to itself
    assert experiments == [experiment]
    columns = ("step", "log_r", "band_lower", "probe_z_w")
    records, exported = (read_from[0].dynamics(columns) for read_from in (results, again))
    assert all(records[name].tobytes() == exported[name].tobytes() for name in columns)
    shutil.rmtree(store.root)
    one, other = (
        write_report(tmp_path / name, [experiment], read_from, figures=False)
        for name, read_from in (("a", results), ("b", again))
    )
    assert {"results.md", "pathways.csv", "coefficients.tex"} <= {path.name for path in one.tables}
    for path, same in zip(one.tables, other.tables, strict=True):
        assert path.read_bytes() == same.read_bytes(), path.name


def test_a_ledger_has_the_layout_of_a_store(store, tmp_path):
    """The same file names, and no word of the machine that trained."""
    experiment = runs.quickstart()
    cells = runs.cells_of(experiment)[:2]
    run = runs.write_ok(store, cells[0])
    status = json.loads(run.status.read_text()) | {"writer": {"host": "my-laptop", "pid": 7}, "attempt": "abc"}
    run.status.write_text(json.dumps(status))
    runs.make(store, cells[1], "pending", steps=20)
    write_stopped(store.experiment(experiment.name), cells[1].run_id, "ASHA stopped it at step 20")
    run_report(Request([(experiment, cells)], store.root, export=tmp_path / "ledger", figures=False))
    files = sorted(str(path.relative_to(tmp_path / "ledger")) for path in (tmp_path / "ledger").rglob("*.*"))
    expected = [f"experiments/quickstart/{name}" for name in ("experiment.yaml", "ledger.json", "stopped.json")]
    for cell, last, records in ((cells[0], 200, ["evaluation.json"]), (cells[1], 20, [])):
        names = ("config.yaml", "status.json", f"dynamics/part-00000001-{last:08d}.parquet", *records)
        expected += [f"runs/{cell.run_id}/{name}" for name in names]
    assert files == sorted(expected)
    ledger = Store.at(tmp_path / "ledger")
    assert "my-laptop" not in ledger.run(cells[0].run_id).status.read_text()
    report = run_report(Request(ledger=tmp_path / "ledger", out=tmp_path / "out", figures=False))
    assert [(result.status, result.error) for result in report.results] == [
        ("ok", ""),
        ("stopped", "ASHA stopped it at step 20"),
    ]


def test_what_is_no_ledger_is_refused(store, tmp_path):
    with pytest.raises(StoreError, match=r"has no experiments/NAME/experiment\.yaml"):
        run_report(Request(ledger=tmp_path))
    folder = tmp_path / "ledger"
    cells = runs.cells_of(runs.quickstart())[:2]
    runs.write_runs(store, cells)
    export_ledger(folder, [(runs.quickstart(), cells)], collect(store, cells))
    config = Store.at(folder).run(cells[0].run_id).config
    sound = config.read_text()
    config.write_text(sound.replace("seed: 42", "seed: soon"))
    with pytest.raises(ConfigError, match=r"config\.yaml: not valid\s+train\.seed"):
        read(folder)
    config.unlink()
    with pytest.raises(ConfigError, match=r"config\.yaml: no such file"):
        read(folder)
    config.write_text(sound)
    (folder / "experiments" / "quickstart" / "ledger.json").write_text('{"cells": [{"run_id": 1}]}')
    with pytest.raises(StoreError, match=r"ledger\.json.*run_id"):
        read(folder)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("mine")
    with pytest.raises(StoreError, match="holds other files"):
        export_ledger(tmp_path / "other", [], [])


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (Request(), "nothing to report on"),
        (Request(published=True, ledger=Path("x")), "--published and --ledger"),
        (Request(published=True, export=Path("x")), "--export-ledger needs experiment files"),
        (Request(ledger=Path("x"), from_mlflow="sqlite:///x"), "--from-mlflow needs experiment files"),
    ],
)
def test_contradicting_options_are_refused(request_, words):
    with pytest.raises(ConfigError, match=words):
        run_report(request_)


def test_several_experiments_share_their_cells(store, tmp_path):
    first = runs.quickstart()
    second = first.model_copy(update={"name": "dpo-only", "title": "", "grid": {"calibration.enabled": [False, True]}})
    experiments = [(e, runs.cells_of(e)) for e in (first, second)]
    runs.write_runs(store, experiments[0][1])
    report = run_report(Request(experiments, store.root, export=tmp_path / "ledger", figures=False))
    assert report.html == store.root / "report" / "report.html"
    assert len(report.results) == 6  # DPO's two are the same runs
    page = report.html.read_text()
    assert "2 experiments" in page
    assert "quickstart, dpo-only" in page
    exported = exported_experiments(Store.at(tmp_path / "ledger"))
    assert [(e.name, len(cells)) for e, cells in exported] == [("quickstart", 6), ("dpo-only", 2)]
