"""The head of this machine's private Ray, watched: when it dies, whoever waits for Ray waits inside C++.

Left alone, Ray's driver waits a minute for its head and then ends the process by itself: no message of ours, no ledger,
agents that live on. No signal and no exception gets through to it meanwhile. So a thread of its own does what is left
to do, says what happened, and ends the process, as Ray would.
"""

import contextlib
import os
import sys
import threading
from collections.abc import Callable

import psutil

from rcray.errors import RcrayError, printable
from rcray.secrets import redact

_HEAD = "gcs_server"
_LOOK_SECONDS = 1.0
_END_SECONDS = 2.0
_SHOW_CURSOR = "\x1b[?25h"  # a live table hides it


class HeadLostError(RcrayError):
    """The head of the private Ray ended by itself."""


class HeadWatch:
    """While it is entered, the head's death ends this process; of a cluster that was only joined it knows nothing."""

    def __init__(self, settle: Callable[[], None]) -> None:
        """`settle` writes down how things stand once nothing trains any more."""
        self._head = _head_process()
        self._settle = settle
        self._left = threading.Event()

    def __enter__(self) -> None:
        if self._head is not None:
            threading.Thread(target=self._watch, args=(self._head,), name="head", daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self._left.set()

    def _watch(self, head: psutil.Process) -> None:
        while not self._left.wait(_LOOK_SECONDS):
            if _has_ended(head):
                self._end(head)

    def _end(self, head: psutil.Process) -> None:
        error = HeadLostError(
            f"Ray's head on this machine ended ({_HEAD}, process {head.pid}), and the sweep with it",
            fix="find out what ended it (memory, an administrator); the same command continues",
        )
        try:
            _end_family()
            self._settle()
        finally:
            cursor = _SHOW_CURSOR if sys.stdout.isatty() else ""
            sys.stdout.write(cursor)
            sys.stdout.flush()
            print(printable(redact(f"error: {error}")), file=sys.stderr, flush=True)
            os._exit(error.exit_code)


def _end_family() -> None:
    """Ray's processes below this one. Not the follower: it ends by itself, when it has delivered.

    All of them are stopped before the first is killed: a raylet that still runs starts workers, and those of a dead
    one are below nobody.
    """
    rays: dict[int, psutil.Process] = {}
    while new := [p for p in psutil.Process().children(recursive=True) if p.pid not in rays and _is_rays(p)]:
        rays |= {process.pid: process for process in new}
        for process in new:
            with contextlib.suppress(psutil.Error):
                process.suspend()
    for process in rays.values():
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(list(rays.values()), timeout=_END_SECONDS)


def _is_rays(process: psutil.Process) -> bool:
    try:
        line = " ".join(process.cmdline())
    except psutil.Error:
        return False
    return line.startswith("ray::") or "/ray/" in line


def _head_process() -> psutil.Process | None:
    """The head that this process started, its child; None where it joined a cluster."""
    for process in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if process.name() == _HEAD and process.status() != psutil.STATUS_ZOMBIE:
                return process
    return None


def _has_ended(process: psutil.Process) -> bool:
    """Also one that ended and was not waited for yet: Ray, which started it, does that in its own time."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
