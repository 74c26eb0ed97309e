"""Student's t: the paired test over seeds, without a statistics library."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from rcray.aggregate.tables import Entry

_TINY = 1e-300
_ROUNDS = 300


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
    if std <= 1e-12 * max(map(abs, differences), default=0.0):
        return PairedTest(n, mean, std, math.nan)
    t = mean / (std / math.sqrt(n))
    return PairedTest(n, mean, std, two_sided(t, n - 1))


def p_entry(test: PairedTest | None) -> Entry:
    """The p-value of a paired test as a table shows it, or why there is none."""
    if test is None:
        return Entry("–", tone="absent")
    if math.isnan(test.p):
        return Entry("no spread", tone="absent", tip="every seed has the same difference")
    return Entry(value=test.p, tip=f"mean {test.mean:+.4g}, standard deviation {test.std:.4g}, {test.n} pairs")


def two_sided(t: float, degrees: int) -> float:
    """P(|T| >= |t|) = I_x(degrees / 2, 1 / 2) with x = degrees / (degrees + t^2)."""
    return _incomplete_beta(degrees / 2, 0.5, degrees / (degrees + t * t))


@functools.cache
def quantile(degrees: int, p: float = 0.05) -> float:
    """The t that |T| exceeds with probability `p`, by bisection."""
    low, high = 0.0, 2.0
    while two_sided(high, degrees) > p:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided(middle, degrees) > p else (low, middle)
    return high


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Regularised, by Lentz's continued fraction on the side where it converges fast."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, 1 - x)
    front = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )  # fmt: skip
    c, d = 1.0, 1 / _away(1 - (a + b) * x / (a + 1))
    value = d
    for k in range(1, _ROUNDS):
        for term in (
            k * (b - k) * x / ((a + 2 * k - 1) * (a + 2 * k)),
            -(a + k) * (a + b + k) * x / ((a + 2 * k) * (a + 2 * k + 1)),
        ):
            d = 1 / _away(1 + term * d)
            c = _away(1 + term / c)
            value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return front * value / a


def _away(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
