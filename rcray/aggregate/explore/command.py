"""What `rcray watch` looks at: the cells of experiment files, or whatever was swept into a store."""

import logging
from collections.abc import Collection, Sequence
from pathlib import Path

from rcray.aggregate.explore.page import Subject
from rcray.aggregate.explore.watch import Watch, Watched
from rcray.aggregate.exported import cell_of
from rcray.aggregate.report import names_of, origins_of
from rcray.config import Experiment, build_run, run_id
from rcray.errors import ConfigError, RcrayError, StoreError
from rcray.records.ledger import LEDGER, LedgerEntry, read_ledger
from rcray.store import Store
from rcray.sweep.grid import Cell

log = logging.getLogger(__name__)

_NO_FILE = "No experiment file was given: `rcray watch FILE` offers the command that runs its cells."
#: A file's sweep command, its experiment, and the cells of that.
Asked = tuple[Sequence[str], Experiment, Sequence[Cell]]


def watch_experiments(store: Store, asked: Sequence[Asked]) -> Watch:
    """The cells of experiment files, whether they were started or not, and those that a search chooses meanwhile."""
    experiments = [experiment for _, experiment, _ in asked]
    known = list(asked)

    def watched() -> Watched:
        known[:] = [(command, each, with_chosen(store, each, cells)) for command, each, cells in known]
        cells = list({cell.run_id: cell for _, _, cells in known for cell in cells}.values())
        return Watched(Subject(*names_of(experiments), origins_of(known)), cells, [each.name for each in experiments])

    return Watch(store, watched)


def with_chosen(store: Store, experiment: Experiment, cells: Sequence[Cell]) -> Sequence[Cell]:
    """The cells of a file, and those of its ledger that Optuna has chosen: the file names its first batch alone."""
    search = experiment.search
    if search is None or search.method != "optuna":
        return cells
    known = {cell.run_id: cell for cell in cells}
    for entry in read_ledger(store.experiment(experiment.name)).cells:
        if entry.run_id not in known and (chosen := _chosen(entry, cells[0], search.space)):
            known[entry.run_id] = chosen
    return list(known.values())


def _chosen(entry: LedgerEntry, like: Cell, space: Collection[str]) -> Cell | None:
    """A ledger's cell, made of one that differs in searched fields alone; None for one of other settings."""
    point = {path: value for path, value in entry.varied if path in space}
    try:
        config = build_run(like.config.model_dump(mode="json"), point, entry.label)
    except ConfigError as error:
        log.warning("run %s is left out: %s", entry.run_id, error)
        return None
    return Cell(entry.run_id, config, entry.varied) if run_id(config) == entry.run_id else None


def watch_store(store: Store) -> Watch:
    """Every experiment that was swept into a store; their cells as far as they were started."""
    if not _ledgers(store):
        raise StoreError(f"{store.root}: nothing was swept here yet", fix="give an experiment file, or another --store")
    known: dict[str, Cell] = {}

    def watched() -> Watched:
        ledgers = {path.parent.name: read_ledger(path.parent) for path in _ledgers(store)}
        cells = {}
        entries = {entry.run_id: entry for ledger in ledgers.values() for entry in ledger.cells}  # some are shared
        for entry in entries.values():
            try:
                if entry.run_id not in known and store.run(entry.run_id).config.is_file():
                    known[entry.run_id] = cell_of(store, entry)
            except RcrayError as error:
                log.warning("run %s is left out: %s", entry.run_id, error)
            if entry.run_id in known:
                cells[entry.run_id] = known[entry.run_id]
        waiting = len(entries) - len(cells)
        missing = f"{waiting} cells were not started yet; give their experiment file to list them." if waiting else ""
        names = ", ".join(ledgers)
        subject = Subject(names, f"Cells of {names}", missing, no_command=_NO_FILE)
        return Watched(subject, list(cells.values()), list(ledgers))

    return Watch(store, watched)


def _ledgers(store: Store) -> list[Path]:
    return sorted(store.root.glob(f"experiments/*/{LEDGER}"))
