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
        address = ipaddress.ip_address(self.address)
        return (getattr(address, "ipv4_mapped", None) or address).is_loopback


def listeners(pid):
    """Every listening or unconnected socket of a process tree."""
    ports = set()
    for process in tree(pid):
        with contextlib.suppress(psutil.Error):  # it ended while we looked
            command = " ".join(process.cmdline()).strip()
            for socket in process.net_connections("inet"):
                if socket.status in (psutil.CONN_LISTEN, psutil.CONN_NONE) and not socket.raddr:
                    ports.add(Listener(socket.laddr.ip, socket.laddr.port, command))
    return ports


def watch_listeners(process, seconds=600, pause=0.2):
    """All sockets that a command's processes listened on at any time until it ended."""
    ports = set()
    deadline = time.monotonic() + seconds
    while process.poll() is None:
        assert time.monotonic() < deadline, "it does not end"
        ports |= listeners(process.pid)
        time.sleep(pause)
    return ports
