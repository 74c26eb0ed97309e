"""Every shipped experiment, scaled down by --tiny, from training to report. One Ray, one store: shared cells once."""

from collections import defaultdict
from pathlib import Path

import pytest

from rcray.config import load_experiment
from rcray.evaluate.stage import EvaluationStage
from rcray.pipeline import sweep
from rcray.sweep.connection import connected
from rcray.sweep.grid import expand
from rcray.sweep.runner import SweepOptions, run_sweep
from rcray.sweep.tiny import tiny_cells, tiny_experiment

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(1800)]

DRAWN = 20  # cells of a report at most: figures of more take minutes, and are the same figures
FILES = sorted((Path(__file__).parents[2] / "experiments").glob("*.yaml"))


def test_every_experiment_runs_end_to_end(store, monkeypatch):
    """First the cells of all files, since starting a sweep takes longer than such a cell; then file by file."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    files = [load_experiment(file) for file in FILES]
    experiments = [(tiny_experiment(file), tiny_cells(expand(file), {})) for file in files]
    measured_alike = defaultdict(dict)
    for experiment, cells in experiments:
        measured_alike[experiment.evaluation.benchmarks] |= {cell.run_id: (cell, experiment) for cell in cells}
    with connected(needs_dashboard=False):
        for found in measured_alike.values():
            cells, (experiment, *_) = zip(*found.values(), strict=True)
            options = SweepOptions(stages=(EvaluationStage(experiment.evaluation),))
            ledger = run_sweep(cells, store, store.experiment("all"), options)
            assert {e.label: f"{e.status} {e.error}" for e in ledger.cells if e.status not in ("ok", "cached")} == {}
        trained = {path: path.stat().st_mtime_ns for path in store.root.glob("runs/*/final")}
        for experiment, cells in experiments:
            outcome = sweep(experiment, cells, store, tracking_uri=None, figures=len(cells) <= DRAWN)
            assert {entry.status for entry in outcome.ledger.cells} == {"cached"}
            assert {store.run(cell.run_id).final for cell in cells} <= trained.keys()
            assert outcome.report.html.is_file()
            assert (store.experiment(experiment.name) / "ledger.json").is_file()
    assert {path: path.stat().st_mtime_ns for path in store.root.glob("runs/*/final")} == trained, "trained twice"
