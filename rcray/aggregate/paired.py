"""Differences between two runs that were measured on the same pairs or documents, taken item by item.

Legend
  D_i        the difference of item i, with RC minus without; D_si with seed s
  w_i        what item i weighs in the metric: the difference of the metric is sum_i w_i D_i
  stratum    the items of one task, which are drawn apart from those of others; held-out pairs are one stratum

One seed: the error over items. A mean over pairs has the standard error of its differences; a share of pairs McNemar's,
from the pairs that only one of both runs gets right, with half a pair added to each cell (Agresti and Min, 2005) so
that runs that agree on every pair are not said to agree for certain; a benchmark that of a bootstrap of its documents,
stratified by task, in the limit of many draws, with n - 1 as the harness has it in the errors of its scores. Such an
error is at most sqrt(a^2 + b^2), that of independent runs, wherever the items of both runs go together; it is larger
where they go against each other, and where half a pair is more than shares near 0 or 1 vary by.

Several seeds: items and seeds are both drawn at random and crossed, D_si = mean + seed + item + rest, and the error of
the mean is that of both (two-way random effects, degrees of freedom by Satterthwaite; with three seeds that differ far
more than pairs do its 95% intervals cover 92%).
"""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from rcray.aggregate.collect import CellResult, Metric
from rcray.aggregate.frame import Measurement
from rcray.config.benchmarks import PREFERENCE
from rcray.errors import StoreError
from rcray.records.items import Items, read_items
from rcray.store import RunDir

log = logging.getLogger(__name__)

_TOLERANCE = 1e-6  # between a row's value and the mean of its items: more, and they are not what the row was made of


@dataclass(frozen=True)
class Weighted:
    """One run's items of a metric."""

    names: tuple[str, ...]
    strata: np.ndarray  # [items], 0, 1, ...
    weights: np.ndarray  # [items], summing to 1
    values: np.ndarray
    is_share: bool  # of held-out pairs: every value is 0 or 1
    is_benchmark: bool

    def matches(self, other: "Weighted") -> bool:
        """Whether both are about the same items."""
        return self.names == other.names and np.array_equal(self.weights, other.weights)


@dataclass(frozen=True)
class PairedError:
    """The error of a difference."""

    stderr: float
    degrees: float  # of freedom; inf: the normal distribution
    only_with: int | None = None  # pairs that only the run with RC gets right; None: no share, or several seeds
    only_without: int | None = None

    @property
    def p(self) -> float | None:
        """McNemar's exact test of two shares; None where there are none."""
        if self.only_with is None or self.only_without is None:
            return None
        return mcnemar(self.only_with, self.only_without)


def paired_error(pairs: Sequence[tuple[CellResult, CellResult]], metric: Metric) -> PairedError | None:
    """Of the mean difference over seeds, second minus first; None where a run has kept no items, or other ones."""
    differences, first = [], None
    for without, with_rc in pairs:
        before, after = items_of(without, metric), items_of(with_rc, metric)
        if before is None or after is None or not before.matches(after) or (first and not first.matches(after)):
            return None
        first = after
        differences.append(after.values - before.values)
    if first is None or len(first.names) < 2:
        return None
    if len(differences) > 1:
        return _crossed(np.stack(differences), first)
    (difference,) = differences
    if first.is_share:
        return _of_shares(difference)
    if first.is_benchmark:
        return PairedError(_bootstrapped(difference, first), math.inf)
    return PairedError(float(difference.std(ddof=1)) / math.sqrt(len(difference)), len(difference) - 1)


def items_of(result: CellResult, metric: Metric) -> Weighted | None:
    """A run's items of a metric, or of the plain mean of several; None where they were not kept."""
    keys = (metric,) if isinstance(metric, str) else metric
    parts = [part for key in keys if (part := _items_of_one(result, key)) is not None]
    if len(parts) < len(keys):
        return None
    if len(parts) == 1:
        return parts[0]
    offsets = np.cumsum([0, *(part.strata.max() + 1 for part in parts[:-1])])
    return Weighted(
        tuple(f"{key}/{name}" for key, part in zip(keys, parts, strict=True) for name in part.names),
        np.concatenate([part.strata + offset for part, offset in zip(parts, offsets, strict=True)]),
        np.concatenate([part.weights / len(parts) for part in parts]),
        np.concatenate([part.values for part in parts]),
        is_share=False,
        is_benchmark=True,
    )


