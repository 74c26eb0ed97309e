"""Whole sweeps on a real local Ray cluster, through the real command line."""

import json
import os
import signal
import subprocess
import time

import pytest

from rcray.config import load_experiment
from rcray.sweep.grid import expand
from rcray.train.dynamics import read_dynamics
from tests.ray.sweeping import RCRAY, environment, run, sweep_command, tracked, wait_for, write_experiment
from tests.small_runs import SMALL

pytestmark = pytest.mark.ray


def sync_until_done(store, seconds=600):
    deadline = time.monotonic() + seconds
    while subprocess.run([*RCRAY, "sync", "--store", str(store.root)], env=environment()).returncode:
        assert time.monotonic() < deadline, "it is never delivered"


def test_a_killed_sweep_continues(store, tmp_path):
    """Two cells are done when it is killed; the others wait on their way, however busy the machine is."""
    gate = tmp_path / "gate"
    gate.touch()
    file = write_experiment(
        tmp_path / "small.yaml",
        run={**SMALL, "data": {"train_pairs": 320, "eval_pairs": 16}},
        grid={"objective": ["dpo", "my_objectives:waits"], "calibration.enabled": [False, True]},
    )
    cells = expand(load_experiment(file))
    runs = {cell.run_id: store.run(cell.run_id) for cell in cells}

    def finished():
        return {key for key, run in runs.items() if run.read_status().status == "ok"}

    def half_way():
        under_way = [r for r in runs.values() if r.read_status().status == "running"]
        return len(finished()) >= 2 and any(r.read_status().step >= 6 for r in under_way)

    process = subprocess.Popen(
        sweep_command(file, store),
        env={**environment(), "RCRAY_TEST_GATE": str(gate)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(half_way, process)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        gate.unlink()
    done_before = {key: (runs[key].final / "model.safetensors").stat().st_mtime_ns for key in finished()}
    assert 2 <= len(done_before) < len(cells)

    output = run(sweep_command(file, store))
    if "rcray sync" in output:  # the killed sweep's follower was at it for longer than the second one's would wait
        sync_until_done(store)

    assert output.count("cached") >= len(done_before)
    assert finished() == set(runs)
    for key, changed in done_before.items():
        assert (runs[key].final / "model.safetensors").stat().st_mtime_ns == changed, "trained again"
    ledger = json.loads((store.experiment("small") / "ledger.json").read_text())
    assert sorted(ledger["tally"]) == ["cached", "ok"]
    client, parents, tracked_cells = tracked(store)
    assert len(parents) == 1
    assert set(tracked_cells) == set(runs)
    for key, tracked_run in tracked_cells.items():
        steps = sorted(point.step for point in client.get_metric_history(tracked_run.info.run_id, "z_w"))
        assert steps == list(range(1, 41)), "every step once"
        assert tracked_run.info.status == "FINISHED"
        assert tracked_run.data.metrics["preference/accuracy"] == pytest.approx(
            json.loads(runs[key].evaluation.read_text())["rows"][0]["value"]
        )
    assert parents[0].info.status == "FINISHED"


@pytest.mark.slow
def test_ctrl_c_stops_cleanly_and_the_same_command_continues(store, tmp_path):
    settings = {**SMALL, "data": {"train_pairs": 640, "eval_pairs": 16}}
    file = write_experiment(tmp_path / "small.yaml", run=settings, grid={"objective": ["dpo", "cpo"]})
    runs = [store.run(cell.run_id) for cell in expand(load_experiment(file))]
    command = [*sweep_command(file, store), "--no-tracking"]
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        wait_for(lambda: any(r.read_status().step >= 6 for r in runs), process)
        os.kill(process.pid, signal.SIGINT)
        output = process.communicate(timeout=600)[0]
    finally:
        process.kill()
    assert process.returncode == 130, output
    assert "Traceback" not in output
    tally = json.loads((store.experiment("small") / "ledger.json").read_text())["tally"]
    assert tally.get("pending", 0) >= 1
    assert "running" not in tally

    run(command)
    assert {r.read_status().status for r in runs} == {"ok"}
    for tracked_run in runs:
        assert read_dynamics(tracked_run.dynamics)["step"].to_pylist() == list(range(1, 81)), "every step once"
