"""A sweep's ledger from its cells and their runs, and how it is shown."""

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from rcray.errors import StoreError
from rcray.records.ledger import Ledger, LedgerEntry, LedgerFile, read_stopped
from rcray.records.progress import TRAINING, read_progress
from rcray.records.states import UNSUCCESSFUL, State
from rcray.records.status import RunStatus, disagreement, winner_lost
from rcray.secrets import redact
from rcray.store import RunDir, Store
from rcray.sweep.grid import Cell

_COLOURS = {
    State.OK: "green",
    State.CACHED: "cyan",
    State.RUNNING: "yellow",
    State.PENDING: "dim",
    State.STOPPED: "blue",
    State.DEGENERATE: "magenta",
}


def build_ledger(cells: Sequence[Cell], store: Store, *, stopped: Mapping[str, str]) -> Ledger:
    """The ledger as the store has it now; `stopped` are runs that the experiment's search ended early, and why."""
    return Ledger(tuple(_entry(cell, store, stopped) for cell in cells), time.time())


class LiveLedger:
    """The ledger of a sweep under way: what neither runs nor has just ended is not read again.

    Whoever carries out cells says so (`start`, `end`); another thread may ask for the ledger meanwhile.
    """

    def __init__(
        self,
        cells: Sequence[Cell],
        store: Store,
        directory: Path,
        cached: Collection[str] = (),
        fetch: Callable[[Collection[str], Collection[str]], None] = lambda running, ended: None,
    ):
        """Reads every run once.

        Args:
            cells: the experiment's.
            store: where their runs are.
            directory: the experiment's, where the ledger is written.
            cached: runs that were finished before this command.
            fetch: called before runs are read, with those that run and those that have ended since.
        """
        self._cells = {cell.run_id: cell for cell in cells}
        self._store, self._directory, self._cached, self._fetch = store, directory, frozenset(cached), fetch
        self._file = LedgerFile(directory)
        self._entries: dict[str, LedgerEntry] = {}
        self._running: set[str] = set()
        self._ended: set[str] = set(self._cells)
        self._lock = threading.Lock()

    def start(self, run_id: str) -> None:
        """Somebody is at this cell now."""
        with self._lock:
            self._running.add(run_id)

    def end(self, *run_ids: str) -> None:
        """Nobody is at these cells any more, however it ended."""
        with self._lock:
            self._running.difference_update(run_ids)
            self._ended.update(run_ids)

    def refresh(self) -> Ledger:
        """The ledger as it is now, also written. Of the cells under way those whose process reports are running."""
        with self._lock:
            running, ended = set(self._running), self._ended
            self._ended = set()
        try:
            self._fetch(running, ended)
            stopped = read_stopped(self._directory)
            for run_id in [run_id for run_id in self._cells if run_id in running or run_id in ended]:
                self._entries[run_id] = _entry(
                    self._cells[run_id], self._store, stopped, running=run_id in running, cached=run_id in self._cached
                )
            ledger = Ledger(tuple(self._entries.values()), time.time())
            self._file.write(ledger)
        except BaseException:
            with self._lock:
                self._ended |= ended  # nobody would ask for them again
            raise
        return ledger


def _entry(
    cell: Cell, store: Store, stopped: Mapping[str, str], *, running: bool = False, cached: bool = False
) -> LedgerEntry:
    run = store.run(cell.run_id)
    record, damage = _record(run)
    doing = read_progress(run.path) if running else None
    state = record.status
    if doing:
        state = State.RUNNING
    elif state is State.OK and cached:
        state = State.CACHED
    elif state in (State.RUNNING, State.PENDING):
        state = State.STOPPED if cell.run_id in stopped else State.PENDING
    return LedgerEntry(
        cell.run_id,
        cell.label,
        state,
        doing.done if doing and doing.phase == TRAINING else record.step,
        cell.config.total_steps if record.total_steps is None else record.total_steps,
        record.seconds,
        record.in_band,
        error=redact(record.error) if state in UNSUCCESSFUL else damage,
        note="; ".join(filter(None, [stopped.get(cell.run_id) or run.read_adjusted().note, *_outcome(cell, record)])),
        varied=cell.varied,
        doing=doing.text if doing else "",
    )


def _record(run: RunDir) -> tuple[RunStatus, str]:
    """A run's status; of a damaged one what is wrong with it, and the file is left to who trains the run."""
    try:
        return run.read_status(), ""
    except StoreError as error:
        return RunStatus(), str(error)


def _outcome(cell: Cell, record: RunStatus) -> tuple[str, ...]:
    """What is to be said of how a run went; of its bands only once it is through."""
    bands = disagreement(record.in_band, record.looks_iii, cell.config.calibration.scores_at)
    return winner_lost(record), bands if record.status is State.OK else ""


def ledger_table(ledger: Ledger, title: str, waiting: str = "") -> Any:
    """A rich table of every cell; a star marks one with a note. `waiting`: a last line."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(title),
        title_justify="left",
        caption=Text("\n".join([ledger.summary(), *ledger.notes(), *ledger.doings(), *filter(None, [waiting])])),
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("cell", no_wrap=True)
    table.add_column("status", no_wrap=True)
    table.add_column("step", justify="right", no_wrap=True)
    table.add_column("head band", justify="right", min_width=4)  # the title breaks before labels do
    table.add_column("s", justify="right", no_wrap=True)
    table.add_column("run", no_wrap=True)
    for entry in ledger.cells:
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
