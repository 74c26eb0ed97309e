"""The courier: a process beside the training that delivers to MLflow, so that nothing there can slow or stop it.

This is the training's end of it (`courier_process` is the other): the process is started with an order, told to
finish, and never waited for without bound. Neither a training process nor the sweep's own imports mlflow.
"""

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rcray.sweep.grid import Cell
from rcray.track.tracker import State

STALL_SECONDS = 120.0  # a courier that says nothing for so long is ended


@dataclass(frozen=True)
class Order:
    """What a courier is to deliver, where to."""

    store: str
    uri: str
    name: str
    title: str
    cells: Sequence[Cell]
    parent: bool
    started_here: Sequence[str] = ()
    awaits_evaluation: bool = False

    def to_line(self) -> str:
        """For the pipe, never for a file or an argument: the URI may carry a password."""
        cells = [cell.content() for cell in self.cells]
        return json.dumps({**vars(self), "cells": cells, "started_here": list(self.started_here)}) + "\n"

    @classmethod
    def from_line(cls, line: str) -> "Order":
        """The other end of the pipe."""
        content = json.loads(line)
        return cls(**{**content, "cells": [Cell.from_content(cell) for cell in content["cells"]]})


@dataclass(frozen=True)
class Delivered:
    """What came of it."""

    complete: bool = False  # the tracker has all there is
    problem: str = ""
    points: int = 0
    files: int = 0
    cells: Sequence[str] = field(default_factory=tuple)  # those that could not be delivered, and why


class Courier:
    """The parent's end: starts the process, tells it to finish, and never waits for it without bound."""

    def __init__(self, order: Order, log_file: Path):
        self.order = order
        self.log_file = log_file
        self.outcome: Delivered | None = None
        self._lines: queue.Queue[str | None] = queue.Queue()

    def __enter__(self) -> "Courier":
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        with self.log_file.open("w") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rcray.courier_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},  # it has no business on a GPU
                start_new_session=True,  # Ctrl-C is the parent's to handle
            )
        threading.Thread(target=self._listen, name="courier", daemon=True).start()
        self._say(self.order.to_line())
        return self

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _say(self, line: str) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):  # it died: the end tells
            self.process.stdin.write(line)
            self.process.stdin.flush()

    def hurry(self) -> None:
        """Nothing is trained any more: it need not hold back, and delivers while the report is made."""
        self._say(json.dumps({"hurry": True}) + "\n")

    def finish(self, state: State, paths: Sequence[Path] = (), tally: str = "") -> Delivered:
        """Lets it deliver the rest and close; returns what came of it."""
        if self.outcome is not None:
            return self.outcome
        self._say(json.dumps({"state": state, "paths": [str(p) for p in paths], "tally": tally}) + "\n")
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        self.outcome = self._await()
        self._end()
        if self.log_file.exists() and not self.log_file.stat().st_size:
            self.log_file.unlink()
        return self.outcome

    def _await(self) -> Delivered:
        while True:
            try:
                line = self._lines.get(timeout=STALL_SECONDS)
            except queue.Empty:
                return Delivered(problem=f"no answer within {STALL_SECONDS:g} s")
            if line is None:
                return Delivered(problem=f"the courier ended early; see {self.log_file}")
            content = json.loads(line)
            if "complete" in content:
                return Delivered(**content)

    def _end(self) -> None:
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.finish("FINISHED")
            return
        try:
            self.finish("KILLED" if kind is KeyboardInterrupt else "FAILED")
        except KeyboardInterrupt:  # a second Ctrl-C means now
            self.process.kill()
            self.process.wait()
