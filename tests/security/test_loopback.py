"""How it is seen that a command is reachable from its own machine alone.

Sweeps are watched in tests/ray/test_own_model.py, worker groups in tests/ray/test_groups.py.
"""

import ipaddress
import os
import socket
import subprocess
import sys
from types import SimpleNamespace

from ray._private import ray_constants, services

from rcray.sweep import connection
from tests.processes import Listener, listeners, watch_listeners
from tests.ray.sweeping import environment

#: What a private Ray consists of; without these nothing was looked at.
#: Ray's monitor has one port for its metrics, the same for every Ray of a machine: it listens only if that is free.
RAY = {"raylet", "gcs_server", "DashboardAgent", "RuntimeEnvAgent"}


def watched(command):
    """Every socket that a command's processes listened on until it ended well, and what it said."""
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        listening = watch_listeners(process)
    finally:
        process.kill()
        output = process.communicate()[0]
    assert process.returncode == 0, output
    return listening, output


def all_on_loopback(listening, expected):
    missing = {name for name in expected if not any(name in listener.command for listener in listening)}
    assert not missing, f"not seen listening: {missing}"
    assert [listener for listener in listening if not listener.is_loopback] == []


def test_an_open_socket_is_seen():
    """The checks can fail."""
    code = "import socket, sys; s = socket.create_server(('', 0)); print(s.getsockname()[1], flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        port = int(process.stdout.readline())
        (listener,) = listeners(process.pid)
        process.stdin.close()
    assert (listener.port, listener.is_loopback) == (port, False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert Listener(*server.getsockname(), "x").is_loopback
    assert Listener("::ffff:127.0.0.1", 1, "x").is_loopback and not Listener("::", 1, "x").is_loopback


def test_a_ray_that_was_imported_before_us_takes_loopback_for_its_address(monkeypatch, tmp_path):
    """It has read the environment by then. A constant that Ray has renamed would be set in vain, and nothing say so."""
    monkeypatch.setattr(services.ray, "init", lambda **_: SimpleNamespace(address_info={"session_dir": str(tmp_path)}))
    monkeypatch.setattr(services.ray._private.worker, "_global_node", None)
    monkeypatch.setattr(ray_constants, "ENABLE_RAY_CLUSTER", True)
    monkeypatch.setattr(services, "node_ip_address_from_perspective", lambda address: "192.0.2.1")
    assert not ipaddress.ip_address(services.get_node_ip_address()).is_loopback
    monkeypatch.setenv(connection._OPEN_TO_THE_NETWORK, "1")
    monkeypatch.setenv(connection._NICENESS, "0")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    connection.connect(needs_dashboard=False)
    assert ipaddress.ip_address(services.get_node_ip_address()).is_loopback
    assert os.environ[ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR] == "0", "and so it is for what Ray starts"
