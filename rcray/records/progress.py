"""`.progress.json`: which phase a run is in and how far, while a process works on it.

That process reports; the file is written about once a second and removed at the end, so it tells a run that is under
way from one whose process was killed: that one has no file, or one of a dead process.
"""

import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import psutil

from rcray.files import read_json, write_json
from rcray.records.parsing import parser
from rcray.records.states import State

FILE = ".progress.json"  # hidden: a note of this machine, not part of the run that is copied or tracked
PREPARATION, REFERENCE, TRAINING, EVALUATION = "preparation", "reference", "training", "evaluation"
_WRITE_SECONDS = 1.0
_SILENT_SECONDS = 600.0  # of a process on another machine, after which it is taken for dead


@dataclass(frozen=True)
class Progress:
    """Where a run is: so many of so many pairs or steps of a phase."""

    phase: str = ""
    done: int = 0
    total: int = 0
    rate: float | None = None  # per second, since the phase began in this process
    host: str = ""
    pid: int = 0
    born: float = 0.0  # when that process started: its number may be another's by now
    updated: float = 0.0

    @property
    def seconds_left(self) -> float | None:
        """Of this phase, at the rate so far."""
        return (self.total - self.done) / self.rate if self.rate else None

    @property
    def text(self) -> str:
        """For people, as in `training 12/24, 0.4/s, 30 s left`."""
        parts = [f"{self.phase} {self.done}/{self.total}"]
        if self.rate:
            parts.append(f"{self.rate:.1f}/s" if self.rate >= 0.95 else f"{1 / self.rate:.1f} s each")
        if self.seconds_left is not None:
            parts.append(f"{duration(self.seconds_left)} left")
        return ", ".join(parts)

    @property
    def is_alive(self) -> bool:
        """Whether the process that wrote it is still there."""
        if self.host != platform.node():
            return time.time() - self.updated < _SILENT_SECONDS
        try:
            return abs(psutil.Process(self.pid).create_time() - self.born) < 2.0
        except psutil.Error:
            return False


def duration(seconds: float, digits: int = 0) -> str:
    """In the unit a person would use; `digits` are those of minutes."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.{digits}f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


_parse = parser(Progress)


def read_progress(run: Path) -> Progress | None:
    """What is being done in a run's directory; None where no process works on it."""
    try:
        progress: Progress = read_json(run / FILE, Progress(), parse=_parse)
    except Exception:  # a damaged note of progress is no note
        return None
    return progress if progress.phase and progress.is_alive else None


def state_now(run: Path, recorded: State) -> State:
    """The recorded state of a run; one that says `running` without a process was killed, and waits to be continued."""
    return State.PENDING if recorded is State.RUNNING and read_progress(run) is None else recorded


class _Reporter:
    def __init__(self, run: Path):
        self.run = run
        self.phase, self.first, self.begun, self.written = "", 0, 0.0, 0.0

    def __call__(self, phase: str, done: int, total: int) -> None:
        now = time.monotonic()
        fresh = phase != self.phase or done < self.first
        if fresh:
            self.phase, self.first, self.begun = phase, done, now
        if not fresh and done < total and now - self.written < _WRITE_SECONDS:
            return
        self.written = now
        rate = (done - self.first) / (now - self.begun) if done > self.first and now > self.begun else None
        note = Progress(phase, done, total, rate, platform.node(), os.getpid(), _born(), time.time())
        with suppress(OSError):  # a full disk is met, and said, by what must be written
            write_json(self.run / FILE, asdict(note))


@cache
def _born() -> float:
    return psutil.Process().create_time()


_REPORTER: ContextVar[_Reporter | None] = ContextVar("progress of the run at hand", default=None)


@contextmanager
def reporting(run: Path | None) -> Iterator[None]:
    """Within it, `report` writes into this run's directory; None: nowhere."""
    token = _REPORTER.set(None if run is None else _Reporter(run))
    try:
        yield
    finally:
        _REPORTER.reset(token)
        if run is not None:
            with suppress(OSError):
                (run / FILE).unlink(missing_ok=True)


def report(phase: str, done: int, total: int) -> None:
    """Says how far the run at hand is; outside of one it says nothing."""
    if (reporter := _REPORTER.get()) is not None:
        reporter(phase, done, total)
