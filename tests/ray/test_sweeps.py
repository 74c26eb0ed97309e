"""Whole sweeps on a real local Ray cluster, through the real command line."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from rcray.config import load_experiment
from rcray.models.trained import load_trained
from rcray.sweep.grid import expand
from rcray.train.dynamics import read_dynamics
from tests.ray.sweeping import RCRAY, environment, run, sweep_command, wait_for, write_experiment
from tests.small_runs import SMALL

pytestmark = pytest.mark.ray


def tracked(store):
    """The parent runs and the cell runs in the store's MLflow database."""
    client = MlflowClient(store.default_tracking_uri)
    experiment = client.get_experiment_by_name("small")
    runs = client.search_runs([experiment.experiment_id])
    parents = [r for r in runs if r.data.tags["rcray.kind"] == "sweep"]
    cells = {r.data.tags["rcray.run_id"]: r for r in runs if r.data.tags["rcray.kind"] == "cell"}
    assert len(parents) + len(cells) == len(runs), "a cell has two MLflow runs"
    return client, parents, cells


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


def test_a_failing_cell_does_not_stop_the_others(store, tmp_path):
    names = ["my_objectives:squared_hinge", "my_objectives:broken", "my_objectives:not_a_number"]
    file = write_experiment(
        tmp_path / "small.yaml",
        run={**SMALL, "calibration": True},
        grid={"objective": [*names, "dpo"]},
    )
    output = run(sweep_command(file, store), expect=1)

    by_name = {cell.config.objective.name: store.run(cell.run_id) for cell in expand(load_experiment(file))}
    statuses = {name: found.read_status().status for name, found in by_name.items()}
    assert statuses == dict(zip([*names, "dpo"], ["ok", "failed", "degenerate", "ok"], strict=True))
    assert "this objective always fails" in output
    assert "loss nan on training pair" in by_name[names[2]].read_status().error
    assert "Traceback" in (by_name[names[1]].path / "error.log").read_text()
    _, _, cells = tracked(store)
    assert sorted(r.info.status for r in cells.values()) == ["FAILED", "FAILED", "FINISHED", "FINISHED"]


def test_two_workers_equal_one_process(store, tmp_path):
    """A real process group under Ray Train: the same records as inside one process."""
    file = write_experiment(tmp_path / "small.yaml", run={**SMALL, "objective": "cpo", "calibration": True})
    key = expand(load_experiment(file))[0].run_id
    rows = []
    for workers in (2, 0):
        run([*RCRAY, "train", str(file), "--store", str(store.root), "--set", f"execution.workers={workers}"])
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


def test_an_objective_of_ones_own_runs_through_the_quickstart_grid(store):
    """Named by its import path, and given nothing else: incentives, band and calibration are all there."""
    file = Path(__file__).parents[2] / "experiments" / "quickstart.yaml"
    overrides = {"objective": "my_objectives:squared_hinge", "data.train_pairs": "64", "data.eval_pairs": "16"}
    settings = [part for name, value in overrides.items() for part in ("--set", f"{name}={value}")]
    run([*sweep_command(file, store), *settings, "--no-tracking"])

    cells = expand(load_experiment(file), overrides)
    assert [cell.config.calibration.enabled for cell in cells] == [False, True]
    without, with_rc = (read_dynamics(store.run(cell.run_id).dynamics).to_pandas() for cell in cells)
    for rows in (without, with_rc):
        assert (rows["d_w"] > rows["d_l"]).all()
        assert rows["rho"].between(-1, 1).all()
    assert (without["log_alpha"] == 0).all()
    assert (with_rc["log_alpha"] < 0).all()  # the winner's pull is the stronger one, so it is reined in
    assert with_rc["slack"].mean() > without["slack"].mean()


@pytest.mark.slow
def test_a_killed_worker_is_replaced_and_the_run_goes_on(store, tmp_path):
    """SIGKILL of the worker that writes: Ray Train makes a new group, which resumes from the last checkpoint."""
    settings = {**SMALL, "data": {"train_pairs": 640, "eval_pairs": 16}, "objective": "cpo", "calibration": True}
    file = write_experiment(tmp_path / "small.yaml", run=settings)
    key = expand(load_experiment(file))[0].run_id
    status = store.run(key).read_status
    command = [*RCRAY, "train", str(file), "--store", str(store.root)]
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
