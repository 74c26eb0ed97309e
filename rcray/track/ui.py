"""`rcray ui`: MLflow's own pages on the store's runs, on the loopback address."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable

from rcray.errors import ConfigError, RcrayError
from rcray.store import Store
from rcray.track.address import Address

START_SECONDS = 120.0  # a fresh database and a busy machine take their time

#: Unless the user says otherwise: no telemetry, and none of the eight job runners that nothing here uses.
_QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}


def serve_runs(address: Address, store: Store, host: str, port: int, say: Callable[[str], None]) -> int:
    """Runs `mlflow server` until it is interrupted; says the address once pages can be loaded.

    Raises:
        ConfigError: the port is taken.
        RcrayError: the server ended, or was not ready in time.
    """
    if address.is_server:
        say(f"runs are tracked on a server, which has the UI: {address.shown}")
        return 0
    _require_free(host, port)
    _make_schema(address, store)
    # `kill` of this process must take the server with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    process = subprocess.Popen(
        [sys.executable, "-m", "mlflow", "server", "--host", host, "--port", str(port), "--workers", "1"],
        # Not an argument: a database address may carry a password, and arguments are for everybody to read.
        env={**_QUIET, **os.environ, "MLFLOW_BACKEND_STORE_URI": address.uri},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=store.root,
        start_new_session=True,
    )
    try:
        _wait_until_ready(process, host, port)
        say(f"MLflow UI on http://{host}:{port} (Ctrl-C ends it)")
        say(f"  showing {address.shown}")
        return process.wait()
    except KeyboardInterrupt:
        return 0
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """The server and whatever it started: they are a session of their own."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=10)
    with contextlib.suppress(ProcessLookupError):  # nobody of it is left
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _require_free(host: str, port: int) -> None:
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        raise ConfigError(
            f"--host {host} --port {port}: cannot be listened on: {error.strerror or error}",
            fix="give another --port",
        ) from None


def _make_schema(address: Address, store: Store) -> None:
    """Before the server's processes open it: a fresh file that several open at once breaks."""
    from rcray.track.mlflow import MlflowTracker

    MlflowTracker(address, store.root / "mlartifacts")


def _wait_until_ready(process: subprocess.Popen[bytes], host: str, port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RcrayError(f"`mlflow server` ended with code {process.returncode}", fix="run it by hand to see why")
        try:
            with urllib.request.urlopen(f"http://{host}:{port}/health", timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise RcrayError(f"`mlflow server` was not ready within {START_SECONDS:g} s", fix="try again on a quieter machine")
