"""Worker groups under Ray Train: they train what one process trains, meet on loopback, and replace a lost worker."""

import os
import shutil
import signal
import subprocess
from dataclasses import dataclass
from functools import partial

import pytest

from rcray.config import RunConfig, load_experiment
from rcray.models.trained import load_trained
from rcray.store import Store
from rcray.sweep.grid import expand
from rcray.train.dynamics import read_dynamics
from rcray.train.launch import launch
from tests.processes import Listener
from tests.ray.sweeping import RCRAY, environment, run, wait_for, write_experiment
from tests.security.test_loopback import RAY, all_on_loopback, watched
from tests.small_runs import SMALL

pytestmark = pytest.mark.ray


def group_command(file, store):
    settings = ["--no-tracking", "--set", "execution.workers=2"]
    return [*RCRAY, "train", str(file), "--store", str(store.root), *settings]


@dataclass(frozen=True)
class Group:
    """A run that two workers trained, and every socket they listened on meanwhile."""

    store: Store
    config: RunConfig
    run_id: str
    sockets: set[Listener]


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory, model_cache) -> Group:
    folder = tmp_path_factory.mktemp("group")
    store = Store.open(folder / "store")
    shutil.copytree(model_cache, store.cache)
    file = write_experiment(folder / "small.yaml", run={**SMALL, "objective": "cpo", "calibration": True})
    (cell,) = expand(load_experiment(file))
    sockets, _ = watched(group_command(file, store))
    return Group(store, cell.config, cell.run_id, sockets)


def test_two_workers_equal_one_process(two_workers, store):
    """A real process group under Ray Train: the same records as inside one process."""
    launch(two_workers.config, store)
    rows = [read_dynamics(s.run(two_workers.run_id).dynamics).to_pandas() for s in (two_workers.store, store)]
    for name in ("loss", "z_w", "z_l", "d_w", "rho", "log_r", "log_alpha", "grad_norm", "probe_z_w", "tokens"):
        assert (rows[0][name] - rows[1][name]).abs().max() < 1e-4, name
    assert rows[0]["pathway_predicted"].equals(rows[1]["pathway_predicted"])


def test_a_worker_group_listens_on_loopback_alone(two_workers):
    """With the dashboard, Ray Train's controller, torch's rendezvous store and gloo."""
    all_on_loopback(two_workers.sockets, {*RAY, "dashboard.py", "TrainController", "RayTrainWorker"})
    meeting = [listener for listener in two_workers.sockets if "RayTrainWorker" in listener.command]
    assert len(meeting) >= 5, "of two workers: Ray, gloo, and the store of one"


@pytest.mark.slow
@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_sharded_group_equals_one_process(store, tmp_path, method):
    """FSDP2 under Ray Train: the records and the saved model of a run inside one process."""
    model = {"name": "tiny-neox", "method": method, "lora": {"r": 4, "alpha": 8}}
    file = write_experiment(
        tmp_path / "small.yaml", run={**SMALL, "model": model, "objective": "dpo", "calibration": True}
    )
    (cell,) = expand(load_experiment(file))
    place, states = store.run(cell.run_id), []
    settings = [part for name in ("parallel=fsdp", "keep_best=true") for part in ("--set", f"execution.{name}")]
    for train in (partial(run, [*group_command(file, store), *settings]), partial(launch, cell.config, store)):
        train()
        weights = dict(load_trained(place.final, store.cache).model.named_parameters())
        states.append((read_dynamics(place.dynamics).to_pandas(), weights))
        assert place.best.exists() == (len(states) == 1), "as asked for"
        place.path.rename(tmp_path / f"kept-{len(states)}")
    (sharded, weights_sharded), (whole, weights_whole) = states
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
    (cell,) = expand(load_experiment(file))
    place = store.run(cell.run_id)
    status = place.read_status
    process = subprocess.Popen(
        group_command(file, store), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        wait_for(lambda: status().step >= 6, process)
        first = status().writer.pid
        os.kill(first, signal.SIGKILL)
        output = process.communicate(timeout=600)[0].decode()
    finally:
        process.kill()
    assert process.returncode == 0, output
    assert status().status == "ok"
    assert status().writer.pid != first
    disturbed = read_dynamics(place.dynamics).to_pandas()
    place.path.rename(tmp_path / "disturbed")
    launch(cell.config, store)
    undisturbed = read_dynamics(place.dynamics).to_pandas()
    assert disturbed["step"].tolist() == list(range(1, 81))
    for name in ("loss", "z_w", "log_r", "log_alpha", "grad_norm"):
        assert (disturbed[name] - undisturbed[name]).abs().max() < 1e-3, name
