"""A real head node in processes of its own, on loopback and free ports, ended by its process id."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

TOKEN = "t" * 40
STARTING_SECONDS = 300


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def start_ray(tries=8, **options):
    """`ray.init` of a private Ray, again where a busy machine took longer than the half minute that Ray waits."""
    import ray

    for left in reversed(range(tries)):
        try:
            return ray.init(address="local", include_dashboard=False, log_to_driver=False, **options)
        except Exception as error:  # Ray has no type for it
            if "timed out during startup" not in str(error) or not left:
                raise
            ray.shutdown()


@dataclass(frozen=True)
class Head:
    """Where a head listens, and the environment its clients need."""

    gcs: str
    dashboard: str
    environment: dict[str, str]
    log: Path


@contextlib.contextmanager
def running_head(extra, *, own_token=True, **more):
    """`ray start --head --block` with token authentication.

    `extra(gcs_port)` gives further arguments, `more` is added to the environment. Without `own_token` nothing is said
    of authentication: Ray looks for a token in the home directory, as it does for a user.
    """
    gcs, dashboard, client, agent = free_ports(4)
    directory = Path(tempfile.mkdtemp(prefix="rh", dir="/tmp"))  # short: socket paths have a limit
    binaries = Path(sys.executable).parent
    environment = {
        **os.environ,
        "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",  # jobs find `python` as in an activated environment
        **({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN} if own_token else {}),
        "RAY_TMPDIR": str(directory),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # as in a Ray that rcray starts: nicer workers wait for whatever runs beside them
        **more,
    }
    command = [
        *(str(binaries / "ray"), "start", "--head", "--block", "--node-ip-address=127.0.0.1", f"--port={gcs}"),
        *("--include-dashboard=true", "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}"),
        *(f"--ray-client-server-port={client}", f"--dashboard-agent-listen-port={agent}"),
        *(f"--temp-dir={directory}", "--disable-usage-stats", *extra(gcs)),
    ]
    log = directory / "head.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        _wait_for_port(dashboard, process, log)
        yield Head(f"127.0.0.1:{gcs}", f"http://127.0.0.1:{dashboard}", environment, log)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(120)
        except subprocess.TimeoutExpired:
            process.kill()
        shutil.rmtree(directory, ignore_errors=True)


def _wait_for_port(port, process, log):
    deadline = time.monotonic() + STARTING_SECONDS
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.2)
    raise AssertionError(f"no dashboard: {log.read_text()}")
