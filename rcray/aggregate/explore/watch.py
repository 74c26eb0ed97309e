"""A store as it is now, read again only where it changed: what the server of the page answers from."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rcray.aggregate.collect import CellResult, read_run
from rcray.aggregate.explore.cells import differences_from, finite, rows_of
from rcray.aggregate.explore.curves import curves_of, step_records
from rcray.aggregate.explore.details import Details
from rcray.aggregate.explore.page import Subject, head_of, run_of
from rcray.errors import StoreError
from rcray.records.ledger import STOPPED, peek_stopped
from rcray.records.live import FILE as LIVE
from rcray.records.progress import read_progress
from rcray.records.states import ENDED, State
from rcray.store import Store
from rcray.sweep.grid import Cell

log = logging.getLogger(__name__)

SECONDS = 1.0  # between two looks at the store, however many pages ask
_FULL = 1_000_000  # points of a curve: as many as it has


@dataclass(frozen=True)
class Watched:
    """What is watched at one moment: a search adds cells, a store experiments."""

    subject: Subject
    cells: Sequence[Cell]
    experiments: Sequence[str]  # whose searches may have stopped some of them


class Watch:
    """What is known of every cell, with a version for each change."""

    def __init__(self, store: Store, watched: Callable[[], Watched]):
        self._store, self._watched, self._stopped = store, watched, Stopped(store)
        self._lock = threading.Lock()
        self._looked = 0.0
        self._subject: Subject | None = None
        self._marks: dict[str, tuple[Any, ...]] = {}
        self._kept: dict[str, tuple[Any, ...]] = {}  # of what does not change with every step
        self._results: dict[str, CellResult] = {}
        self._runs: dict[str, tuple[int, dict[str, Any]]] = {}
        self._head: dict[str, Any] = {}
        self._head_version = 0  # the version that the head is of
        self._head_is_old = True
        # From the clock on: a page that knew an earlier server has seen less than any version of this one.
        self._version = self._first = time.time_ns() // 1_000_000

    def state(self, after: int = 0) -> dict[str, Any]:
        """The head, and the runs that changed since a version; one that is not of this server gets all of them."""
        with self._lock:
            self._look()
            known = after if after <= self._version else 0
            runs = {run_id: run for run_id, (version, run) in self._runs.items() if version > known}
            return {"version": self._version, "head_version": self._head_version, "head": self._head, "runs": runs}

    def details(self, run_id: str) -> dict[str, Any] | None:
        """Pairs, tokens and samples of one run; None for one that is not watched."""
        if (result := self._results.get(run_id)) is None:
            return None
        details = Details()
        details.add(result)
        return details.content()

    def records(self, run_id: str) -> dict[str, Any] | None:
        """The curves of one run with every point that was recorded."""
        if (result := self._results.get(run_id)) is None:
            return None
        try:
            records = step_records(result.run, live=read_progress(result.run.path) is not None)
        except StoreError:
            return {}
        return curves_of(records, result.total_steps, result.cell.config.train.probe_every, _FULL)

    def differences(self, base: str) -> dict[str, Any] | None:
        """Every setting minus one of them, by metric: value, half of the interval, whether paired by item."""
        with self._lock:
            rows = rows_of(list(self._results.values()))
            metrics = [number["key"] for number in self._head.get("numbers", ())]
            settings = {row.key: row.setting for row in rows}
        if base not in settings:
            return None
        differences = differences_from(settings[base], settings.values(), metrics)
        plain = ([[finite(value) for value in triple] for triple in of_setting] for of_setting in differences)
        return {"metrics": metrics, "of": dict(zip(settings, plain, strict=True))}

    def _look(self) -> None:
        """Reads what changed; at most once in a while."""
        if self._version > self._first and time.monotonic() - self._looked < SECONDS:
            return
        watched = self._watched()
        subject, cells = watched.subject, watched.cells
        stopped = self._stopped.of(watched.experiments)
        gone = self._runs.keys() - {cell.run_id for cell in cells}
        for run_id in gone:
            for known in (self._runs, self._results, self._marks, self._kept):
                known.pop(run_id, None)
        self._head_is_old |= bool(gone) or subject != self._subject
        changed = [cell.run_id for cell in cells if self._look_at(cell, stopped)]
        if self._head_is_old:
            self._head = head_of(subject, [self._shown(cell.run_id) for cell in cells])
            self._subject, self._head_version, self._head_is_old = subject, self._version + 1, False
        if changed or self._head_version > self._version:
            self._version += 1
        self._looked = time.monotonic()

    def _standing(self, run_id: str) -> tuple[Any, ...]:
        return (self._runs[run_id][1]["state"], self._kept[run_id]) if run_id in self._runs else ()

    def _look_at(self, cell: Cell, stopped: dict[str, str]) -> bool:
        run = self._store.run(cell.run_id)
        doing = read_progress(run.path)
        reason = stopped.get(cell.run_id, "")
        kept = (*map(_mark, (run.status, run.evaluation, run.samples, run.adjusted, run.dynamics)), reason)
        mark = (kept, _mark(run.path / LIVE), doing and (doing.phase, doing.done, doing.total))
        if self._marks.get(cell.run_id) == mark:
            return False
        before = self._standing(cell.run_id)
        if self._kept.get(cell.run_id) != kept:
            self._results[cell.run_id] = read_run(run, cell)
            self._kept[cell.run_id] = kept
        result = self._results[cell.run_id]
        if reason and result.status not in ENDED and doing is None:
            result = replace(result, status=State.STOPPED, error=reason)
        self._runs[cell.run_id] = (self._version + 1, run_of(result, doing=doing))
        self._marks[cell.run_id] = mark  # last: what could not be read is asked again
        # What tables say: a step more of a running cell does not change it.
        self._head_is_old |= before != self._standing(cell.run_id)
        return True

    def _shown(self, run_id: str) -> CellResult:
        """A result as tables name it: one that nobody carries out any more is not running."""
        result = self._results[run_id]
        return replace(result, status=State(self._runs[run_id][1]["state"]))


def _mark(path: Path) -> tuple[int, int]:
    try:
        stat = path.stat()
    except OSError:
        return 0, 0
    return stat.st_mtime_ns, stat.st_size


class Stopped:
    """Runs that the searches of experiments stopped early, and why; each file is read again only where it changed."""

    def __init__(self, store: Store):
        self._store = store
        self._read: dict[str, tuple[tuple[int, int], dict[str, str]]] = {}

    def of(self, names: Iterable[str]) -> dict[str, str]:
        """Those of these experiments. Nothing is changed: a damaged file is said, once, and left where it is."""
        reasons: dict[str, str] = {}
        for name in names:
            folder = self._store.experiment(name)
            mark = _mark(folder / STOPPED)
            if name not in self._read or self._read[name][0] != mark:
                self._read[name] = (mark, self._peek(folder))
            reasons |= self._read[name][1]
        return reasons

    def _peek(self, folder: Path) -> dict[str, str]:
        try:
            return peek_stopped(folder)
        except StoreError as error:
            log.warning("%s; none of its runs is shown as stopped", error.message)
            return {}
