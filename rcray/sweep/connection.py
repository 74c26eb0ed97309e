"""The Ray that a command works on: the cluster it was started in, or a private one on this machine's loopback."""

import contextlib
import logging
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rcray.errors import RcrayError

# Where this is off, Ray takes the loopback address for the node's own, and whatever it starts listens there alone: its
# habit on macOS and Windows, and the only setting that reaches every server. `ray.init(_node_ip_address="127.0.0.1")`
# does not: Ray replaces a loopback address by the machine's.
_OPEN_TO_THE_NETWORK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
# Ray's workers are nice by 15 unless its raylet, which has our environment, is told otherwise: beside a neighbour's
# work on a shared machine, steps took ten times as long.
_NICENESS = "RAY_worker_niceness"
_STARTED_TOO_SLOWLY = "timed out during startup"


@dataclass
class Connection:
    """A connection to Ray; `keep_logs` where something happened that only Ray's own logs explain."""

    keep_logs: bool = False


@contextlib.contextmanager
def connected(*, needs_dashboard: bool) -> Iterator[Connection]:
    """Ray for the time of a block: as it is, if there is one; else the cluster this process belongs to; else our own.

    A private Ray ends with the block and takes its directory of logs and sockets with it, unless the block failed.
    """
    import ray

    connection = Connection()
    if ray.is_initialized():
        yield connection
        return
    directory = connect(needs_dashboard=needs_dashboard)
    try:
        yield connection
    except Exception:
        connection.keep_logs = True
        raise
    finally:
        ray.shutdown()
        if directory and not connection.keep_logs:
            _remove(directory)


def connect(*, needs_dashboard: bool) -> Path | None:
    """Joins the cluster this process belongs to, or starts a private one that nobody outside this machine can reach.

    Returns:
        Where the private one keeps logs and sockets; None for a cluster that was joined.
    """
    if os.environ.get("RAY_ADDRESS"):  # set inside `ray job submit`
        import ray

        ray.init(log_to_driver=False, logging_level=logging.ERROR)
        return None
    os.environ[_OPEN_TO_THE_NETWORK] = "0"
    os.environ.setdefault(_NICENESS, "0")
    import ray
    from ray._private import ray_constants

    ray_constants.ENABLE_RAY_CLUSTER = False  # read from the environment by whoever imported Ray before us
    # address="local": never join a stranger's cluster by a stale file. Worker groups need the dashboard's state
    # service to free their resources; small cells do without its processes.
    try:
        started: Any = ray.init(
            address="local",
            include_dashboard=needs_dashboard,
            dashboard_host="127.0.0.1",
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except Exception as error:  # Ray has no type for it
        if _STARTED_TOO_SLOWLY not in str(error):
            raise
        raise RcrayError(
            f"Ray did not start on this machine in time: {error}",
            fix="the same command again, when the machine has less to do",
        ) from None
    return Path(started.address_info["session_dir"])


def _remove(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    latest = directory.parent / "session_latest"
    with contextlib.suppress(OSError):
        if os.readlink(latest) == str(directory):
            latest.unlink()
