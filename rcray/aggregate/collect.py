"""From run directories to results: status, metrics and a summary of the step records of every cell.

Reads only; a file that is missing or damaged becomes a status and an error text, never a number.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rcray.aggregate.summary import DynamicsSummary, read_columns, recorded_columns, summarise
from rcray.errors import RcrayError, StoreError
from rcray.files import read_json
from rcray.store import RunDir, Store
from rcray.sweep.grid import Cell

#: Every word a cell's status can be, from "there is a result" to "nothing happened yet".
STATUSES = ("ok", "degenerate", "oom", "failed", "stopped", "running", "pending")

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
    status: str
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
        return self.status == "ok"

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
        replace(result, status="stopped", error=reasons[result.cell.run_id])
        if result.status in ("pending", "running") and result.cell.run_id in reasons
        else result
        for result in results
    ]


def read_run(run: RunDir, cell: Cell) -> CellResult:
    """Reads one run directory."""
    try:
        status = read_json(run.status, default={})
    except StoreError as error:
        return CellResult(cell, run, "failed", error=str(error))
    known = status.get("total_steps")
    total_steps = int(known) if isinstance(known, int | float) else cell.config.total_steps
    rows: Any = []
    summary, problem = None, ""
    try:
        status = {**status, "note": run.read_adjusted().get("note", "")}
        rows = read_evaluation(run)
        summary = summarise(run, cell.config.train.probe_every, total_steps)
    except RcrayError as error:
        problem = str(error)
    return make_result(run, cell, status, rows, summary, problem)


def make_result(
    run: RunDir,
    cell: Cell,
    status: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    summary: DynamicsSummary | None,
    problem: str = "",
) -> CellResult:
    """A result from the content of a run's files; `problem` is what could not be read."""
    word, error_text = str(status.get("status", "pending")), str(status.get("error") or "")
    if word not in STATUSES:
        word, error_text = "failed", f"unknown status {word!r} in status.json; known: {', '.join(STATUSES)}"
    metrics: dict[str, MetricValue] = {}
    try:
        metrics = metric_values(rows)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        problem = str(StoreError(f"{run.evaluation}: not a list of metric rows: {error!r}", fix="evaluate again"))
    if problem:  # a result that cannot be read is not a result
        word, error_text = "failed", "; ".join(filter(None, [error_text, problem]))
    known = status.get("total_steps")
    return CellResult(
        cell=cell,
        run=run,
        status=word,
        error=error_text,
        seconds=_number(status.get("seconds"), 0.0),
        step=int(_number(status.get("step"), 0)),
        total_steps=int(known) if isinstance(known, int | float) else cell.config.total_steps,
        metrics=metrics,
        summary=summary,
        note=str(status.get("note") or ""),
    )


def read_evaluation(run: RunDir) -> list[Any]:
    """The metric rows of a run as they stand in its file."""
    content = read_json(run.evaluation, default={})
    rows = content.get("rows", []) if isinstance(content, dict) else None
    if not isinstance(rows, list):
        raise StoreError(f"{run.evaluation}: not a list of metric rows", fix="evaluate again")
    return rows


def metric_values(rows: Iterable[Mapping[str, Any]]) -> dict[str, MetricValue]:
    """Rows by name: a preference metric by itself, a benchmark's as `benchmark/metric`."""
    metrics: dict[str, MetricValue] = {}
    for row in rows:
        name = row["metric"] if row["benchmark"] == "preference" else f"{row['benchmark']}/{row['metric']}"
        errors = {key: value for key, value in row.items() if key.startswith("stderr_") and _is_number(value)}
        found = MetricValue(
            value=_number(row.get("value")),
            stderr=_number(row.get("stderr")),
            n=int(_number(row.get("n"), 0)),
            ci_low=_number(row.get("ci_low")),
            ci_high=_number(row.get("ci_high")),
            status=str(row.get("status") or "ok"),
            reason=str(row.get("reason") or ""),
            protocol=tuple((key, str(row[key])) for key in PROTOCOL if row.get(key) is not None),
            errors=tuple(sorted((key.removeprefix("stderr_"), float(value)) for key, value in errors.items())),
            note=str(row.get("note") or ""),
        )
        if name in metrics:  # one of the two would win silently
            found = MetricValue(math.nan, math.nan, 0, status="ambiguous", reason="several rows have this name")
        metrics[str(name)] = found
    return metrics


def likelihood_unit(results: Iterable[CellResult]) -> str:
    """The unit of likelihoods under the runs' reduction."""
    found = {result.cell.config.likelihood for result in results}
    return "nats/token" if found == {"mean"} else "nats"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: Any, default: float = math.nan) -> float:
    return float(value) if isinstance(value, int | float) else default
