"""`ledger.json`, what became of every cell of a sweep, and `stopped.json`, which of them its search gave up."""

import json
import textwrap
from collections import Counter
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rcray.files import read_json, recover_json, write_atomic, write_json
from rcray.records.parsing import parser
from rcray.records.states import FINISHED, State

LEDGER = "ledger.json"
STOPPED = "stopped.json"
_NOTES = 20  # that fit under a table
_NO_CELLS = "[]\n}"  # how the JSON of a ledger without cells ends


@dataclass(frozen=True)
class LedgerEntry:
    """One cell's line."""

    run_id: str
    label: str
    status: State = State.PENDING
    step: int = 0
    total_steps: int | None = 0  # None: known once the data is read
    seconds: float = 0.0
    in_band: float | None = None  # by the paper's band at the head or the adapters
    error: str = ""
    note: str = ""  # what was changed so that it could run at all; a lost winner; bands that disagree
    varied: tuple[tuple[str, Any], ...] = ()  # the settings that distinguish it from its experiment's other cells
    doing: str = ""  # of a running cell: its phase, how far that is, rate and time left


@dataclass(frozen=True)
class Ledger:
    """The entries of one experiment, in the order of its cells."""

    cells: tuple[LedgerEntry, ...] = ()
    updated: float = 0.0

    def only(self, run_ids: Collection[str]) -> "Ledger":
        """The entries of these runs alone."""
        return replace(self, cells=tuple(entry for entry in self.cells if entry.run_id in run_ids))

    def tally(self) -> dict[State, int]:
        """How many cells have each state, in the order of the states."""
        counts = Counter(entry.status for entry in self.cells)
        return {state: counts[state] for state in State if counts[state]}

    @property
    def interrupted(self) -> bool:
        """Whether there are cells that the same command would continue."""
        return any(entry.status in (State.PENDING, State.RUNNING) for entry in self.cells)

    @property
    def complete(self) -> bool:
        """Whether every cell has its result."""
        return all(entry.status in FINISHED for entry in self.cells)

    def summary(self) -> str:
        """One line for logs and non-terminals."""
        return ", ".join(f"{count} {state}" for state, count in self.tally().items())

    def doings(self) -> list[str]:
        """One line per running cell: what it is at, and for how long."""
        return [f"{entry.label}: {entry.doing}" for entry in self.cells if entry.doing]

    def notes(self) -> list[str]:
        """One line per cell with a note; of many the first ones, and how many more there are."""
        lines = [f"* {entry.label}: {entry.note}" for entry in self.cells if entry.note]
        rest = len(lines) - _NOTES
        return [*lines[:_NOTES], f"* and {rest} more with a note, in {LEDGER}"] if rest > 0 else lines


_parse = parser(Ledger)
_parse_stopped = parser(dict[str, str])


def read_ledger(experiment: Path) -> Ledger:
    """The ledger in an experiment's directory, as it was last written."""
    return read_json(experiment / LEDGER, Ledger(), parse=_parse)


class LedgerFile:
    """The ledger in an experiment's directory, written again and again: only what changed is rendered again."""

    def __init__(self, experiment: Path):
        self._path = experiment / LEDGER
        self._rendered: dict[str, tuple[LedgerEntry, str]] = {}

    def write(self, ledger: Ledger) -> None:
        """Replaces the file."""
        frame = json.dumps({"updated": ledger.updated, "tally": ledger.tally(), "cells": []}, indent=2)
        cells = ",\n".join(map(self._render, ledger.cells))
        content = f"{frame.removesuffix(_NO_CELLS)}[\n{cells}\n  ]\n}}" if cells else frame
        write_atomic(self._path, content + "\n")

    def _render(self, entry: LedgerEntry) -> str:
        before = self._rendered.get(entry.run_id)
        if before is None or before[0] is not entry:
            text = textwrap.indent(json.dumps(asdict(entry), indent=2, ensure_ascii=False), "    ")
            before = self._rendered[entry.run_id] = (entry, text)
        return before[1]


def write_ledger(experiment: Path, ledger: Ledger) -> None:
    """Writes the ledger into an experiment's directory."""
    LedgerFile(experiment).write(ledger)


def read_stopped(experiment: Path) -> dict[str, str]:
    """Runs that an experiment's search stopped early, and why; to any other experiment they are unfinished."""
    return recover_json(experiment / STOPPED, {}, "what to stop is decided again", _parse_stopped)


def peek_stopped(experiment: Path) -> dict[str, str]:
    """The same for whoever changes nothing: a damaged file stays where it is, and is an error."""
    return read_json(experiment / STOPPED, {}, parse=_parse_stopped)


def write_stopped(experiment: Path, run_id: str, reason: str) -> None:
    """Writes down that a search has seen enough of a run."""
    write_json(experiment / STOPPED, {**read_stopped(experiment), run_id: reason})
