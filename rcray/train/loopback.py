"""Workers of one machine's private Ray meet on its loopback address, and listen nowhere else.

torch's rendezvous store listens on every interface unless it is handed a socket, and gloo and NCCL on whichever
interface the host's name leads to. A group over several machines is left as it is.
"""

import ipaddress
import os
import socket
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from rcray.extras import explained_imports

with explained_imports():
    from ray.train.torch import TorchConfig

_SETTINGS = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


@dataclass
class GroupConfig(TorchConfig):
    """Ray's setting up of a process group, on loopback where the group is on one machine's private Ray.

    And off the GPUs where none was asked for: Ray would make the first that is visible the process's own.
    """

    @property
    def backend_cls(self) -> type:
        """What Ray asks for what to do at a group's start."""
        return _GroupBackend

    @property
    def train_func_context(self) -> Any:
        """What Ray enters before the loop."""
        return nullcontext if self.backend == "gloo" else super().train_func_context


class _GroupBackend(TorchConfig().backend_cls):  # type: ignore[misc]
    # Ray's own class has no public name; its configuration tells it.

    def on_start(self, worker_group: Any, backend_config: Any) -> None:
        worker_group.execute(keep_to_loopback)
        super().on_start(worker_group, backend_config)


def keep_to_loopback() -> None:
    """In a worker, before its process group: nothing changes unless its node's address is a loopback address."""
    import ray.util
    import torch.distributed.rendezvous  # noqa: F401  # for sys.modules

    if not ipaddress.ip_address(ray.util.get_node_ip_address()).is_loopback:
        return
    for name in _SETTINGS:
        os.environ.setdefault(name, _loopback_interface())
    # The module: as an attribute of torch.distributed, `rendezvous` is a function.
    sys.modules["torch.distributed.rendezvous"].TCPStore = _store_on_loopback  # type: ignore[attr-defined]


def _loopback_interface() -> str:
    return next(name for _, name in socket.if_nameindex() if name.startswith("lo"))


def _store_on_loopback(*, host_name: str, port: int, is_master: bool, **options: Any) -> Any:
    from torch.distributed import TCPStore

    if is_master:
        listener = socket.create_server((host_name, port))
        options["master_listen_fd"] = listener.detach()  # the store closes it
    return TCPStore(host_name=host_name, port=port, is_master=is_master, **options)
