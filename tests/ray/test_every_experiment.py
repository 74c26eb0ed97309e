"""Every shipped experiment, scaled down by --tiny, under both presets, from training to report.

What `rcray sweep FILE --tiny --set fidelity=PRESET` does. One Ray, one store: cells that files share are trained once.
"""

from collections import defaultdict
from pathlib import Path

import pytest

from rcray.cli.shared import cells_of
from rcray.config.fidelity import PRESETS
from rcray.evaluate.stage import EvaluationStage
from rcray.pipeline import sweep
from rcray.sweep.connection import connected
from rcray.sweep.runner import SweepOptions, run_sweep

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(2700)]

DRAWN = 8  # cells of a report at most: figures of more take minutes, and are the same figures
FILES = sorted((Path(__file__).parents[2] / "experiments").glob("*.yaml"))


def tiny(file: Path, preset: str):
    """The experiment under a name of its own, so that no report replaces another, and its cells."""
    experiment, cells = cells_of(file, [f"fidelity={preset}"], tiny=True)
    assert {cell.config.fidelity for cell in cells} == {preset}
    return experiment.model_copy(update={"name": f"{experiment.name}-{preset}"}), cells


def test_every_experiment_runs_end_to_end_under_both_presets(store, monkeypatch):
    """First the cells of all files, since starting a sweep takes longer than such a cell; then file by file."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    experiments = [tiny(file, preset) for file in FILES for preset in PRESETS]
    own = [cell.run_id for file in FILES for cell in cells_of(file, [], tiny=True)[1]]
    assert set(own) <= {cell.run_id for _, cells in experiments for cell in cells}, "a file's own preset is one of them"
    measured_alike = defaultdict(dict)
    for experiment, cells in experiments:
        measured_alike[experiment.evaluation.benchmarks] |= {cell.run_id: (cell, experiment) for cell in cells}
    with connected(needs_dashboard=False):
        for group in measured_alike.values():
            cells, (experiment, *_) = zip(*group.values(), strict=True)
            options = SweepOptions(stages=(EvaluationStage(experiment.evaluation),))
            ledger = run_sweep(cells, store, store.experiment("all"), options)
            assert {e.label: f"{e.status} {e.error}" for e in ledger.cells if e.status not in ("ok", "cached")} == {}
        trained = {path: path.stat().st_mtime_ns for path in store.root.glob("runs/*/final")}
        for experiment, cells in experiments:
            drawn = len(cells) <= DRAWN and set(own) >= {cell.run_id for cell in cells}
            outcome = sweep(experiment, cells, store, tracking_uri=None, figures=drawn)
            assert {entry.status for entry in outcome.ledger.cells} == {"cached"}
            assert {store.run(cell.run_id).final for cell in cells} <= trained.keys()
            assert outcome.report.html.is_file()
            assert (store.experiment(experiment.name) / "ledger.json").is_file()
    assert {path: path.stat().st_mtime_ns for path in store.root.glob("runs/*/final")} == trained, "trained twice"
