"""Exported ledgers: the same report without store or server, and a real one kept here.

quickstart-ledger/ was written by `rcray report experiments/quickstart.yaml --export-ledger DIR` after a real sweep, and
quickstart-tables/ by `rcray report --ledger tests/report/quickstart-ledger --out DIR --no-figures`.
"""

import json
import shutil
from pathlib import Path

import pytest
import runs

from rcray.aggregate.collect import collect
from rcray.aggregate.command import Request, run_report
from rcray.aggregate.figures import draw_dynamics
from rcray.aggregate.groups import compare
from rcray.aggregate.ledger import ExperimentRuns, export_ledger, read_ledger
from rcray.aggregate.report import write_report
from rcray.errors import ConfigError, StoreError
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


def test_figures_of_the_committed_ledger_are_deterministic():
    content = read_ledger(REAL)
    dpo = compare(content.results)[0]
    first, second = (draw_dynamics(dpo, dpo.with_rc[0], "nats") for _ in range(2))
    assert first.name == "dynamics-tiny-neox-dpo"
    assert first.files == second.files


def test_the_committed_ledger_is_small():
    assert 50_000 < sum(path.stat().st_size for path in REAL.rglob("*") if path.is_file()) < 400_000


def test_a_ledger_gives_what_the_store_gives(store, tmp_path):
    experiment = runs.quickstart()
    cells = runs.cells_of(experiment)
    runs.write_runs(store, cells[:3])
    runs.make(store, cells[3], "failed", error="it broke", steps=30)
    runs.make(store, cells[4], "oom")
    runs.write_ok(store, cells[5])
    store.run(cells[5].run_id).evaluation.write_text("{")  # damaged: failed, with its reason
    results = collect(store, cells)
    owned = [ExperimentRuns(experiment, tuple(cell.run_id for cell in cells))]
    export_ledger(tmp_path / "ledger", owned, results)
    content = read_ledger(tmp_path / "ledger")
    assert [r.status for r in content.results] == [r.status for r in results]
    assert [r.error for r in content.results] == [r.error for r in results]
    assert [r.cell.label for r in content.results] == [r.cell.label for r in results]
    assert str(content.results[0].summary) == str(results[0].summary)  # nan is not equal to itself
    assert content.results[0].metrics.keys() == results[0].metrics.keys()
    assert content.experiments == tuple(owned)
    shutil.rmtree(store.root)
    from_ledger = write_report(tmp_path / "a", content.experiments, content.results, figures=False)
    runs.write_runs(Store.open(store.root), cells[:3])
    names = {path.name for path in from_ledger.tables}
    assert {"results.md", "pathways.csv", "coefficients.tex"} <= names
    before = write_report(tmp_path / "b", owned, results, figures=False)
    for one, other in zip(from_ledger.tables, before.tables, strict=True):
        assert one.read_bytes() == other.read_bytes(), one.name
    columns = ("step", "log_r", "band_lower", "probe_z_w")
    records = content.results[0].dynamics(columns)
    runs_again = collect(store, cells)[0].dynamics(columns)
    assert all(records[name].tobytes() == runs_again[name].tobytes() for name in columns)


def test_what_is_no_ledger_is_refused(store, tmp_path):
    with pytest.raises(StoreError, match=r"no ledger\.json"):
        read_ledger(tmp_path)
    folder = tmp_path / "ledger"
    cells = runs.cells_of(runs.quickstart())[:2]
    runs.write_runs(store, cells)
    owned = [ExperimentRuns(runs.quickstart(), tuple(cell.run_id for cell in cells))]
    export_ledger(folder, owned, collect(store, cells))
    lines = (folder / "runs.jsonl").read_text().splitlines()
    (folder / "runs.jsonl").write_text(lines[0] + "\n" + lines[1][:-40])
    with pytest.raises(StoreError, match=r"runs\.jsonl, line 2"):
        read_ledger(folder)
    broken = json.loads(lines[0])
    broken["config"]["train"]["seed"] = "soon"
    (folder / "runs.jsonl").write_text(json.dumps(broken))
    with pytest.raises(StoreError, match=r"line 1: .*train\.seed"):
        read_ledger(folder)
    (folder / "ledger.json").write_text('{"format": 99}')
    with pytest.raises(StoreError, match="format 99"):
        read_ledger(folder)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("mine")
    with pytest.raises(StoreError, match="holds other files"):
        export_ledger(tmp_path / "other", owned, [])


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
    assert [len(e.run_ids) for e in read_ledger(tmp_path / "ledger").experiments] == [6, 2]
