"""Sweeps through a real S3 server on loopback, on two nodes that share no disk: the second one mounts its own."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import ray
from moto.server import ThreadedMotoServer
from ray.cluster_utils import Cluster

from rcray.config import load_experiment
from rcray.store import Store
from rcray.sweep import runner
from rcray.sweep.grid import expand
from rcray.train.dynamics import read_dynamics
from tests.campaign.faults.storage import namespace
from tests.ray.sweeping import environment, sweep_here, write_experiment

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(namespace() is None, reason="neither root nor `unshare -rm` may mount here"),
]
KEYS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_EC2_METADATA_DISABLED": "true"}


@pytest.fixture(scope="module")
def bucket():
    """A bucket as the URI of `execution.storage`."""
    import boto3

    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in KEYS.items():
            patch.setenv(name, value)
        client = boto3.client("s3", endpoint_url=f"http://{host}:{port}", region_name="us-east-1")
        client.create_bucket(Bucket="cells")
        yield f"s3://cells/some/where?endpoint_override={host}%3A{port}&scheme=http&region=us-east-1", client
    server.stop()


@pytest.fixture(scope="module")
def two_disks(bucket, model_cache, tmp_path_factory):
    """A store, and a cluster of a head without CPUs and a node that has another directory in the store's place."""
    here, there = tmp_path_factory.mktemp("disk") / "store", tmp_path_factory.mktemp("other") / "store"
    for place in (here, there):
        (place / "cache").mkdir(parents=True)
        subprocess.run(["cp", "-r", f"{model_cache}/.", str(place / "cache")], check=True)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    start = f"mount --bind {there} {here} && exec {Path(sys.executable).parent}/ray start --block --num-cpus=1"
    command = [*namespace(), "bash", "-c", f"{start} --address={cluster.address} --disable-usage-stats"]
    process = subprocess.Popen(
        command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        ray.init(address=cluster.address, log_to_driver=False)
        while len([node for node in ray.nodes() if node["Alive"]]) < 2:
            assert process.poll() is None, "the second node did not start"
            time.sleep(0.2)
        yield Store.open(here), there
    finally:
        ray.shutdown()
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(30)
        cluster.shutdown()


def experiment(path, **execution):
    run = {"execution": {"checkpoint_every": 3, **execution}}
    return write_experiment(path / "small.yaml", run=run, grid={"objective": ["dpo", "cpo"]})


def test_a_whole_sweep_through_s3(two_disks, bucket, tmp_path):
    store, there = two_disks
    uri, client = bucket
    file = experiment(tmp_path, storage=uri)
    runs = [store.run(cell.run_id) for cell in expand(load_experiment(file))]
    said = sweep_here(file, store)
    assert "2 ok" in said and "0 pending" not in said
    for run in runs:
        assert (there / "runs" / run.run_id / "final").is_dir(), "trained on the other disk"
        assert read_dynamics(run.dynamics)["step"].to_pylist() == list(range(1, 9))
        assert run.read_evaluation().rows and (run.final / "model.safetensors").is_file()
    names = {entry["Key"] for entry in client.list_objects_v2(Bucket="cells")["Contents"]}
    assert {f"some/where/runs/{run.run_id}/evaluation.json" for run in runs} <= names
    assert any(name.startswith("some/where/cache/reference/") for name in names)
    assert not any(".probe" in name or "/checkpoints/" in name for name in names), "nothing is left there in vain"
    table = (store.experiment("small") / "tables" / "results.md").read_text()
    assert "–" not in table.splitlines()[-1].split("|")[3], "scores are there"

    fresh = Store.open(tmp_path / "another-head")
    again = sweep_here(file, fresh)
    assert "2 cached" in again, "another head finds everything there"
    assert (fresh.experiment("small") / "tables" / "results.md").read_text() == table


def test_without_it_such_a_node_is_refused(two_disks, tmp_path):
    store, _ = two_disks
    said = sweep_here(experiment(tmp_path), store, "--no-tracking", expect=1)
    assert f"store {store.root}: not the same directory on node" in said


def test_a_node_that_joins_later_is_noticed_by_its_first_trial(two_disks, tmp_path, monkeypatch):
    store, there = two_disks
    monkeypatch.setattr(runner, "check_nodes", lambda *_: None)  # as if it had not been there yet
    file = write_experiment(tmp_path / "small.yaml", grid={"objective": ["ipo", "simpo"]})
    said = sweep_here(file, store, "--no-tracking", expect=1)
    assert f"store {store.root}: not the same directory on node" in said and "execution.storage" in said
    for cell in expand(load_experiment(file)):
        assert not (there / "runs" / cell.run_id).exists(), "nothing is trained in vain"
        assert store.run(cell.run_id).read_status().status == "pending", "no cell is blamed"


def test_storage_that_cannot_be_reached_is_refused_before_anything_starts(two_disks, bucket, tmp_path):
    store, _ = two_disks
    file = experiment(tmp_path, storage=bucket[0].replace("s3://cells", "s3://no-such-bucket"))
    said = sweep_here(file, store, "--no-tracking", expect=1)
    assert "execution.storage" in said and "cannot be used" in said
