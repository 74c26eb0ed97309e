"""How it is seen that a command is reachable from its own machine alone.

Sweeps are watched in tests/ray/test_own_model.py, worker groups in tests/ray/test_groups.py.
"""

import socket
import subprocess
import sys

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
