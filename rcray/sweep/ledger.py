"""A sweep's ledger from its cells and their runs, and how it is shown."""

import heapq
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from rcray.errors import StoreError
from rcray.records.ledger import LEDGER, Ledger, LedgerEntry, LedgerFile, read_stopped
from rcray.records.progress import TRAINING, read_progress
from rcray.records.states import UNSUCCESSFUL, State
from rcray.records.status import RunStatus, disagreement, winner_lost
from rcray.secrets import redact
from rcray.store import RunDir, Store
from rcray.sweep.grid import Cell

MANY = 200  # cells; of more a table shows those that failed
_FRAME = 7  # lines of a table beside its cells and its caption: title, heads in two lines, rules
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


def ledger_table(ledger: Ledger, title: str) -> Any:
    """A rich table of every cell; a star marks one with a note. Of many cells those that failed, and all counted."""
    if len(ledger.cells) <= MANY:
        return _table(ledger.cells, title, [ledger.summary(), *ledger.notes(), *ledger.doings()])
    failed = [entry for entry in ledger.cells if entry.status in UNSUCCESSFUL]
    left_out = f"{len(ledger.cells) - len(failed[:MANY]):,} cells are not shown: {LEDGER} has all"
    return _table(failed[:MANY], title, [ledger.summary(), left_out, *ledger.notes()])


def screen_table(ledger: Ledger, title: str, height: int, latest: Collection[str] = (), waiting: str = "") -> Any:
    """The same of a sweep under way, in so many lines: those that run, that failed, and the last that finished.

    Args:
        ledger: as it is now.
        title: above it.
        height: lines there are; a small sweep is shown whole.
        latest: runs in the order in which they finished.
        waiting: a last line.
    """
    last = [*filter(None, [waiting])]
    doings = ledger.doings()
    caption = [ledger.summary(), *ledger.notes(), *doings, *last]
    if len(ledger.cells) + len(caption) + _FRAME <= height:
        return _table(ledger.cells, title, caption)
    room = max(1, height - _FRAME - 2 - len(last))  # beside the tally and how many are not shown
    doings = doings[: room // 3]
    shown = _most_telling(ledger.cells, room - len(doings), latest)
    noted = sum(bool(entry.note) for entry in ledger.cells)
    left_out = f"{len(shown)} of {len(ledger.cells):,} cells are shown" + (f"; {noted:,} have a note" if noted else "")
    return _table(shown, title, [ledger.summary(), f"{left_out}; {LEDGER} has all", *doings, *last])


def _most_telling(cells: Sequence[LedgerEntry], room: int, latest: Collection[str]) -> list[LedgerEntry]:
    """Of so many cells, in their order, those that a reader waits for."""
    finished = {run_id: -place for place, run_id in enumerate(latest)}

    def rank(place: int) -> tuple[int, int]:
        entry = cells[place]
        if entry.status is State.RUNNING:
            return 0, place
        if entry.status in UNSUCCESSFUL:
            return 1, place
        return (2, finished[entry.run_id]) if entry.run_id in finished else (3, place)

    return [cells[place] for place in sorted(heapq.nsmallest(room, range(len(cells)), key=rank))]


def _table(cells: Sequence[LedgerEntry], title: str, caption: Sequence[str]) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(title),
        title_justify="left",
        caption=Text("\n".join(caption)),
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
    for entry in cells:
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
