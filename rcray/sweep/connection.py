"""The Ray that a command works on: the cluster it was started in, or a private one on this machine's loopback."""

import logging
import os

# Where this is off, Ray takes the loopback address for the node's own, and whatever it starts listens there alone: its
# habit on macOS and Windows, and the only setting that reaches every server. `ray.init(_node_ip_address="127.0.0.1")`
# does not: Ray replaces a loopback address by the machine's.
_OPEN_TO_THE_NETWORK = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


def connect(*, needs_dashboard: bool) -> None:
    """Joins the cluster this process belongs to, or starts a private one that nobody outside this machine can reach."""
    if os.environ.get("RAY_ADDRESS"):  # set inside `ray job submit`
        import ray

        ray.init(log_to_driver=False, logging_level=logging.ERROR)
        return
    os.environ[_OPEN_TO_THE_NETWORK] = "0"
    import ray
    from ray._private import ray_constants

    ray_constants.ENABLE_RAY_CLUSTER = False  # read from the environment by whoever imported Ray before us
    # address="local": never join a stranger's cluster by a stale file. Worker groups need the dashboard's state
    # service to free their resources; small cells do without its processes.
    ray.init(
        address="local",
        include_dashboard=needs_dashboard,
        dashboard_host="127.0.0.1",
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
