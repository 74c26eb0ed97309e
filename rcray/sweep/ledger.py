"""A sweep's ledger from its cells and their runs, and how it is shown."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rcray.records.ledger import Ledger, LedgerEntry
from rcray.records.states import UNSUCCESSFUL, State
from rcray.records.status import winner_lost
from rcray.secrets import redact
from rcray.store import Store
from rcray.sweep.grid import Cell

_COLOURS = {
    State.OK: "green",
    State.CACHED: "cyan",
    State.RUNNING: "yellow",
    State.PENDING: "dim",
    State.STOPPED: "blue",
    State.DEGENERATE: "magenta",
}


def build_ledger(
    cells: Sequence[Cell],
    store: Store,
    *,
    stopped: Mapping[str, str],
    running: Sequence[str] = (),
    cached: Sequence[str] = (),
) -> Ledger:
    """The ledger as the store has it now.

    Args:
        cells: the experiment's.
        store: where their runs are.
        stopped: runs that the experiment's search stopped early, and why.
        running: runs that are being carried out; what says `running` and is not among them is pending.
        cached: runs that were finished before this command.
    """

    def state_of(run_id: str, state: State) -> State:
        if run_id in running:
            return state if state is State.OK else State.RUNNING
        if state is State.OK and run_id in cached:
            return State.CACHED
        if state in (State.RUNNING, State.PENDING):
            return State.STOPPED if run_id in stopped else State.PENDING
        return state

    def entry_of(cell: Cell) -> LedgerEntry:
        run = store.run(cell.run_id)
        record = run.read_status()
        state = state_of(cell.run_id, record.status)
        return LedgerEntry(
            cell.run_id,
            cell.label,
            state,
            record.step,
            cell.config.total_steps if record.total_steps is None else record.total_steps,
            record.seconds,
            record.in_band,
            error=redact(record.error) if state in UNSUCCESSFUL else "",
            note="; ".join(filter(None, [stopped.get(cell.run_id) or run.read_adjusted().note, winner_lost(record)])),
            varied=cell.varied,
        )

    return Ledger(tuple(map(entry_of, cells)), time.time())


def ledger_table(ledger: Ledger, title: str) -> Any:
    """A rich table of every cell; a star marks one that was changed so that it could run."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(title),
        title_justify="left",
        caption=Text("\n".join([ledger.summary(), *ledger.notes()])),
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
