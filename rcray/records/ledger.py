"""`ledger.json`, what became of every cell of a sweep, and `stopped.json`, which of them its search gave up."""

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rcray.files import read_json, recover_json, write_json
from rcray.records.parsing import parser
from rcray.records.states import FINISHED, State

LEDGER = "ledger.json"
_STOPPED = "stopped.json"


@dataclass(frozen=True)
class LedgerEntry:
    """One cell's line."""

    run_id: str
    label: str
    status: State = State.PENDING
    step: int = 0
    total_steps: int | None = 0  # None: known once the data is read
    seconds: float = 0.0
    in_band: float | None = None
    error: str = ""
    note: str = ""  # what was changed so that the cell could run at all; that it lost its winner
    varied: tuple[tuple[str, Any], ...] = ()  # the settings that distinguish it from its experiment's other cells


@dataclass(frozen=True)
class Ledger:
    """The entries of one experiment, in the order of its cells."""

    cells: tuple[LedgerEntry, ...] = ()
    updated: float = 0.0

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

    def notes(self) -> list[str]:
        """One line per cell that did not run as asked, or lost its winner."""
        return [f"* {entry.label}: {entry.note}" for entry in self.cells if entry.note]


_parse = parser(Ledger)
_parse_stopped = parser(dict[str, str])


def read_ledger(experiment: Path) -> Ledger:
    """The ledger in an experiment's directory, as it was last written."""
    return read_json(experiment / LEDGER, Ledger(), parse=_parse)


def write_ledger(experiment: Path, ledger: Ledger) -> None:
    """Writes the ledger into an experiment's directory."""
    cells = [asdict(entry) for entry in ledger.cells]
    write_json(experiment / LEDGER, {"updated": ledger.updated, "tally": ledger.tally(), "cells": cells})


def read_stopped(experiment: Path) -> dict[str, str]:
    """Runs that an experiment's search stopped early, and why; to any other experiment they are unfinished."""
    return recover_json(experiment / _STOPPED, {}, "what to stop is decided again", _parse_stopped)


def write_stopped(experiment: Path, run_id: str, reason: str) -> None:
    """Writes down that a search has seen enough of a run."""
    write_json(experiment / _STOPPED, {**read_stopped(experiment), run_id: reason})
