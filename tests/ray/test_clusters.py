"""Several real nodes on one machine: cells spread over them, one node dies, an autoscaler brings more."""

import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psutil
import pytest
import ray
import yaml
from ray.cluster_utils import Cluster

from rcray.config import load_experiment, run_id
from rcray.sweep.grid import expand
from rcray.train import launch
from rcray.train.dynamics import read_dynamics
from tests.ray.heads import running_head
from tests.ray.sweeping import environment, sweep_command, wait_for, write_experiment
from tests.small_runs import SMALL, small_config

pytestmark = pytest.mark.ray

STEPS = 40
LONGER = {**SMALL, "data": {"train_pairs": 8 * STEPS, "eval_pairs": 16}}


@pytest.fixture
def gate(tmp_path, monkeypatch):
    """While this file is there, cells of one objective wait on their way."""
    path = tmp_path / "gate"
    path.touch()
    # As nice as in a Ray that rcray starts: beside a sweep of such a one, nicer workers wait for minutes.
    for name, value in {**environment(), "RCRAY_TEST_GATE": str(path), "RAY_worker_niceness": "0"}.items():
        monkeypatch.setenv(name, value)
    yield path
    path.unlink(missing_ok=True)


@contextmanager
def two_nodes_and_a_head(head_cpus):
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": head_cpus, "include_dashboard": False})
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=1)
        yield cluster
    finally:
        cluster.shutdown()


@pytest.fixture
def three_nodes(gate):
    with two_nodes_and_a_head(1) as cluster:
        yield cluster


def raylet_pid(node):
    return node.all_processes["raylet"][0].process.pid


def node_of(run):
    """The raylet under which a run's writer lives."""
    writer = run.read_status().writer
    try:
        return psutil.Process(writer.pid).ppid() if writer else None
    except psutil.NoSuchProcess:
        return None


