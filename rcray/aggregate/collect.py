"""From run directories to results: the status of every cell, and its rows of the frame.

Reads only; a file that is missing or damaged becomes a status and an error text, never a number. A store, the runs
fetched from MLflow and an exported ledger are directories of the same kind, and are read here alike.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rcray.aggregate.estimates import error_of_mean
from rcray.aggregate.frame import SHARE, Measurement, by_metric, evaluation_rows, likelihood_unit
from rcray.aggregate.movement import movement_rows
from rcray.aggregate.summary import LOOKS, LOOKS_III, PREDICTED, STEPS, dynamics_rows, read_columns
from rcray.errors import RcrayError, StoreError
from rcray.records.columns import IN_BAND
from rcray.records.progress import state_now
from rcray.records.states import State
from rcray.records.status import disagreement, winner_lost
from rcray.store import RunDir, Store
from rcray.sweep.grid import Cell

#: A key of the frame; several of them are the plain mean of their benchmarks.
Metric = str | tuple[str, ...]


@dataclass(frozen=True)
class CellResult:
    """One cell of an experiment and what its run directory holds."""

    cell: Cell
    run: RunDir
    status: State
    error: str = ""
    seconds: float = 0.0
    step: int = 0
    total_steps: int | None = 0  # None: the data was never read
    metrics: Mapping[str, Measurement] = field(default_factory=dict)  # its rows of the frame
    note: str = ""  # what was changed so that the run could be carried out at all; that it lost its winner

    @property
    def ok(self) -> bool:
        """Whether the cell has a result that may be printed as a number."""
        return self.status is State.OK

    @property
    def seed(self) -> int:
        """The training seed."""
        return self.cell.config.train.seed

    @property
    def bands_disagree(self) -> str:
        """What to say where the paper's band and the updates tell the run differently."""
        where = self.cell.config.calibration.scores_at
        return disagreement(self.value(IN_BAND), self.value(LOOKS_III), where) if self.ok else ""

    @property
    def recorded(self) -> bool:
        """Whether it has step records."""
        return STEPS in self.metrics

    @property
    def predicted_at_head(self) -> bool:
        """Whether its predicted pathways are those of the head's band: records from before looks have no others."""
        return self.value(LOOKS) == 0 and self.metrics[PREDICTED["i"]].ok

    def measurement(self, metric: Metric) -> Measurement | None:
        """A row of the frame, or the mean of several; no mean where one of them is no score."""
        if isinstance(metric, str):
            return self.metrics.get(metric)
        rows = [self.metrics[key] for key in metric if key in self.metrics and self.metrics[key].ok]
        if not rows or len(rows) < len(metric):
            return None
        error = error_of_mean([row.error for row in rows])
        mean = sum(row.value for row in rows) / len(rows)
        return Measurement(self.cell.run_id, "average", mean, math.nan if error is None else error, unit=SHARE)

    def value(self, metric: str) -> float:
        """A number of the frame; nan where it is not there."""
        return self.metrics[metric].value if metric in self.metrics else math.nan

    def dynamics(self, columns: Sequence[str]) -> dict[str, np.ndarray]:
        """The given columns of the step records, sorted by step; empty arrays for a run without records."""
        return read_columns(self.run, columns)


def collect(store: Store, cells: Sequence[Cell], stopped: Mapping[str, str] | None = None) -> list[CellResult]:
    """Reads what the store holds about every cell, in the order of `cells`.

    Args:
        store: where the runs are.
        cells: which of them.
        stopped: runs that a search has stopped early, and why; else they are like any that wait to be continued.
    """
    results = [read_run(store.run(cell.run_id), cell) for cell in cells]
    reasons = stopped or {}
    return [
        replace(result, status=State.STOPPED, error=reasons[result.cell.run_id])
        if result.status in (State.PENDING, State.RUNNING) and result.cell.run_id in reasons
        else result
        for result in results
    ]


def read_run(run: RunDir, cell: Cell) -> CellResult:
    """Reads one run directory; what cannot be read is no result."""
    try:
        status = run.read_status()
    except StoreError as error:
        return CellResult(cell, run, State.FAILED, error=str(error))
    total_steps = cell.config.total_steps if status.total_steps is None else status.total_steps
    state = state_now(run.path, status.status)
    result = CellResult(cell, run, state, status.error, status.seconds, status.step, total_steps)
    try:
        result = replace(result, note="; ".join(filter(None, [run.read_adjusted().note, winner_lost(status)])))
        result = replace(result, metrics=by_metric(_rows(run, cell, total_steps)))
    except RcrayError as error:
        return replace(result, status=State.FAILED, error="; ".join(filter(None, [status.error, str(error)])))
    return result


def _rows(run: RunDir, cell: Cell, total_steps: int | None) -> Iterator[Measurement]:
    config = cell.config
    yield from evaluation_rows(cell.run_id, config, run.read_evaluation().rows)
    yield from dynamics_rows(run, config.train.probe_every, total_steps, likelihood_unit([config]))
    yield from movement_rows(run)


def by_looks(results: Iterable[CellResult], looked: str, at_head: str) -> str:
    """What the predicted pathways are: `looked`, or `at_head` for records from before looks, or both."""
    kinds = {result.predicted_at_head for result in results if result.ok and result.recorded}
    if kinds == {True}:
        return at_head
    return f"{looked} (without looks: {at_head})" if True in kinds else looked
