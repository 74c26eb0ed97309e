"""The ground a fault is tried on: a store at a fixed place, the real command line, and its processes.

Every fault works on the same path with fresh content, because a tracking database knows its files by absolute paths.
"""

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml

from rcray.config import load_experiment
from rcray.store import RunDir, Store
from rcray.sweep.grid import Cell, expand
from rcray.train.checkpoint import checkpoints
from tests.ray.sweeping import RCRAY, environment
from tests.track.servers import MlflowServer

NAME = "disturbed"
#: One cell is done long before the other, so that there is a moment with a finished and an unfinished one.
EXPERIMENT: dict[str, Any] = {
    "name": NAME,
    "run": {
        "data": {"train_pairs": 96, "eval_pairs": 16},
        "train": {"batch_size": 8, "micro_batch_size": 4, "learning_rate": 1e-4, "probe_every": 5, "probe_pairs": 8},
        "calibration": True,
        "execution": {"checkpoint_every": 4},
    },
    "cells": [{"objective": "dpo"}, {"objective": "cpo", "train.epochs": 10}],
}
STARTING_SECONDS = 180.0  # until a cell trains, on a machine with other work
COMMAND_SECONDS = 240.0
ENDING_SECONDS = 100.0  # the agents of a killed Ray wait a minute for its head before they give up
_POLL_SECONDS = 0.02
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER


