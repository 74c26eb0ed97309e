"""Percentile bootstrap, seeded: the same numbers give the same interval."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rcray.records.evaluation import MetricRow

RESAMPLES = 1000
_SEED = 0
_LEVEL = (0.025, 0.975)
_CHUNK = 2_000_000  # drawn indices held at once


@dataclass(frozen=True)
class Interval:
    """A 95% interval, and the spread of the statistic over resamples."""

    low: float
    high: float
    stderr: float


def bootstrap(size: int, statistic: Callable[[np.ndarray], np.ndarray]) -> Interval:
    """Resamples `range(size)`; `statistic` maps drawn indices [draws, size] to values [draws].

    Draws on which the statistic is undefined (NaN) are left out.
    """
    generator = np.random.default_rng(_SEED)
    values = []
    step = max(1, _CHUNK // max(1, size))
    for start in range(0, RESAMPLES, step):
        draws = generator.integers(0, size, size=(min(step, RESAMPLES - start), size))
        values.append(np.asarray(statistic(draws), dtype=float))
    drawn = np.concatenate(values)
    drawn = drawn[np.isfinite(drawn)]
    if len(drawn) < 2:
        return Interval(np.nan, np.nan, np.nan)
    low, high = np.quantile(drawn, _LEVEL)
    return Interval(float(low), float(high), float(drawn.std(ddof=1)))


def bootstrapped_row(
    benchmark: str, name: str, size: int, statistic: Callable[[np.ndarray], np.ndarray], note: str | None = None
) -> MetricRow:
    """The statistic of everything, with the bootstrap's interval and standard error."""
    interval = bootstrap(size, statistic)
    value = float(statistic(np.arange(size)[None])[0])
    return MetricRow(
        benchmark, name, value, interval.stderr, size, ci_low=interval.low, ci_high=interval.high, note=note
    )
