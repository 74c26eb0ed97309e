"""Runs as training leaves them in a store, without the training: records through the real recorder, in parts."""

import json
import math
from typing import Any

import yaml

from rcray.config import RunConfig, run_id
from rcray.files import read_json, write_atomic, write_json
from rcray.records.columns import COLUMNS
from rcray.store import Store
from rcray.sweep.grid import Cell
from rcray.train.dynamics import Recorder
from tests.small_runs import small_config

PART = 5  # steps between checkpoints


def make_cell(objective: Any = "dpo", rc: bool = False, steps: int = 20, **settings: Any) -> Cell:
    settings = {"data": {"train_pairs": 8 * steps}, "objective": objective, **settings}
    settings["calibration"] = {"enabled": rc, **settings.get("calibration", {})}
    config = small_config(**settings)
    return Cell(run_id(config), config, (("objective", objective), ("calibration.enabled", rc)))


def four_cells(steps: int = 20) -> list[Cell]:
    return [make_cell(objective, rc, steps) for objective in ("dpo", "cpo") for rc in (False, True)]


def row_of(config: RunConfig, step: int) -> dict[str, Any]:
    """A made-up record; every float column differs from the others and from step to step."""
    kinds: dict[str, Any] = {"int": 1, "bool": step % 2 == 0, "str": ""}
    row = {c.name: kinds.get(c.kind, (i + 1) * math.sin(step) - config.train.seed) for i, c in enumerate(COLUMNS)}
    edges = {"band_lower": -math.inf} if step == 3 else {}
    return {**row, **edges, "step": step, "seconds": 0.25, "probe_z_l": math.nan}


def train_to(store: Store, cell: Cell, step: int) -> None:
    """Adds the records up to a step, as a run under way."""
    run = store.run(cell.run_id)
    if not run.config.exists():
        write_atomic(run.config, yaml.safe_dump(cell.config.model_dump(mode="json")))
    recorder = Recorder(run.dynamics)
    for next_step in range(run.read_status().step + 1, step + 1):
        recorder.add(row_of(cell.config, next_step))
        if next_step % PART == 0 or next_step == step:
            recorder.flush()
    set_status(store, cell, "running", step=step)


def set_status(store: Store, cell: Cell, status: str, **more: Any) -> None:
    run = store.run(cell.run_id)
    before = {
        "run_id": cell.run_id,
        "label": cell.label,
        "total_steps": cell.config.total_steps,
        "step": 0,
        "error": "",
    }
    write_json(run.status, {**before, "seconds": 1.5, **read_json(run.status, {}), "status": status, **more})


def finish(store: Store, cell: Cell, accuracy: float = 0.75) -> None:
    """The rest of the records, a final model and its metrics."""
    run = store.run(cell.run_id)
    train_to(store, cell, cell.config.total_steps or 0)
    run.final.mkdir(exist_ok=True)
    (run.final / "model.safetensors").write_bytes(b"weights of " + cell.run_id.encode())
    set_status(store, cell, "ok")
    evaluate(store, cell, accuracy)


def evaluate(store: Store, cell: Cell, accuracy: float) -> None:
    row = {"benchmark": "preference", "metric": "accuracy", "value": accuracy, "stderr": 0.125, "n": 16}
    rows = [row, {"benchmark": "mmlu", "metric": "acc,none", "value": None, "stderr": None, "n": 0}]
    store.run(cell.run_id).evaluation.write_text(json.dumps({"rows": rows}))
