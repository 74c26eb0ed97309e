"""What a command's processes do, seen from outside: which there are, and where they listen."""

import contextlib
import ipaddress
import time
from dataclasses import dataclass

import psutil


def tree(pid):
    """A process and everything below it; nothing once it is gone."""
    try:
        top = psutil.Process(pid)
        return [top, *top.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


@dataclass(frozen=True)
class Listener:
    """A socket that others can connect to or send to, and the command that has it open."""

    address: str
    port: int
    command: str

    @property
    def is_loopback(self):
        found = ipaddress.ip_address(self.address)
        return (getattr(found, "ipv4_mapped", None) or found).is_loopback


def listeners(pid):
    """Every listening or unconnected socket of a process tree."""
    found = set()
    for process in tree(pid):
        with contextlib.suppress(psutil.Error):  # it ended while we looked
            command = " ".join(process.cmdline()).strip()
            for socket in process.net_connections("inet"):
                if socket.status in (psutil.CONN_LISTEN, psutil.CONN_NONE) and not socket.raddr:
                    found.add(Listener(socket.laddr.ip, socket.laddr.port, command))
    return found


def watch_listeners(process, seconds=600, pause=0.2):
    """All sockets that a command's processes listened on at any time until it ended."""
    found = set()
    deadline = time.monotonic() + seconds
    while process.poll() is None:
        assert time.monotonic() < deadline, "it does not end"
        found |= listeners(process.pid)
        time.sleep(pause)
    return found
