"""What must be so after every fault: the tables of an undisturbed run, every step once, nothing doubled at MLflow."""

import json
from collections import Counter
from pathlib import Path

from mlflow.tracking import MlflowClient

from rcray.train.dynamics import read_dynamics
from tests.campaign.faults.ground import NAME, Ground

#: Measures the machine, not the models.
MACHINE_TABLES = ("runtime",)


def tables(ground: Ground) -> dict[str, bytes]:
    files = sorted((ground.experiment / "tables").iterdir())
    return {path.name: path.read_bytes() for path in files if path.stem not in MACHINE_TABLES}


def kept_tables(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def differing(ground: Ground, undisturbed: dict[str, bytes]) -> list[str]:
    """Names of tables that are missing, new or of other bytes."""
    ours = tables(ground)
    return sorted(name for name in ours.keys() | undisturbed.keys() if ours.get(name) != undisturbed.get(name))


def check_runs(ground: Ground) -> None:
    tally = json.loads((ground.experiment / "ledger.json").read_text())["tally"]
    assert set(tally) <= {"ok", "cached"}, f"the ledger says {tally}"
    for cell in ground.cells():
        run = ground.store.run(cell.run_id)
        status = run.read_status()
        assert status.status == "ok", status
        steps = read_dynamics(run.dynamics)["step"].to_pylist()
        assert steps == list(range(1, cell.config.total_steps + 1)), f"{cell.label}: steps {steps}"
        left = sorted(path.name for path in run.path.iterdir() if path.name.startswith((".building", ".old")))
        assert not left, f"{cell.label}: half-written {left}"


def check_tracked(ground: Ground, uri: str) -> None:
    """One parent, one run for each cell, every point once."""
    client = MlflowClient(uri)
    runs = client.search_runs([client.get_experiment_by_name(NAME).experiment_id])
    parents = [run for run in runs if run.data.tags["rcray.kind"] == "sweep"]
    cells = {run.data.tags["rcray.run_id"]: run for run in runs if run.data.tags["rcray.kind"] == "cell"}
    assert len(parents) == 1, f"{len(parents)} parents"
    assert len(runs) == 1 + len(cells), "a cell has two MLflow runs"
    assert set(cells) == {cell.run_id for cell in ground.cells()}
    assert {run.info.status for run in runs} == {"FINISHED"}, [run.info.status for run in runs]
    for cell in ground.cells():
        run = cells[cell.run_id]
        for key in run.data.metrics:
            points = Counter(point.step for point in client.get_metric_history(run.info.run_id, key))
            doubled = [step for step, count in points.items() if count > 1]
            assert not doubled, f"{cell.label}: {key} has steps {doubled[:5]} twice"
            if key == "z_w":
                assert sorted(points) == list(range(1, cell.config.total_steps + 1)), f"{cell.label}: {sorted(points)}"
        assert "preference/accuracy" in run.data.metrics, f"{cell.label}: no accuracy at MLflow"
