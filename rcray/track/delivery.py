"""Delivery: what the store has and the tracker has not. Repeatable at any time; nothing is lost, nothing doubled.

The records on disk are the spool. A pass asks the tracker how far a run was delivered, sends what is missing and
closes what has ended. Whatever interrupts it (a dead server, a kill of this process) the next pass, of this or another
process, goes on from what the tracker has. The training processes never see any of this.
"""

import json
import logging
import math
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rcray.errors import RcrayError
from rcray.extras import explained_imports
from rcray.records.evaluation import MetricRow
from rcray.records.progress import state_now
from rcray.records.states import ENDED, State
from rcray.secrets import redact
from rcray.store import RunDir, Store
from rcray.sweep.grid import Cell
from rcray.track import artifacts
from rcray.track.book import Book, Server, store_id
from rcray.track.curves import DELIVERED, Cursor, batches, cursor_at
from rcray.track.describe import PARENT, STATES, allowed_name, clean_tags, params_of, tags_of
from rcray.track.provenance import environment, provenance, record_environment, recorded_tags
from rcray.track.tracker import Point, TrackedRun, Tracker, TrackerState, TrackerUnavailableError
from rcray.track.turns import Turns

with explained_imports():
    from pyarrow import ArrowException

log = logging.getLogger(__name__)

_MARKS = "rcray.delivered"  # a tag: what of a run's files the tracker has

#: Draws a cell's own figure: suffix -> content. The layer above provides it.
Draw = Callable[[Cell], Mapping[str, bytes]]


@dataclass(frozen=True)
class DeliveryPlan:
    """What is to be delivered."""

    name: str
    title: str
    cells: Sequence[Cell]
    parent: bool = True  # a parent run for the sweep; a single run joins one only if it exists
    started_here: Collection[str] = ()  # run ids that this command trains: their environment is ours
    awaits_evaluation: bool = False  # a finished cell is closed when its metrics are there
    live: bool = False  # somebody is training: what says `running` is


@dataclass
class Tally:
    """What was sent."""

    runs: int = 0
    points: int = 0
    files: int = 0

    @property
    def nothing(self) -> bool:
        """Whether the tracker had everything."""
        return not (self.runs or self.points or self.files)

    def __str__(self) -> str:
        return "nothing new" if self.nothing else f"{self.runs} new runs, {self.points} points, {self.files} files"


