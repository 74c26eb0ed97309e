"""What `rcray watch` looks at: the cells of experiment files, or whatever was swept into a store."""

import logging
from collections.abc import Sequence
from pathlib import Path

from rcray.aggregate.explore.page import Subject
from rcray.aggregate.explore.watch import Watch, stopped_in
from rcray.aggregate.exported import cell_of
from rcray.aggregate.report import names_of, origins_of
from rcray.config import Experiment
from rcray.errors import RcrayError, StoreError
from rcray.records.ledger import LEDGER, read_ledger
from rcray.store import Store
from rcray.sweep.grid import Cell

log = logging.getLogger(__name__)

#: A file's sweep command, its experiment, and the cells of that.
Asked = tuple[Sequence[str], Experiment, Sequence[Cell]]


def watch_experiments(store: Store, asked: Sequence[Asked]) -> Watch:
    """The cells of experiment files, whether they were started or not."""
    experiments = [experiment for _, experiment, _ in asked]
    origins = origins_of((command, cells) for command, _, cells in asked)
    cells = list({cell.run_id: cell for _, _, cells in asked for cell in cells}.values())
    subject = Subject(*names_of(experiments), origins)
    return Watch(store, lambda: (subject, cells), stopped_in(store, [each.name for each in experiments]))


def watch_store(store: Store) -> Watch:
    """Every experiment that was swept into a store; their cells as far as they were started."""
    names = [path.parent.name for path in _ledgers(store)]
    if not names:
        raise StoreError(f"{store.root}: nothing was swept here yet", fix="give an experiment file, or another --store")
    known: dict[str, Cell] = {}

    def watched() -> tuple[Subject, Sequence[Cell]]:
        ledgers = {path.parent.name: read_ledger(path.parent) for path in _ledgers(store)}
        cells = {}
        for entry in (entry for ledger in ledgers.values() for entry in ledger.cells):
            try:
                if entry.run_id not in known and store.run(entry.run_id).config.is_file():
                    known[entry.run_id] = cell_of(store, entry)
            except RcrayError as error:
                log.warning("run %s is left out: %s", entry.run_id, error)
            if entry.run_id in known:
                cells[entry.run_id] = known[entry.run_id]
        waiting = sum(len(ledger.cells) for ledger in ledgers.values()) - len(cells)
        missing = f"{waiting} cells were not started yet; give their experiment file to list them." if waiting else ""
        return Subject(", ".join(ledgers), f"Cells of {', '.join(ledgers)}", missing), list(cells.values())

    return Watch(store, watched, stopped_in(store, names))


def _ledgers(store: Store) -> list[Path]:
    return sorted(store.root.glob(f"experiments/*/{LEDGER}"))
