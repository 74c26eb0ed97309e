"""From run directories to results: status, metrics and a summary of the step records of every cell.

Reads only; a file that is missing or damaged becomes a status and an error text, never a number.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from rcray.aggregate.summary import DynamicsSummary, read_columns, recorded_columns, summarise
from rcray.errors import RcrayError, StoreError
from rcray.records.evaluation import MetricRow
from rcray.records.states import State
from rcray.records.status import RunStatus, read_status
from rcray.store import RunDir, Store
from rcray.sweep.grid import Cell

#: What must be equal for two measurements of a benchmark to stand in one mean or one difference.
PROTOCOL = ("task_version", "shots", "chat_template", "harness", "limit", "filter", "aggregate", "stderr_kind")


@dataclass(frozen=True)
class MetricValue:
    """One row of `evaluation.json`."""

    value: float
    stderr: float
    n: int
    ci_low: float = math.nan
    ci_high: float = math.nan
    status: str = "ok"  # or degenerate: then `value` is no score
    reason: str = ""
    protocol: tuple[tuple[str, str], ...] = ()  # task version, shots and so on, where the row says them
    errors: tuple[tuple[str, float], ...] = ()  # standard errors by the name of their definition
    note: str = ""  # what else the row says of itself

    @property
    def ok(self) -> bool:
        """Whether this is a score."""
        return self.status == "ok" and math.isfinite(self.value)


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
    metrics: Mapping[str, MetricValue] = field(default_factory=dict)
    summary: DynamicsSummary | None = None
    note: str = ""  # what was changed so that the run could be carried out at all

    @property
    def ok(self) -> bool:
        """Whether the cell has a result that may be printed as a number."""
        return self.status is State.OK

    @property
    def seed(self) -> int:
        """The training seed."""
        return self.cell.config.train.seed

    def dynamics(self, columns: Sequence[str]) -> dict[str, np.ndarray]:
        """The given columns of the step records, sorted by step; empty arrays for a run without records."""
        return read_columns(self.run, columns)

    def recorded(self) -> tuple[str, ...]:
        """The columns its step records have."""
        return recorded_columns(self.run)


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
    """Reads one run directory."""
    try:
        status = read_status(run.status)
    except StoreError as error:
        return CellResult(cell, run, State.FAILED, error=str(error))
    total_steps = cell.config.total_steps if status.total_steps is None else status.total_steps
    rows: Sequence[MetricRow] = ()
    summary, problem, note = None, "", ""
    try:
        note = run.read_adjusted().note
        rows = run.read_evaluation().rows
        summary = summarise(run, cell.config.train.probe_every, total_steps)
    except RcrayError as error:
        problem = str(error)
    return make_result(run, cell, status, rows, summary, problem, note)


def make_result(
    run: RunDir,
    cell: Cell,
    status: RunStatus,
    rows: Sequence[MetricRow],
    summary: DynamicsSummary | None,
    problem: str = "",
    note: str = "",
) -> CellResult:
    """A result from the content of a run's files; `problem` is what could not be read."""
    state, error = status.status, status.error
    if problem:  # a result that cannot be read is not a result
        state, error = State.FAILED, "; ".join(filter(None, [error, problem]))
    return CellResult(
        cell=cell,
        run=run,
        status=state,
        error=error,
        seconds=status.seconds,
        step=status.step,
        total_steps=cell.config.total_steps if status.total_steps is None else status.total_steps,
        metrics=metric_values(rows),
        summary=summary,
        note=note,
    )


def metric_values(rows: Iterable[MetricRow]) -> dict[str, MetricValue]:
    """Rows by name: a preference metric by itself, a benchmark's as `benchmark/metric`."""
    metrics: dict[str, MetricValue] = {}
    for row in rows:
        name = row.metric if row.benchmark == "preference" else row.name
        errors = {"pooled": row.stderr_pooled, "subtask_mean": row.stderr_subtask_mean}
        found = MetricValue(
            value=_number(row.value),
            stderr=_number(row.stderr),
            n=row.n,
            ci_low=_number(row.ci_low),
            ci_high=_number(row.ci_high),
            status=row.status,
            reason=row.reason or "",
            protocol=tuple((key, str(value)) for key in PROTOCOL if (value := getattr(row, key)) is not None),
            errors=tuple((name, value) for name, value in errors.items() if value is not None),
            note=row.note or "",
        )
        if name in metrics:  # one of the two would win silently
            found = MetricValue(math.nan, math.nan, 0, status="ambiguous", reason="several rows have this name")
        metrics[name] = found
    return metrics


def likelihood_unit(results: Iterable[CellResult]) -> str:
    """The unit of likelihoods under the runs' reduction."""
    found = {result.cell.config.likelihood for result in results}
    return "nats/token" if found == {"mean"} else "nats"


def _number(value: float | None) -> float:
    return math.nan if value is None else value