class Delivery:
    """Passes over the cells of one experiment, to one tracker."""

    def __init__(self, plan: DeliveryPlan, store: Store, open_tracker: Callable[[], Tracker], uri: str, draw: Draw):
        self.plan = plan
        self.store = store
        self.uri = uri
        self.draw = draw
        self.book = Book(store, plan.name)
        self.sent = Tally()
        self.problems: dict[str, str] = {}  # run id -> why it cannot be delivered
        self._open_tracker = open_tracker
        self._tracker: Tracker | None = None
        self._server = Server()
        self._opened = False
        self._parent: TrackedRun | None = None
        self._runs: dict[str, TrackedRun] = {}
        self._cursors: dict[str, Cursor] = {}
        self._turns = Turns()
        self._environment: dict[str, Any] | None = None

    def deliver(
        self,
        *,
        final: bool = False,
        patience: float = 5,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """One pass over the cells.

        Args:
            final: nothing more will come, so ended cells are closed as they are.
            patience: seconds to wait for another process that delivers the same experiment.
            stop: asked before each cell and after each batch; the rest is left to the next pass.

        Raises:
            TrackerUnavailableError: the tracker is away; what was sent until then is not sent again.
            DeliveryBusyError: another process is delivering this experiment, and did not end its pass in time.
        """
        if final:
            self.plan = replace(self.plan, live=False)
        with self.book.held(patience) as mine:
            if not mine:
                self._forget()
            if not self._opened:
                self._open()
            for cell, files in self._turns.due(self.plan.cells, self.store, everything=not self.plan.live):
                if stop():
                    break
                self._turns.begin(cell)
                try:
                    if self._deliver(cell, final, stop):
                        self._turns.level(cell, files)
                    self.problems.pop(cell.run_id, None)
                except (RcrayError, ArrowException, OSError) as error:
                    # Whether the last call arrived is not known: ask before sending again.
                    self._cursors.pop(cell.run_id, None)
                    self._runs.pop(cell.run_id, None)
                    if isinstance(error, TrackerUnavailableError):
                        raise
                    self._note(cell, error)

    def change_plan(self, plan: DeliveryPlan) -> None:
        """From the next pass on."""
        if plan.parent != self.plan.parent:
            self._opened = False
        self._turns.forget()
        self.plan = plan

    def _note(self, cell: Cell, error: Exception) -> None:
        text = redact(f"{cell.label}: {error}")
        if self.problems.get(cell.run_id) != text:
            log.warning("cannot be delivered: %s", text)
        self.problems[cell.run_id] = text

    def _forget(self) -> None:
        self._opened = False
        self._runs.clear()
        self._cursors.clear()
        self._turns.forget()

    def open(self) -> None:
        """Opens the tracker, if it can be opened now; a pass does it too."""
        if self._tracker is None:
            self._tracker = self._open_tracker()

    @property
    def tracker(self) -> Tracker:
        """The tracker, opened."""
        self.open()
        assert self._tracker is not None
        return self._tracker

    # -- runs looked up or created

    def _open(self) -> None:
        self._server = self.book.server(self.uri)
        experiment = self.tracker.open_experiment(self.plan.name)
        if experiment != self._server.experiment:  # another database at the same address
            self._server = Server(experiment)
            self.book.save_server(self.uri, experiment, "")
        if not self.plan.parent:
            self._parent = self.tracker.read_run(self._server.parent) if self._server.parent else None
            self._opened = True
            return
        tags = {"rcray.kind": "sweep", "rcray.store": store_id(self.store)}
        parent = self._find(self._server.parent, tags)
        if parent is None:
            more = clean_tags({"rcray.title": self.plan.title or self.plan.name})
            parent = self.tracker.create_run(experiment, f"{self.plan.name} (sweep)", {**tags, **more}, _now())
        self._server.parent = parent.id
        self.book.save_server(self.uri, experiment, parent.id)
        if self.plan.live:
            self.tracker.set_tags(parent.id, clean_tags({f"rcray.{k}": v for k, v in provenance().items()}))
            self.tracker.set_state(parent.id, "RUNNING")
            parent = replace(parent, state="RUNNING")
        self._parent = parent
        self._opened = True

    def _find(self, known: str, tags: Mapping[str, str]) -> TrackedRun | None:
        """By the id in our book; by its tags where a kill came between making it and writing that down."""
        run = self.tracker.read_run(known) if known else None
        return run or self.tracker.find_run(self._server.experiment, tags)

    def _run(self, cell: Cell) -> TrackedRun:
        if cell.run_id in self._runs:
            return self._runs[cell.run_id]
        tags = tags_of(cell) | {"rcray.store": store_id(self.store)}
        key = {"rcray.run_id": cell.run_id, "rcray.store": tags["rcray.store"]}
        if self._parent is not None:
            tags[PARENT] = self._parent.id
        run = self._find(self._server.runs.get(cell.run_id, ""), key)
        if run is None:
            started = _modified(self.store.run(cell.run_id).config) or _now()
            run = self.tracker.create_run(self._server.experiment, redact(cell.label), tags, started)
            self.sent.runs += 1
        if self._server.runs.get(cell.run_id) != run.id:
            self._server.runs[cell.run_id] = run.id
            self.book.save_run(self.uri, cell.run_id, run.id)
        missing = {name: value for name, value in params_of(cell.config).items() if name not in run.params}
        if missing:
            self.tracker.log_params(run.id, missing)
        self._runs[cell.run_id] = run
        self._set_tags(cell, tags)
        return self._runs[cell.run_id]

    def _set_tags(self, cell: Cell, tags: Mapping[str, str]) -> None:
        run = self._runs[cell.run_id]
        changed = {name: value for name, value in tags.items() if run.tags.get(name) != value}
        if changed:
            self.tracker.set_tags(run.id, changed)
            self._runs[cell.run_id] = replace(run, tags={**run.tags, **changed})

    # -- one cell

    def _deliver(self, cell: Cell, final: bool, stop: Callable[[], bool]) -> bool:
        """Returns whether the tracker has all there is now; False where it was stopped before."""
        directory = self.store.run(cell.run_id)
        status = directory.read_status()
        state = status.status if self.plan.live else state_now(directory.path, status.status)
        tracked = self._run(cell)
        if directory.status.exists() and cell.run_id in self.plan.started_here:
            self._environment = self._environment or environment()
            record_environment(directory, self._environment)
        if cell.run_id not in self._cursors:
            self._cursors[cell.run_id] = cursor_at(directory, int(tracked.newest.get(DELIVERED, 0)))
        upto = status.step
        for batch in batches(directory, self._cursors[cell.run_id], upto, tracked.started):
            self.tracker.log_points(tracked.id, batch.points)
            self._cursors[cell.run_id] = batch.after
            self.sent.points += len(batch.points)
            if stop():
                return False
        error = redact(status.error) if state in ENDED else ""
        tags = {"rcray.status": state, **recorded_tags(directory)}
        if error or "rcray.error" in tracked.tags:
            tags["rcray.error"] = error
        if state in ENDED and (
            final or state is not State.OK or not self.plan.awaits_evaluation or directory.evaluation.exists()
        ):
            self._close(cell, directory, state)
        self._set_tags(cell, clean_tags(tags))
        tracked_state = STATES.get(state, "SCHEDULED")
        if state is State.PENDING and upto and not self.plan.live:
            tracked_state = "KILLED"
        self._set_state(cell, tracked_state, directory)
        return True

    def _set_state(self, cell: Cell, state: TrackerState, run: RunDir) -> None:
        tracked = self._runs[cell.run_id]
        if tracked.state != state:
            self.tracker.set_state(tracked.id, state, _modified(run.status))
            self._runs[cell.run_id] = replace(tracked, state=state)

    def _close(self, cell: Cell, run: RunDir, state: State) -> None:
        """Final metrics and files: those that changed since they were sent."""
        tracked = self._runs[cell.run_id]
        marks = artifacts.fingerprints(run, state)
        have = artifacts.read_marks(tracked.tags.get(_MARKS, "{}"))
        changed = {name for name, mark in marks.items() if have.get(name) != mark}
        if not changed:
            return
        if artifacts.BENCHMARKS in changed:
            rows = run.read_evaluation().rows
            self._send_scores(cell, rows, _modified(run.evaluation) or _now())
            self.tracker.log_table(
                tracked.id, artifacts.BENCHMARKS, [artifacts.table_row(row.content()) for row in rows]
            )
        with tempfile.TemporaryDirectory() as folder:
            files = artifacts.build(run, changed, Path(folder), lambda: self._drawn(cell))
            self.tracker.log_files(tracked.id, files)
            self.sent.files += len(files)
        self._set_tags(cell, {_MARKS: json.dumps(marks)})

    def _drawn(self, cell: Cell) -> Mapping[str, bytes]:
        try:
            return self.draw(cell)
        except Exception as error:  # a figure is not worth a run's delivery
            log.warning("%s: no figure: %s", cell.label, error)
            return {}

    def _send_scores(self, cell: Cell, rows: Sequence[MetricRow], at: int) -> None:
        """Final metrics as single points; a non-finite one is no score."""
        tracked = self._runs[cell.run_id]
        values: dict[str, float] = {}
        for row in rows:
            for suffix, value in (("", row.value), ("_stderr", row.stderr)):
                if value is not None and math.isfinite(value):
                    values[allowed_name(row.name + suffix)] = value
        points = [Point(name, v, 0, at) for name, v in values.items() if tracked.newest.get(name) != v]
        if points:
            self.tracker.log_points(tracked.id, points)
            self._runs[cell.run_id] = replace(tracked, newest={**tracked.newest, **values})
            self.sent.points += len(points)

    # -- the parent

    def finish(self, state: TrackerState, paths: Sequence[Path], tally: str, patience: float = 5) -> None:
        """Closes the parent run with the ledger, tables, figures and report."""
        if self._parent is None or not self.plan.parent:
            return
        parent = self._parent
        with self.book.held(patience), tempfile.TemporaryDirectory() as folder:
            files = artifacts.tree(paths)
            tags = {"rcray.tally": tally, _MARKS: artifacts.tree_mark(files)}
            if parent.tags.get(_MARKS) != tags[_MARKS]:
                self.tracker.log_files(parent.id, artifacts.cleaned(files, Path(folder)))
                self.sent.files += len(files)
            if any(parent.tags.get(name) != value for name, value in tags.items()):
                self.tracker.set_tags(parent.id, clean_tags(tags))
            if parent.state != state:
                self.tracker.set_state(parent.id, state, _now())
            self._parent = replace(parent, state=state, tags={**parent.tags, **tags})


def _now() -> int:
    return int(1000 * time.time())


def _modified(path: Path) -> int | None:
    try:
        return int(1000 * path.stat().st_mtime)
    except OSError:
        return None