def _items_of_one(result: CellResult, metric: str) -> Weighted | None:
    row = result.metrics.get(metric)
    if row is None or not row.ok:
        return None
    try:
        key = _keys(result.run, _changed(result.run.evaluation)).get(metric.partition("/")[0])
        path = result.run.items(key) if key else None
        return _weighted(path, _changed(path), row) if path and path.is_file() else None
    except StoreError as error:
        log.warning("%s; the error of a difference is that of independent runs", error)
        return None


def _changed(path: Path) -> int:
    return path.stat().st_mtime_ns if path.is_file() else 0


@lru_cache(maxsize=1024)
def _keys(run: RunDir, _changed: int) -> Mapping[str, str]:
    return run.read_evaluation().keys


@lru_cache(maxsize=4096)  # every cell may be compared with every other
def _weighted(path: Path, changed: int, row: Measurement) -> Weighted | None:
    benchmark, _, column = row.metric.partition("/")
    items = _read(path, changed)
    if items is None or column not in items.columns:
        return None
    there = np.isfinite(items.columns[column])
    tasks, strata, sizes = np.unique(np.array(items.tasks)[there], return_inverse=True, return_counts=True)
    if not len(tasks):
        return None
    equal = dict(row.protocol).get("aggregate") == "unweighted"
    weights = 1 / (len(tasks) * sizes[strata]) if equal else np.full(len(strata), 1 / len(strata))
    values = items.columns[column][there]
    if abs(float(weights @ values) - row.value) > _TOLERANCE * max(1.0, abs(row.value)):
        return None
    is_pairs = benchmark == PREFERENCE
    is_share = is_pairs and bool(np.isin(values, (0.0, 1.0)).all())
    names = tuple(name for name, kept in zip(items.names, there, strict=True) if kept)
    return Weighted(names, strata, weights, values, is_share, not is_pairs)


@lru_cache(maxsize=64)
def _read(path: Path, _changed: int) -> Items | None:
    return read_items(path)


def _of_shares(difference: np.ndarray) -> PairedError:
    n = len(difference) + 2
    only_with, only_without = int((difference > 0).sum()), int((difference < 0).sum())
    apart, gain = only_with + only_without + 1, only_with - only_without
    return PairedError(math.sqrt(apart - gain**2 / n) / n, math.inf, only_with, only_without)


def mcnemar(one: int, other: int) -> float:
    """The exact two-sided probability of counts as uneven as these, where both are equally likely."""
    n = one + other
    tail = sum(math.comb(n, k) for k in range(min(one, other) + 1))
    return min(1.0, 2 * tail / 2**n)


def _bootstrapped(difference: np.ndarray, items: Weighted) -> float:
    """Each task's documents are drawn apart; a task's own error counts by what its documents weigh together.

    Of a mean the spread over all possible draws is known: a thousand of them would add 2% of luck to it.
    """
    errors = []
    for stratum in range(items.strata.max() + 1):
        here = items.strata == stratum
        own = difference[here]
        spread = float(own.std(ddof=1)) if len(own) > 1 else 0.0
        errors.append(float(items.weights[here].sum()) * spread / math.sqrt(len(own)))
    return math.hypot(*errors)


def _crossed(differences: np.ndarray, items: Weighted) -> PairedError:
    """Of [seeds, items]; mean squares of seeds, of items within their strata, and of what is left."""
    seeds, count = differences.shape
    x = differences * items.weights * count  # so that a plain mean over items is the metric's
    sizes = np.bincount(items.strata)
    of_strata = np.stack([np.bincount(items.strata, weights=row) / sizes for row in x])
    within = max(count - len(sizes), 1)
    centred = x - of_strata[:, items.strata]
    per_item = centred.mean(axis=0)
    per_seed = x.mean(axis=1)
    by_seed = count * float(per_seed.var(ddof=1))
    by_item = seeds * float((per_item**2).sum()) / within
    rest = float(((centred - per_item) ** 2).sum()) / ((seeds - 1) * within)
    variance = max(by_seed + by_item - rest, by_seed, by_item)  # a negative component is none
    parts = ((by_seed, seeds - 1), (by_item, within), (rest, (seeds - 1) * within))
    spread = sum(square**2 / degrees for square, degrees in parts)
    return PairedError(math.sqrt(variance / (seeds * count)), variance**2 / spread if spread else math.inf)