@pytest.mark.slow
def test_cells_spread_over_nodes_and_outlive_one(three_nodes, gate, store, tmp_path):
    """One cell is done and three wait on three nodes when one of these dies, however busy the machine is."""
    waiting = [{"name": "my_objectives:waits", "params": {"beta": beta}} for beta in (0.1, 0.2, 0.3)]
    file = write_experiment(tmp_path / "small.yaml", run=LONGER, grid={"objective": ["dpo", *waiting]})
    runs = [store.run(cell.run_id) for cell in expand(load_experiment(file))]
    raylets = {raylet_pid(node): node for node in three_nodes.list_all_nodes()}
    workers = {raylet_pid(node) for node in three_nodes.worker_nodes}
    used = set()

    def status(run):
        return run.read_status().status

    def worth_killing():
        """A cell is done, and another is half way on a node that is not the head."""
        used.update(node_of(run) for run in runs if status(run) == "running")
        half_way = [r for r in runs if status(r) == "running" and r.read_status().step >= 6]
        on_workers = {node_of(run) for run in half_way} & workers
        return on_workers if any(status(run) == "ok" for run in runs) and len(used & set(raylets)) == 3 else None

    process = subprocess.Popen(
        [*sweep_command(file, store), "--no-tracking"],
        env={**environment(), "RAY_ADDRESS": three_nodes.address},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        wait_for(worth_killing, process)
        doomed = worth_killing().pop()
        lost = next(run for run in runs if status(run) == "running" and node_of(run) == doomed)
        before = {
            run.run_id: (run.final / "model.safetensors").stat().st_mtime_ns for run in runs if status(run) == "ok"
        }
        three_nodes.remove_node(raylets[doomed], allow_graceful=False)
        gate.unlink()
        output = process.communicate(timeout=600)[0]
    finally:
        process.kill()
    assert process.returncode == 0, output
    assert used >= set(raylets), "every node had cells"
    assert {status(run) for run in runs} == {"ok"}
    for run in runs:
        assert read_dynamics(run.dynamics)["step"].to_pylist() == list(range(1, STEPS + 1)), "every step once"
        if run.run_id in before:
            assert (run.final / "model.safetensors").stat().st_mtime_ns == before[run.run_id], "trained again"
    assert lost.run_id not in before
    assert f"{len(runs)} ok" in output


@pytest.fixture
def two_workers_nodes(gate):
    """A head that holds no worker, and two nodes that do."""
    with two_nodes_and_a_head(0) as cluster:
        yield cluster
        ray.shutdown()


@pytest.mark.slow
def test_a_worker_group_outlives_the_node_that_ray_gives_it_up_for(two_workers_nodes, gate, store, monkeypatch):
    """Ray counts a node like a process: here it is to start no group again at all."""
    monkeypatch.setattr(launch, "WORKER_RETRIES", 0)
    ray.init(address=two_workers_nodes.address, log_to_driver=False)
    waiting = {"name": "my_objectives:waits", "params": {"beta": 0.1}}
    config = small_config(data=LONGER["data"], objective=waiting, execution={"workers": 1, "checkpoint_every": 2})
    run, raylets = store.run(run_id(config)), {raylet_pid(node): node for node in two_workers_nodes.worker_nodes}
    with ThreadPoolExecutor(1) as thread:
        training = thread.submit(launch.launch, config, store)
        deadline = time.monotonic() + 300
        while run.read_status().step < 6:
            assert not training.done() and time.monotonic() < deadline
            time.sleep(0.2)
        two_workers_nodes.remove_node(raylets[node_of(run)], allow_graceful=False)
        gate.unlink()
        status = training.result(timeout=400)
    assert status.status == "ok" and status.step == STEPS
    assert read_dynamics(run.dynamics)["step"].to_pylist() == list(range(1, STEPS + 1)), "every step once"


GONE = "of type gpu (idle)"  # the monitor's word for nodes it took away
AUTOSCALING = {
    "cluster_name": "fake",
    "max_workers": 2,
    "idle_timeout_minutes": 0.2,
    "upscaling_speed": 10,
    "head_node_type": "ray.head.default",
    **{name: {} for name in ("auth", "docker", "file_mounts")},
    **{name: [] for name in ("cluster_synced_files", "initialization_commands", "rsync_exclude", "rsync_filter")},
    **{name: [] for name in ("setup_commands", "head_setup_commands", "worker_setup_commands")},
    **{name: [] for name in ("head_start_ray_commands", "worker_start_ray_commands")},
    "file_mounts_sync_continuously": False,
    "available_node_types": {
        "ray.head.default": {"resources": {"CPU": 1}, "node_config": {}, "max_workers": 0},
        "gpu": {"resources": {"CPU": 1, "GPU": 1}, "node_config": {}, "min_workers": 0, "max_workers": 2},
    },
}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_grid_that_needs_gpus_brings_nodes_up_and_they_go_again(store, tmp_path):
    """Ray's own autoscaler over its fake provider: no GPU at the start, two nodes with one each while cells wait."""
    from ray.autoscaler._private.fake_multi_node.node_provider import FAKE_HEAD_NODE_ID

    run_settings = {**LONGER, "execution": {"gpus_per_worker": 1, "checkpoint_every": 10}}
    file = write_experiment(tmp_path / "small.yaml", run=run_settings, grid={"objective": ["dpo", "cpo", "ipo"]})
    cluster_file = tmp_path / "cluster.yaml"

    def configure(gcs_port):
        # Without use_node_id_as_ip the nodes of one machine have one address between them, the load of each is lost,
        # and none is ever seen idle.
        provider = {"type": "fake_multinode", "gcs_address": f"127.0.0.1:{gcs_port}", "use_node_id_as_ip": True}
        content = {
            **AUTOSCALING,
            "provider": {**provider, "disable_node_updaters": True, "disable_launch_config_check": True},
        }
        cluster_file.write_text(yaml.safe_dump(content))
        return [f"--autoscaling-config={cluster_file}", "--num-cpus=1", "--num-gpus=0"]

    head = running_head(
        configure,
        RAY_FAKE_CLUSTER="1",
        RAY_OVERRIDE_NODE_ID_FOR_TESTING=FAKE_HEAD_NODE_ID,
        PYTHONPATH=environment()["PYTHONPATH"],
    )
    with head as started:
        command = [*sweep_command(file, store), "--no-tracking", "--cluster", str(cluster_file)]
        done = subprocess.run(
            command,
            env={**environment(), **started.environment, "RAY_ADDRESS": started.gcs, "COLUMNS": "160"},
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "3 ok" in done.stdout
        monitor = next((started.log.parent).glob("session_*/logs/monitor.log"))
        assert "of type gpu." in monitor.read_text(), "nodes came up"
        deadline = time.monotonic() + 600
        while GONE not in monitor.read_text():
            assert time.monotonic() < deadline, monitor.read_text()[-3000:]
            time.sleep(1)
