"""The ledger: what became of every cell, on the screen while it runs and in a file for later."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rcray.files import recover_json, write_json
from rcray.secrets import redact
from rcray.store import Store
from rcray.sweep.grid import Cell

#: Every status a cell can have. `cached` is `ok` from an earlier command.
STATUSES = ("ok", "cached", "stopped", "running", "pending", "failed", "oom", "degenerate")
FINISHED = ("ok", "cached", "stopped")  # stopped: a search has seen enough of it; as a run it is pending
_STOPPED = "stopped.json"
UNSUCCESSFUL = ("failed", "oom", "degenerate")
_COLOURS = {
    "ok": "green",
    "cached": "cyan",
    "running": "yellow",
    "pending": "dim",
    "stopped": "blue",
    "degenerate": "magenta",
}


@dataclass(frozen=True)
class Entry:
    """One cell's line."""

    run_id: str
    label: str
    status: str = "pending"
    step: int = 0
    total_steps: int | None = 0  # None: known once the data is read
    seconds: float = 0.0
    in_band: float | None = None
    error: str = ""
    note: str = ""  # what was changed so that the cell could run at all


def read_stopped(experiment: Path) -> dict[str, str]:
    """Runs that an experiment's search stopped early, and why; to any other experiment they are unfinished."""
    found: dict[str, str] = recover_json(experiment / _STOPPED, {}, "what to stop is decided again")
    return found


class Ledger:
    """The entries of one experiment, in the order of its cells."""

    def __init__(self, path: Path, cells: Sequence[Cell]):
        self.path = path
        self.started = time.time()
        self.entries = {c.run_id: Entry(c.run_id, c.label, total_steps=c.config.total_steps) for c in cells}

    def refresh(self, store: Store, *, running: Sequence[str] = (), cached: Sequence[str] = ()) -> None:
        """Reads every run's status from the store; what says `running` but is not being run is pending."""
        stopped = self.stopped()
        for key, entry in self.entries.items():
            found = store.run(key).read_status()
            status = found.get("status", "pending")
            if status == "running" and key not in running:
                status = "pending"
            if status in (*UNSUCCESSFUL, "pending") and key in running:
                status = "running"
            if status == "ok" and key in cached:
                status = "cached"
            if status == "pending" and key in stopped:
                status = "stopped"
            known = {name: found[name] for name in ("step", "total_steps", "seconds", "in_band") if name in found}
            error = redact(found.get("error", "")) if status in UNSUCCESSFUL else ""
            note = stopped.get(key) or store.run(key).read_adjusted().get("note", "")
            self.entries[key] = replace(entry, status=status, error=error, note=note, **known)

    def stopped(self) -> dict[str, str]:
        """Runs that this experiment's search stopped early, and why."""
        return read_stopped(self.path.parent)

    def stop(self, run_id: str, reason: str) -> None:
        """Writes down that a search has seen enough of a run."""
        write_json(self.path.parent / _STOPPED, {**self.stopped(), run_id: reason})

    def tally(self) -> dict[str, int]:
        """How many cells have each status, in the order of STATUSES."""
        counts = Counter(entry.status for entry in self.entries.values())
        return {status: counts[status] for status in STATUSES if counts[status]}

    @property
    def complete(self) -> bool:
        """Whether every cell has its result."""
        return all(entry.status in FINISHED for entry in self.entries.values())

    def save(self) -> None:
        """Writes the file."""
        content = {"updated": time.time(), "tally": self.tally(), "cells": [asdict(e) for e in self.entries.values()]}
        write_json(self.path, content)

    def summary(self) -> str:
        """One line for logs and non-terminals."""
        return ", ".join(f"{count} {status}" for status, count in self.tally().items())

    def notes(self) -> list[str]:
        """One line per cell that did not run as asked."""
        return [f"* {entry.label}: {entry.note}" for entry in self.entries.values() if entry.note]

    def table(self, title: str) -> Any:
        """A rich table of every cell; a star marks one that was changed so that it could run."""
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(
            title=Text(title),
            title_justify="left",
            caption=Text("\n".join([self.summary(), *self.notes()])),
            caption_justify="left",
            box=box.SIMPLE_HEAD,
            pad_edge=False,
        )
        table.add_column("cell", no_wrap=True)
        table.add_column("status", no_wrap=True)
        table.add_column("step", justify="right", no_wrap=True)
        table.add_column("band", justify="right", no_wrap=True, min_width=4)
        table.add_column("s", justify="right", no_wrap=True)
        table.add_column("run", no_wrap=True)
        for entry in self.entries.values():
            total = "?" if entry.total_steps is None else entry.total_steps
            table.add_row(
                Text(entry.label),
                Text(entry.status + ("*" if entry.note else ""), style=_COLOURS.get(entry.status, "red")),
                f"{entry.step}/{total}",
                "" if entry.in_band is None else f"{entry.in_band:.0%}",
                f"{entry.seconds:.1f}" if entry.seconds else "",
                entry.run_id,
            )
        return table
