"""ASHA on a real local Ray: what falls behind is stopped, the rest is trained to its end, and nothing is repeated."""

import json

import pytest

from rcray.config import load_experiment
from rcray.sweep.grid import expand
from tests.ray.sweeping import sweep_here, write_experiment
from tests.small_runs import SMALL

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def test_asha_stops_what_falls_behind(one_ray, store, tmp_path):
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
    output = sweep_here(file, store, "--no-tracking", "--concurrency", "2")
    ledger = json.loads((store.experiment("small") / "ledger.json").read_text())
    steps = {entry["run_id"]: entry["step"] for entry in ledger["cells"]}
    assert set(ledger["tally"]) == {"ok", "stopped"}
    assert sum(ledger["tally"].values()) == len(cells)
    stopped = [entry for entry in ledger["cells"] if entry["status"] == "stopped"]
    assert all("ASHA stopped it at step" in entry["note"] for entry in stopped)
    assert all(steps[entry["run_id"]] < 40 for entry in stopped)
    assert "best preference/accuracy" in output
    assert "stopped" in (store.experiment("small") / "tables" / "results.md").read_text()

    again = sweep_here(file, store, "--no-tracking")
    assert "running" not in again, "a stopped run is not tried again by the same search"


@pytest.mark.parametrize(
    ("method", "steps"),
    [("random", 1), ("optuna", 1), ("asha", 2)],  # after one step the evaluation meets the collapse, after two training
)
def test_a_degenerate_point_is_listed_and_never_the_best(one_ray, store, tmp_path, method, steps):
    train = {**SMALL["train"], "probe_every": 1}
    del train["learning_rate"]
    file = write_experiment(
        tmp_path / "small.yaml",
        run={"data": {"train_pairs": 8 * steps, "eval_pairs": 16}, "train": train},
        search={
            "method": method,
            "samples": 2,
            "batch": 2,
            "seed": 98,  # the first point is near 1e30, the second near 1e-5
            "grace_steps": 1,
            "space": {"train.learning_rate": {"low": 1e-6, "high": 1e30, "scale": "log"}},
        },
    )
    sound, absurd = sorted(expand(load_experiment(file)), key=lambda cell: cell.config.train.learning_rate)
    output = sweep_here(file, store, "--no-tracking", expect=1)
    ledger = json.loads((store.experiment("small") / "ledger.json").read_text())
    states = {entry["run_id"]: entry["status"] for entry in ledger["cells"]}
    assert states == {sound.run_id: "ok", absurd.run_id: "degenerate"}
    assert f"(run {sound.run_id})" in output, "the best is the one that has a score"
