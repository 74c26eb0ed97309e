"""From step records to curves: one point per quantity and optimizer step, so that runs overlay in the compare view."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from rcray.records.columns import IN_BAND, METRICS
from rcray.store import RunDir
from rcray.track.tracker import POINTS_PER_CALL, Point
from rcray.train.dynamics import read_dynamics

#: Closes every batch: its newest value says how far a run was delivered. A batch is stored whole or not at all.
DELIVERED = "step"


@dataclass(frozen=True)
class Cursor:
    """How far a run was delivered, with the sums up to there that later points need."""

    step: int = 0
    in_band: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Batch:
    """Points of whole steps, and the cursor once they are stored."""

    points: tuple[Point, ...]
    after: Cursor


def cursor_at(run: RunDir, step: int) -> Cursor:
    """The cursor of a run whose first `step` steps were delivered."""
    if step == 0:
        return Cursor()
    rows = read_dynamics(run.dynamics, ["step", "in_band", "seconds"]).to_pylist()
    cursor = Cursor()
    for row in rows:
        if row["step"] <= step:
            cursor = _advance(cursor, row)
    return replace(cursor, step=step)


def batches(run: RunDir, cursor: Cursor, upto: int, started: int) -> Iterator[Batch]:
    """What comes after the cursor, up to a step, in batches that MLflow takes.

    Args:
        run: the run's directory.
        cursor: how far it was delivered.
        upto: the last step a checkpoint vouches for; records after it may be made again.
        started: milliseconds of the run's start. Times of points follow from the records, so they never change.
    """
    rows = [row for row in read_dynamics(run.dynamics, after_step=cursor.step).to_pylist() if row["step"] <= upto]
    points: list[Point] = []
    for i, row in enumerate(rows):
        cursor = _advance(cursor, row)
        points += _points(row, cursor, started)
        if i == len(rows) - 1 or len(points) + _PER_STEP + 1 > POINTS_PER_CALL:
            points.append(Point(DELIVERED, cursor.step, cursor.step, _time(cursor, started)))
            yield Batch(tuple(points), cursor)
            points = []


_PER_STEP = len(METRICS) + 1


def _advance(cursor: Cursor, row: dict[str, Any]) -> Cursor:
    return Cursor(row["step"], cursor.in_band + bool(row["in_band"]), cursor.seconds + (row["seconds"] or 0.0))


def _points(row: dict[str, Any], cursor: Cursor, started: int) -> list[Point]:
    values = {name: float(row[name]) for name in METRICS if row[name] is not None}
    values[IN_BAND] = cursor.in_band / cursor.step
    # MLflow would store an infinite edge as 1.8e308 and ruin the axis
    finite = {name: value for name, value in values.items() if math.isfinite(value)}
    return [Point(name, value, cursor.step, _time(cursor, started)) for name, value in finite.items()]


def _time(cursor: Cursor, started: int) -> int:
    seconds = cursor.seconds if math.isfinite(cursor.seconds) else 0.0
    return started + int(1000 * seconds)
