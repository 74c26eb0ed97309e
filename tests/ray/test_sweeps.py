"""Whole sweeps on a real local Ray cluster, through the real command line."""

import json
import os
import signal
import subprocess

import pytest

from rcray.config import load_experiment
from rcray.models.trained import load_trained
from rcray.sweep.grid import expand
from rcray.train.dynamics import read_dynamics
from tests.ray.sweeping import RCRAY, environment, run, sweep_command, tracked, wait_for, write_experiment
from tests.small_runs import SMALL

pytestmark = pytest.mark.ray


def test_a_killed_sweep_continues(store, tmp_path):
    file = write_experiment(
        tmp_path / "small.yaml",
        run={**SMALL, "data": {"train_pairs": 320, "eval_pairs": 16}},
        grid={"objective": ["dpo", "cpo"], "calibration.enabled": [False, True]},
    )
    cells = expand(load_experiment(file))
    runs = {cell.run_id: store.run(cell.run_id) for cell in cells}

    def finished():
        return {key for key, found in runs.items() if found.read_status().status == "ok"}

    def half_way():
        under_way = [r for r in runs.values() if r.read_status().status == "running"]
        return len(finished()) >= 2 and any(r.read_status().step >= 6 for r in under_way)

    process = subprocess.Popen(
        sweep_command(file, store), env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_for(half_way, process)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    done_before = {key: (runs[key].final / "model.safetensors").stat().st_mtime_ns for key in finished()}
    assert 2 <= len(done_before) < len(cells)

    output = run(sweep_command(file, store))

    assert output.count("cached") >= len(done_before)
    assert finished() == set(runs)
    for key, changed in done_before.items():
        assert (runs[key].final / "model.safetensors").stat().st_mtime_ns == changed, "trained again"
    ledger = json.loads((store.experiment("small") / "ledger.json").read_text())
    assert sorted(ledger["tally"]) == ["cached", "ok"]
    client, parents, tracked_cells = tracked(store)
    assert len(parents) == 1
    assert set(tracked_cells) == set(runs)
    for key, found in tracked_cells.items():
        steps = sorted(point.step for point in client.get_metric_history(found.info.run_id, "z_w"))
        assert steps == list(range(1, 41)), "every step once"
        assert found.info.status == "FINISHED"
        assert found.data.metrics["preference/accuracy"] == pytest.approx(
            json.loads(runs[key].evaluation.read_text())["rows"][0]["value"]
        )
    assert parents[0].info.status == "FINISHED"


def test_two_workers_equal_one_process(store, tmp_path):
    """A real process group under Ray Train: the same records as inside one process."""
    file = write_experiment(tmp_path / "small.yaml", run={**SMALL, "objective": "cpo", "calibration": True})
    key = expand(load_experiment(file))[0].run_id
    rows = []
    for workers in (2, 0):
        settings = ["--no-tracking", "--set", f"execution.workers={workers}"]
        run([*RCRAY, "train", str(file), "--store", str(store.root), *settings])
        rows.append(read_dynamics(store.run(key).dynamics).to_pandas())
        store.run(key).path.rename(tmp_path / f"workers-{workers}")
    for name in ("loss", "z_w", "z_l", "d_w", "rho", "log_r", "log_alpha", "grad_norm", "probe_z_w", "tokens"):
        assert (rows[0][name] - rows[1][name]).abs().max() < 1e-4, name
    assert rows[0]["pathway_predicted"].equals(rows[1]["pathway_predicted"])


@pytest.mark.slow
@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_sharded_group_equals_one_process(store, tmp_path, method):
    """FSDP2 under Ray Train: the records and the saved model of a run inside one process."""
    model = {"name": "tiny-neox", "method": method, "lora": {"r": 4, "alpha": 8}}
    file = write_experiment(
        tmp_path / "small.yaml", run={**SMALL, "model": model, "objective": "dpo", "calibration": True}
    )
    key = expand(load_experiment(file))[0].run_id
    found = []
    for settings in (("workers=2", "parallel=fsdp", "keep_best=true"), ("workers=0",)):
        options = [part for setting in settings for part in ("--set", f"execution.{setting}")]
        run([*RCRAY, "train", str(file), "--store", str(store.root), "--no-tracking", *options])
        place = store.run(key)
        weights = dict(load_trained(place.final, store.cache).model.named_parameters())
        found.append((read_dynamics(place.dynamics).to_pandas(), weights))
        assert place.best.exists() == ("keep_best=true" in settings)
        place.path.rename(tmp_path / settings[0])
    (sharded, weights_sharded), (whole, weights_whole) = found
    for name in ("loss", "z_w", "rho", "log_r", "log_alpha", "grad_norm", "probe_z_w"):
        gap = (sharded[name] - whole[name]).abs()
        assert gap[:2].max() < 1e-4, name
        assert gap.max() < 2e-2, name  # Adam blows up what rounding left of gradients that are zero
    assert weights_sharded.keys() == weights_whole.keys()
    apart = [(weights_sharded[n] - weights_whole[n]).abs().mean().item() for n in weights_whole]
    assert max(apart) < 1e-4  # a step is 1e-4: eight of them would leave more than that


@pytest.mark.slow
def test_a_killed_worker_is_replaced_and_the_run_goes_on(store, tmp_path):
    """SIGKILL of the worker that writes: Ray Train makes a new group, which resumes from the last checkpoint."""
    settings = {**SMALL, "data": {"train_pairs": 640, "eval_pairs": 16}, "objective": "cpo", "calibration": True}
    file = write_experiment(tmp_path / "small.yaml", run=settings)
    key = expand(load_experiment(file))[0].run_id
    status = store.run(key).read_status
    command = [*RCRAY, "train", str(file), "--store", str(store.root), "--no-tracking"]
    process = subprocess.Popen(
        [*command, "--set", "execution.workers=2"], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        wait_for(lambda: status().step >= 6, process)
        first = status().writer.pid
        os.kill(first, signal.SIGKILL)
        output = process.communicate(timeout=180)[0].decode()
    finally:
        process.kill()
    assert process.returncode == 0, output
    assert status().status == "ok"
    assert status().writer.pid != first
    disturbed = read_dynamics(store.run(key).dynamics).to_pandas()
    store.run(key).path.rename(tmp_path / "disturbed")
    run(command)
    undisturbed = read_dynamics(store.run(key).dynamics).to_pandas()
    assert disturbed["step"].tolist() == list(range(1, 81))
    for name in ("loss", "z_w", "log_r", "log_alpha", "grad_norm"):
        assert (disturbed[name] - undisturbed[name]).abs().max() < 1e-3, name


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
        output = process.communicate(timeout=90)[0]
    finally:
        process.kill()
    assert process.returncode == 130, output
    assert "Traceback" not in output
    tally = json.loads((store.experiment("small") / "ledger.json").read_text())["tally"]
    assert tally.get("pending", 0) >= 1
    assert "running" not in tally

    run(command)
    assert {r.read_status().status for r in runs} == {"ok"}
    for found in runs:
        assert read_dynamics(found.dynamics)["step"].to_pylist() == list(range(1, 81)), "every step once"
