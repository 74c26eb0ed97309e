"""A sweep on one machine is reachable from that machine alone: all its processes, whatever they serve."""

import socket
import subprocess
import sys

import pytest

from tests.processes import Listener, listeners, watch_listeners
from tests.ray.sweeping import RCRAY, environment, write_experiment

pytestmark = pytest.mark.ray

#: What a private Ray consists of; without these nothing was looked at.
RAY = {"raylet", "gcs_server", "DashboardAgent", "RuntimeEnvAgent", "monitor.py"}


def watched(*arguments):
    process = subprocess.Popen(
        [*RCRAY, *map(str, arguments)], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        found = watch_listeners(process)
    finally:
        process.kill()
        output = process.communicate()[0]
    assert process.returncode == 0, output
    return found


def all_on_loopback(found, expected):
    missing = {name for name in expected if not any(name in listener.command for listener in found)}
    assert not missing, f"not seen listening: {missing}"
    assert [listener for listener in found if not listener.is_loopback] == []


def test_a_sweep_listens_on_loopback_alone(store, tmp_path):
    file = write_experiment(tmp_path / "small.yaml", grid={"objective": ["dpo", "cpo"]})
    found = watched("sweep", file, "--store", store.root, "--no-tracking", "--no-figures", "--concurrency", 1)
    all_on_loopback(found, {*RAY, "sweep"})


def test_a_worker_group_listens_on_loopback_alone(store, tmp_path):
    """With the dashboard, Ray Train's controller, torch's rendezvous store and gloo."""
    file = write_experiment(tmp_path / "small.yaml", run={"execution": {"workers": 2}})
    found = watched("train", file, "--store", store.root, "--no-tracking")
    all_on_loopback(found, {*RAY, "dashboard.py", "TrainController", "RayTrainWorker"})
    meeting = [listener for listener in found if "RayTrainWorker" in listener.command]
    assert len(meeting) >= 5, "of two workers: Ray, gloo, and the store of one"


def test_an_open_socket_is_seen():
    """The checks above can fail."""
    code = "import socket, sys; s = socket.create_server(('', 0)); print(s.getsockname()[1], flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        port = int(process.stdout.readline())
        (found,) = listeners(process.pid)
        process.stdin.close()
    assert (found.port, found.is_loopback) == (port, False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert Listener(*server.getsockname(), "x").is_loopback
    assert Listener("::ffff:127.0.0.1", 1, "x").is_loopback and not Listener("::", 1, "x").is_loopback
