"""ASHA on a real local Ray: what falls behind is stopped, the rest is trained to its end, and nothing is repeated."""

import json

import pytest

from rcray.config import load_experiment
from rcray.sweep.grid import expand
from tests.ray.sweeping import run, sweep_command, write_experiment
from tests.small_runs import SMALL

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def test_asha_stops_what_falls_behind(store, tmp_path):
    train = {**SMALL["train"], "probe_every": 2}
    del train["learning_rate"]
    file = write_experiment(
        tmp_path / "small.yaml",
        run={"data": {"train_pairs": 320, "eval_pairs": 16}, "train": train},
        search={
            "method": "asha",
            "samples": 6,
            "grace_steps": 4,
            "reduction": 2,
            "space": {"train.learning_rate": {"low": 1e-7, "high": 3e-4, "scale": "log"}},
        },
    )
    cells = expand(load_experiment(file))
    command = [*sweep_command(file, store), "--no-tracking"]
    output = run(command)
    ledger = json.loads((store.experiment("small") / "ledger.json").read_text())
    steps = {entry["run_id"]: entry["step"] for entry in ledger["cells"]}
    assert set(ledger["tally"]) == {"ok", "stopped"}
    assert sum(ledger["tally"].values()) == len(cells)
    stopped = [entry for entry in ledger["cells"] if entry["status"] == "stopped"]
    assert all("ASHA stopped it at step" in entry["note"] for entry in stopped)
    assert all(steps[entry["run_id"]] < 40 for entry in stopped)
    assert "best preference/accuracy" in output
    assert "stopped" in (store.experiment("small") / "tables" / "results.md").read_text()

    again = run(command)
    assert "running" not in again, "a stopped run is not tried again by the same search"
