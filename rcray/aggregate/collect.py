"""From run directories to results: status, metrics and a summary of the step records of every cell.

Reads only; a file that is missing or damaged becomes a status and an error text, never a number.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rcray.errors import RcrayError, StoreError
from rcray.records import PATHWAYS
from rcray.store import RunDir, Store, read_json
from rcray.sweep.grid import Cell
from rcray.train.dynamics import read_dynamics

#: Every word a cell's status can be, from "there is a result" to "nothing happened yet".
STATUSES = ("ok", "degenerate", "oom", "failed", "running", "pending")

_SUMMARY_COLUMNS = ("step", "in_band", "pathway_predicted", "pathway_realised", "probe_z_w", "probe_z_l", "skipped")


@dataclass(frozen=True)
class MetricValue:
    """One row of `evaluation.json`."""

    value: float
    stderr: float
    n: int
    ci_low: float
    ci_high: float


@dataclass(frozen=True)
class DynamicsSummary:
    """What the step records say, in a few numbers. Shares are of the recorded steps, between 0 and 1."""

    steps: int
    in_band: float
    pathways: Mapping[str, float]  # predicted, by pathway; sums to 1
    agreement: float  # share of probe intervals whose realised pathway is the predicted one; nan without any
    intervals: int  # probe intervals behind `agreement`
    change_w: float  # probe z_w, last measurement minus first, nats; nan with fewer than two
    change_l: float
    skipped: float  # steps that calibration left alone


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


def collect(store: Store, cells: Sequence[Cell]) -> list[CellResult]:
    """Reads what the store holds about every cell, in the order of `cells`."""
    return [_collect_one(store.run(cell.run_id), cell) for cell in cells]


def _collect_one(run: RunDir, cell: Cell) -> CellResult:
    try:
        status = run.read_status()
    except StoreError as error:
        return CellResult(cell, run, "failed", error=str(error))
    word, error_text = str(status.get("status", "pending")), str(status.get("error") or "")
    if word not in STATUSES:
        word, error_text = "failed", f"unknown status {word!r} in status.json; known: {', '.join(STATUSES)}"
    known = status.get("total_steps")
    total_steps = int(known) if isinstance(known, int | float) else cell.config.total_steps
    metrics: dict[str, MetricValue] = {}
    summary = None
    try:
        metrics = _read_metrics(run)
        records = read_columns(run, _SUMMARY_COLUMNS)
        summary = _summarise(records, cell.config.train.probe_every, total_steps)
    except RcrayError as error:
        # A result that cannot be read is not a result.
        word, error_text = "failed", "; ".join(filter(None, [error_text, str(error)]))
    return CellResult(
        cell=cell,
        run=run,
        status=word,
        error=error_text,
        seconds=_number(status.get("seconds"), 0.0),
        step=int(_number(status.get("step"), 0)),
        total_steps=total_steps,
        metrics=metrics,
        summary=summary,
    )


def _read_metrics(run: RunDir) -> dict[str, MetricValue]:
    content = read_json(run.evaluation, default={})
    metrics = {}
    try:
        for row in content.get("rows", []):
            name = row["metric"] if row["benchmark"] == "preference" else f"{row['benchmark']}/{row['metric']}"
            numbers = [_number(row.get(key)) for key in ("value", "stderr", "ci_low", "ci_high")]
            metrics[str(name)] = MetricValue(
                numbers[0], numbers[1], int(_number(row.get("n"), 0)), numbers[2], numbers[3]
            )
    except (AttributeError, KeyError, TypeError) as error:
        raise StoreError(f"{run.evaluation}: not a list of metric rows: {error!r}", fix="evaluate again") from None
    return metrics


def _number(value: Any, default: float = math.nan) -> float:
    return float(value) if isinstance(value, int | float) else default


def read_columns(run: RunDir, columns: Sequence[str]) -> dict[str, np.ndarray]:
    """Columns of a run's step records as arrays, sorted by step."""
    import pyarrow as pa

    try:
        table = read_dynamics(run.dynamics, list(columns))
    except (pa.ArrowException, OSError, KeyError) as error:
        reason = " ".join(str(error).split())
        raise StoreError(
            f"{run.dynamics}: cannot be read as step records: {reason}", fix="run the cell again"
        ) from None
    return {name: _to_numpy(table.column(name)) for name in columns}


def _to_numpy(column: Any) -> np.ndarray:
    import pyarrow as pa

    if pa.types.is_boolean(column.type):
        return np.array([bool(value) for value in column.to_pylist()], dtype=bool)
    words = (pa.types.is_string, pa.types.is_large_string, pa.types.is_dictionary)
    if any(is_kind(column.type) for is_kind in words):
        return np.array([value or "" for value in column.to_pylist()], dtype=object)
    return column.to_numpy()


def _summarise(records: Mapping[str, np.ndarray], probe_every: int, total_steps: int | None) -> DynamicsSummary | None:
    steps = len(records["step"])
    if steps == 0:
        return None
    predicted = [word if word in PATHWAYS else "undefined" for word in records["pathway_predicted"]]
    counts = Counter(predicted)
    finished = int(records["step"][-1]) == total_steps
    agreement, intervals = _agreement(predicted, list(records["pathway_realised"]), probe_every, finished)
    return DynamicsSummary(
        steps=steps,
        in_band=float(np.mean(records["in_band"])),
        pathways={name: counts[name] / steps for name in PATHWAYS},
        agreement=agreement,
        intervals=intervals,
        change_w=_change(records["probe_z_w"]),
        change_l=_change(records["probe_z_l"]),
        skipped=float(np.mean(records["skipped"] != "")),
    )


def _agreement(
    predicted: Sequence[str], realised: Sequence[str], probe_every: int, finished: bool
) -> tuple[float, int]:
    """How often a realised pathway is the one predicted most often for the same updates; a tie goes to the later.

    A row describes the model before its update, so a pathway realised in row i is that of the rows since the last
    look up to i - 1. Only the last row of a finished run is probed after its update, and so counts itself; where it
    was due for a look before it as well, it counts only itself.
    """
    agreed = intervals = start = 0
    for i, word in enumerate(realised):
        if word == "":
            continue
        last = finished and i == len(realised) - 1
        window = predicted[i if last and i % probe_every == 0 else start : i + last]
        start = i
        if window:
            agreed += Counter(reversed(window)).most_common(1)[0][0] == word  # insertion order decides ties
            intervals += 1
    return (agreed / intervals if intervals else math.nan), intervals


def _change(series: np.ndarray) -> float:
    measured = series[np.isfinite(series)]
    return float(measured[-1] - measured[0]) if len(measured) > 1 else math.nan
