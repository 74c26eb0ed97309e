"""Numbers over seeds and benchmarks: means, their errors, Student's t."""

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from rcray.aggregate.tables import Entry, percent


@dataclass(frozen=True)
class Estimate:
    """A number over the finished seeds of one setting, in the unit of its metric."""

    value: float
    seeds: int
    stderr: float | None  # of `value`: the metric's own for one seed, std / sqrt(seeds) for several
    std: float | None  # sample standard deviation over seeds; None for one
    paired: bool = False  # a difference whose error was found item by item
    degrees: float | None = None  # of freedom of that error
    p: float | None = None  # McNemar's, of a difference of shares

    @property
    def half_width(self) -> float:
        """Of the 95% interval around the value; nan where its error is not known."""
        if self.stderr is None:
            return math.nan
        degrees = self.degrees if self.degrees is not None else self.seeds - 1 if self.seeds > 1 else math.inf
        return t_quantile(degrees) * self.stderr

    def spread(self, several: bool) -> float | None:
        """What a table prints after ±: the spread over seeds where there are several, else the standard error.

        A paired difference has one error, which has both in it.
        """
        return self.std if several and not self.paired else self.stderr


def estimate(values: Sequence[float], stderr: float | None = None) -> Estimate | None:
    """The mean of values over seeds; `stderr` is that of a single one."""
    if not values:
        return None
    if len(values) == 1:
        return Estimate(values[0], 1, stderr, None)
    mean = fmean(values)
    # statistics.stdev is exact and takes most of the time of a large report; two passes lose nothing that is printed
    std = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
    return Estimate(mean, len(values), std / math.sqrt(len(values)), std)


def difference_entry(difference: Estimate, several: bool, runs: tuple[str, ...]) -> Entry:
    """A difference as a table shows it; `several`: the table has seeds."""
    tip = "" if difference.p is None else f"McNemar's exact test: p = {difference.p:.3g}"
    return Entry(value=difference.value, spread=difference.spread(several), tip=tip, runs=runs)


def error_notes(name: str, several: bool, differences: Sequence[Estimate]) -> Iterator[str]:
    """How the errors of a column of differences were found."""
    paired = [difference for difference in differences if difference.paired]
    where = "Where the runs kept no per-pair files: the" if paired else "The"
    if paired and several:
        yield (
            f"The error of {name} is one standard error over held-out items and seeds together, differences taken item "
            "by item and seed by seed."
        )
    elif paired:
        yield f"The error of {name} is that of the differences item by item: both runs saw the same ones."
    if len(paired) < len(differences) or not differences:
        if not several:
            added = "adds the two rows' errors as if independent; on the same pairs it is usually smaller."
            yield f"{where} error of {name} {added}"
        elif paired:
            yield f"{where} standard deviation over seeds stands there."


def error_of_mean(errors: Sequence[float | None]) -> float | None:
    """The standard error of a mean of independent benchmarks."""
    known = [error for error in errors if error is not None and math.isfinite(error)]
    if not known or len(known) < len(errors):
        return None
    return math.sqrt(sum(error * error for error in known)) / len(known)


@dataclass(frozen=True)
class PairedTest:
    """A two-sided paired t-test of differences against zero."""

    n: int
    mean: float
    std: float
    p: float  # nan where every difference is the same: there is no spread to judge by


def paired_test(differences: Sequence[float]) -> PairedTest | None:
    """None with fewer than two differences."""
    if len(differences) < 2 or not all(map(math.isfinite, differences)):
        return None
    mean, std, n = fmean(differences), stdev(differences), len(differences)
    if std <= 1e-12 * max(map(abs, differences)):
        return PairedTest(n, mean, std, math.nan)
    from scipy import stats  # takes a second to import, and most reports have one seed

    return PairedTest(n, mean, std, float(2 * stats.t.sf(abs(mean) / (std / math.sqrt(n)), n - 1)))


def p_entry(differences: Sequence[float]) -> Entry:
    """The p-value of a paired test of shares as a table shows it, or why there is none."""
    test = paired_test(differences)
    if test is None:
        return Entry("–", tone="absent")
    if math.isnan(test.p):
        return Entry("no spread", tone="absent", tip="every seed has the same difference")
    points = f"mean {percent(test.mean):+.4g}, standard deviation {percent(test.std):.4g} points"
    return Entry(value=test.p, tip=f"{points}, {test.n} pairs")


@functools.cache
def t_quantile(degrees: float) -> float:
    """The t that |T| exceeds with probability 0.05."""
    from scipy import stats

    return float(stats.t.isf(0.025, degrees))
