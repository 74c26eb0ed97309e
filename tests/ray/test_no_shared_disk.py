"""A whole sweep over nodes that share no disk: what they train goes through a real S3 server, and comes to the head.

Each node is given a mount namespace of its own, in which the store's path is another, empty disk.
"""

import contextlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from rcray.config import load_experiment
from rcray.sweep.grid import expand
from rcray.train.dynamics import read_dynamics
from rcray.train.launch import launch
from tests.buckets import objects, s3_bucket
from tests.ray.heads import running_head
from tests.ray.sweeping import environment, run, sweep_command, sweep_here, tracked, wait_for, write_experiment
from tests.small_runs import SMALL, records

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(1500)]

STEPS = 24
ISOLATED = ("unshare", "--mount", "--propagation", "private")
MOUNT = 'mount -t tmpfs none "$0" && cp -r "$1" "$0/cache" && shift && exec "$@"'


def can_isolate():
    with contextlib.suppress(OSError):
        return not subprocess.run([*ISOLATED, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True).returncode
    return False


@contextlib.contextmanager
def node(head, store, models):
    """A node of one CPU that has another disk where the others have the store."""
    ray = [str(Path(sys.executable).with_name("ray")), "start", f"--address={head.gcs}", "--block", "--num-cpus=1"]
    ray += ["--node-ip-address=127.0.0.1", "--disable-usage-stats"]
    command = [*ISOLATED, "sh", "-ec", MOUNT, str(store.root), str(models), *ray]
    log = head.log.parent / f"node-{os.urandom(4).hex()}.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            env={**environment(), **head.environment},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        deadline = time.monotonic() + 120
        while "Ray runtime started" not in log.read_text():
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.2)
        yield process
    finally:
        kill(process)


def kill(process):
    """A node with all its processes, as when a spot instance is taken away."""
    family = []
    with contextlib.suppress(psutil.NoSuchProcess):
        parent = psutil.Process(process.pid)
        family = [parent, *parent.children(recursive=True)]
    for each in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    process.wait()


def runs_on(process, store):
    """The runs on a node's own disk, seen through its namespace."""
    return {path.name for path in Path(f"/proc/{process.pid}/root{store.root}/runs").glob("*")}


def with_checkpoints(client):
    """The runs of which the server has one."""
    return {name.split("/")[3] for name in objects(client) if "/checkpoints/" in name}


@pytest.mark.skipif(not can_isolate(), reason="no mount namespaces of one's own")
def test_a_sweep_through_s3_outlives_a_node_and_ends_on_the_head(store, model_cache, tmp_path):
    with s3_bucket() as (uri, client), running_head(lambda _: ["--num-cpus=0"]) as head:
        settings = {
            **SMALL,
            "data": {"train_pairs": 8 * STEPS, "eval_pairs": 16},
            "calibration": {"look_every": 0},
            "execution": {"checkpoint_every": 4, "storage": uri},
        }
        grid = {"objective": ["dpo", "cpo", "ipo"]}
        file = write_experiment(tmp_path / "small.yaml", run=settings, grid=grid)
        cells = expand(load_experiment(file))
        runs = {cell.run_id: store.run(cell.run_id) for cell in cells}
        with node(head, store, model_cache) as first, node(head, store, model_cache) as second:
            process = subprocess.Popen(
                sweep_command(file, store),
                env={**environment(), **head.environment, "RAY_ADDRESS": head.gcs},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )

            def on_its_way():
                """Cells on both nodes, that of the first with a checkpoint that the server has."""
                here = runs_on(first, store)
                time.sleep(0.5)
                return here and runs_on(second, store) and here & with_checkpoints(client)

            try:
                wait_for(on_its_way, process, 600)
                on_first = runs_on(first, store)
                kill(first)
                output = process.communicate(timeout=600)[0]
            finally:
                process.kill()
            assert process.returncode == 0, output
            assert "3 ok" in output
            on_second = runs_on(second, store)
        assert on_second == set(runs) and on_first, "the last node took over what the first had"
        for key, there in runs.items():
            assert there.read_status().status == "ok"
            assert read_dynamics(there.dynamics)["step"].to_pylist() == list(range(1, STEPS + 1)), "every step once"
            assert there.evaluation.exists(), "stages are copied, too"
            assert f"some/where/runs/{key}/evaluation.json" in objects(client)
        _, parents, delivered = tracked(store)
        assert parents[0].info.status == "FINISHED" and set(delivered) == set(runs)
        assert {each.info.status for each in delivered.values()} == {"FINISHED"}
        assert (store.experiment("small") / "report.html").exists()

        again = run(sweep_command(file, store), **head.environment, RAY_ADDRESS=head.gcs)
        assert "3 cached" in again

    alone = type(store).open(tmp_path / "alone")
    shutil.copytree(model_cache, alone.cache)
    cell = next(cell for cell in cells if cell.run_id in on_first)
    local = cell.config.model_copy(update={"execution": cell.config.execution.model_copy(update={"storage": None})})
    launch(local, alone, key=cell.run_id)
    assert records(store, cell.config).equals(records(alone, cell.config)), "as if it had never moved"


def test_what_one_machine_swept_another_finds(store, tmp_path):
    """Trained and evaluated over one store, copied by its trials; a head with an empty disk has the same tables."""
    with s3_bucket() as (uri, client):
        settings = {**SMALL, "calibration": {"look_every": 0}, "execution": {"checkpoint_every": 4, "storage": uri}}
        file = write_experiment(tmp_path / "small.yaml", run=settings, grid={"objective": ["dpo", "cpo"]})
        cells = expand(load_experiment(file))
        assert "2 ok" in sweep_here(file, store, "--no-tracking")
        for cell in cells:
            there = {name.split(f"{cell.run_id}/", 1)[1] for name in objects(client) if f"/{cell.run_id}/" in name}
            assert {"status.json", "evaluation.json", "config.yaml", "final/model.safetensors"} <= there
        other = type(store).open(tmp_path / "other")
        assert "2 cached" in sweep_here(file, other, "--no-tracking")
    ours, theirs = (each.experiment("small") / "tables" for each in (store, other))
    assert {path.name for path in ours.iterdir()} == {path.name for path in theirs.iterdir()}
    for path in ours.glob("results.*"):
        assert path.read_text() == (theirs / path.name).read_text()
    for cell in cells:
        assert records(store, cell.config).equals(records(other, cell.config))
