"""Every shipped experiment, scaled down by --tiny, from training to report. One Ray, one store: shared cells once."""

from pathlib import Path

import pytest

from rcray.config import load_experiment
from rcray.pipeline import sweep
from rcray.sweep.connection import connect
from rcray.sweep.grid import expand
from rcray.sweep.tiny import tiny_cells, tiny_experiment

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(1800)]

GOOD = ("ok", "cached")
FILES = sorted((Path(__file__).parents[2] / "experiments").glob("*.yaml"))


def test_every_experiment_runs_end_to_end(store, monkeypatch):
    import ray

    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    connect(needs_dashboard=False)
    wrong, seen = {}, {}
    try:
        for file in FILES:
            experiment = load_experiment(file)
            outcome = sweep(tiny_experiment(experiment), tiny_cells(expand(experiment), {}), store, tracking_uri=None)
            entries = outcome.ledger.cells
            wrong |= {f"{file.stem}: {e.label}": f"{e.status} {e.error}" for e in entries if e.status not in GOOD}
            # A later file may measure a shared cell on more benchmarks; it does not train it again.
            made = {e.run_id: store.run(e.run_id).final.stat().st_mtime_ns for e in entries if e.status in GOOD}
            assert all(seen[key] == made[key] for key in seen.keys() & made.keys()), "trained twice"
            seen |= made
            assert outcome.report.html.is_file()
            assert (store.experiment(f"{file.stem}-tiny") / "ledger.json").is_file()
    finally:
        ray.shutdown()
    assert not wrong