@dataclass
class Command:
    """One `rcray sweep` in a process of its own; what it says goes to a file, as a full pipe would stop it."""

    process: subprocess.Popen[bytes]
    log: Path

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def processes(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children(recursive=True)
        return []

    def one_of_its_own(self, pid: int) -> psutil.Process:
        matching = [process for process in self.processes() if process.pid == pid]
        assert matching, f"process {pid} is none of the sweep's"
        return matching[0]

    def called(self, text: str) -> psutil.Process:
        """Its process with this in the command line."""
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                if text in " ".join(process.cmdline()):
                    return process
        raise AssertionError(f"the sweep has no process {text}")

    def wait(self, expect: int | None, seconds: float = COMMAND_SECONDS) -> str:
        """Waits for its end; returns what it said. No command may end in a traceback."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the command did not end within {seconds:g} s:\n{self.said()}") from None
        said = self.said()
        assert expect is None or code == expect, f"exit code {code}, not {expect}:\n{said}"
        assert "Traceback" not in said, said
        return said

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@dataclass
class Ground:
    """A directory with a store, an experiment file, and what was started here."""

    folder: Path
    long_cell: dict[str, Any] = field(default_factory=dict)  # settings of the cell that takes its time
    settings: tuple[str, ...] = ()  # of the command, beside the file and the store
    environment: dict[str, str] = field(default_factory=dict)
    tracking_uri: str | None = None  # None: the store's own
    expected_words: tuple[str, ...] = ()  # what the second command must say
    unchanged: dict[Path, int] = field(default_factory=dict)  # files that it must not write again: modification times
    servers: list[MlflowServer] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)

    @property
    def store(self) -> Store:
        return Store.at(self.folder / "store")

    @property
    def file(self) -> Path:
        return self.folder / f"{NAME}.yaml"

    @property
    def experiment(self) -> Path:
        return self.store.experiment(NAME)

    def own_children(self) -> set[int]:
        """Processes that were started here, and are waited for here."""
        servers = [server.process for server in self.servers if server.process]
        return {process.pid for process in [*servers, *(command.process for command in self.commands)]}

    def clear(self) -> None:
        """Ends what was started here, and forgets it."""
        for command in self.commands:
            if command.process.poll() is None:
                command.kill()
        for server in self.servers:
            server.kill()

    def lay(self, content: Path, *, only_cache: bool) -> None:
        """Fresh content: all of a store, or its tiny model alone."""
        if only_cache:
            shutil.copytree(content / "models", self.store.cache / "models")
        else:
            shutil.copytree(content, self.store.root, dirs_exist_ok=True)
        *others, long = EXPERIMENT["cells"]
        self.file.write_text(yaml.safe_dump({**EXPERIMENT, "cells": [*others, {**long, **self.long_cell}]}))

    def cells(self) -> list[Cell]:
        return expand(load_experiment(self.file))

    def runs(self) -> list[RunDir]:
        return [self.store.run(cell.run_id) for cell in self.cells()]

    def start(self) -> Command:
        """The command; always the same one."""
        log = self.folder / f"command-{len(self.commands)}.log"
        line = [*RCRAY, "sweep", str(self.file), "--store", str(self.store.root), "--no-figures", *self.settings]
        with log.open("wb") as output:
            process = subprocess.Popen(
                line, env={**environment(), **self.environment}, stdout=output, stderr=subprocess.STDOUT
            )
        self.commands.append(Command(process, log))
        return self.commands[-1]

    def run(self, expect: int = 0) -> str:
        return self.start().wait(expect)

    # -- moments to wait for

    def under_way(self, steps: int = 8) -> RunDir | None:
        """A run that is being trained and has come so far."""
        return next((run for run in self.runs() if _is_under_way(run, steps)), None)

    def long_one_under_way(self, steps: int = 8) -> RunDir | None:
        """The same of the cell that takes its time."""
        run = self.runs()[-1]
        return run if _is_under_way(run, steps) else None

    def half_done(self) -> RunDir | None:
        """The unfinished run, once the other one has its evaluation and this one two checkpoints."""
        if not any(run.evaluation.exists() for run in self.runs()):
            return None
        run = self.under_way()
        return run if run is not None and len(checkpoints(run.checkpoints)) >= 2 else None

    def await_moment(self, command: Command, moment: Callable[[], RunDir | None]) -> RunDir:
        deadline = time.monotonic() + STARTING_SECONDS
        while (run := moment()) is None:
            assert command.process.poll() is None, f"ended before it could be disturbed:\n{command.said()}"
            assert time.monotonic() < deadline, f"nothing happened:\n{command.said()}"
            time.sleep(_POLL_SECONDS)
        return run


def _is_under_way(run: RunDir, steps: int) -> bool:
    status = run.read_status()
    return status.status == "running" and steps <= status.step < status.total_steps


@contextlib.contextmanager
def nothing_left_behind(ground: Ground) -> Iterator[None]:
    """Whatever is orphaned inside comes to this process, and all of it must have ended by itself at the end."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    prctl(_SUBREAPER, 1, 0, 0, 0)
    left: list[list[str]] = []
    over = threading.Event()
    bury = threading.Thread(target=_bury_orphans, args=(ground, before, over))
    bury.start()
    try:
        try:
            yield
        finally:
            over.set()
            bury.join()
        left = _await_end(before, ENDING_SECONDS)
    except BaseException:
        _await_end(before, 0)
        raise
    finally:
        prctl(_SUBREAPER, 0, 0, 0, 0)
    assert not left, f"still there: {[' '.join(process) for process in left]}"


def _bury_orphans(ground: Ground, before: set[int], over: threading.Event) -> None:
    """As init does. Ray's workers look for their raylet by its number, and a zombie has one: they would wait for it."""
    dead: set[int] = set()
    while not over.wait(0.2):
        started: set[int] = set()
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.Error):
                if child.status() == psutil.STATUS_ZOMBIE:
                    started.add(child.pid)
        started -= before | ground.own_children()
        for pid in started & dead:  # seen twice: nobody else waits for it
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        dead = started


def _await_end(before: set[int], seconds: float) -> list[list[str]]:
    """Reaps what has ended; after that time kills the rest, and returns what that was."""
    deadline = time.monotonic() + seconds
    while True:
        left = _reaped(before)
        if not left or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    names = []
    for process in left:
        with contextlib.suppress(psutil.Error):
            names.append([str(process.pid), *process.cmdline()])
            process.kill()
    while _reaped(before):
        time.sleep(0.05)
    return names


def _reaped(before: set[int]) -> list[psutil.Process]:
    left = []
    for process in psutil.Process().children(recursive=True):
        if process.pid in before:
            continue
        with contextlib.suppress(ChildProcessError):  # not a child of ours yet: its parent is among the others
            if os.waitpid(process.pid, os.WNOHANG) != (0, 0):
                continue
        if process.is_running():
            left.append(process)
    return left


def kill(process: psutil.Process) -> None:
    process.send_signal(signal.SIGKILL)
