"""The disentanglement band of a batch, and the calibration that stays at its centre.

Legend
  d_w, d_l    mean incentives of the pairs of all workers, kept as sign and log; r = d_w / d_l (paper, Eq. 5)
  s_w, s_l    mean scores, through their norms and rho = cosine(s_w, s_l)
  r* = |s_l| / |s_w|   centre of the band (Proposition 3.3)
  band        |log r - log r*| <= -log rho (Eq. 9); slack = -log rho - |log r - log r*| (Eq. 10)
  alpha = (r* / r)^(1/2)      d_w -> alpha d_w, d_l -> d_l / alpha (Eq. 12, Proposition 3.4)
  EMA         of log d_w, log d_l, log |s_w|, log |s_l|, started at the first value and including the current batch
              (appendix, "Log-Domain EMA")
  clip        the calibrated ratio is kept inside the band of the current batch (appendix, "Dynamic Clipping")

With rho <= 0 the two updates do not fight: every positive ratio gives pathway (iii) and the band is unbounded.
Decisions are in the log domain: exp() of a sum of log-ratios overflows, its logarithm does not. On a CPU they are made
on floats; on a GPU on 0-dim float64 tensors in their place, since reading those would wait for the device. There is no
branching on a tensor, so a formula computes all its cases and chooses.

alpha is held within exp(+-MAX_LOG_ALPHA): where only one side of a loss is saturated the ratio may be e^10000, and no
float holds its root. `clipped` marks both kinds of holding back. The appendix centres the clip on EMA[log r*] while
promising the band of the current batch; here the band of the current batch is used, so that the promise holds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce as fold
from operator import or_

import torch
from torch import Tensor

from rcray.calibration.scores import Gradients, Reduce
from rcray.config.calibration import EMA_BETA
from rcray.objectives.base import Incentives, Number, choose, exp, larger, log, log1p, smaller, sqrt

EDGE_ROUNDING = 1e-9  # nats: a ratio this close to an edge lies on it
#: Bound of |log alpha|: alpha and 1/alpha stay below 3e17, so that a float32 or bfloat16 gradient times either holds.
MAX_LOG_ALPHA = 40.0

#: Why a batch has no ratio to balance; the first that holds is said.
PROBLEMS = ("non_finite", "both_inactive", "inactive_loser", "inactive_winner", "zero_score", "opposite_signs")
_SMOOTHED = ("log_d_w", "log_d_l", "log_s_w", "log_s_l")


@dataclass(frozen=True)
class LogMean:
    """A signed mean as sign and log of its absolute value."""

    log_abs: float
    sign: int


@dataclass(frozen=True)
class Scores:
    """Norms and cosine of the two score directions; logs, because the norms span many decades."""

    log_s_w: float
    log_s_l: float
    rho: float


@dataclass(frozen=True)
class Statistics:
    """The quantities of one batch that decide its pathway: mean incentives and mean scores, in logs."""

    log_d_w: float  # log |mean d_w|; -inf for an inactive side
    log_d_l: float
    sign_w: int  # sign of mean d_w: -1, 0 or 1
    sign_l: int
    log_s_w: float  # log |mean s_w|
    log_s_l: float
    rho: float  # cosine of the mean scores; nan if one of them is zero

    @property
    def log_r(self) -> float:
        """log |d_w / d_l|: +inf for an inactive loser, nan if both sides are inactive."""
        return self.log_d_w - self.log_d_l

    @property
    def reversed(self) -> bool:
        """Both incentives negative (IPO past its target): the update runs backwards."""
        return self.sign_w < 0 and self.sign_l < 0

    def problem_code(self) -> Number:
        """0 where there is a ratio to balance, else the place in PROBLEMS, counted from 1."""
        values = (self.log_d_w, self.log_d_l, self.log_s_w, self.log_s_l)
        conditions = (
            fold(or_, ((v != v) | (v == math.inf) for v in values)),
            (self.sign_w == 0) & (self.sign_l == 0),
            self.sign_l == 0,
            self.sign_w == 0,
            (self.log_s_w == -math.inf) | (self.log_s_l == -math.inf) | (self.rho != self.rho),
            self.sign_w != self.sign_l,
        )
        code: Number = 0
        for place in range(len(PROBLEMS), 0, -1):
            code = choose(conditions[place - 1], place, code)
        return code

    def problem(self) -> str | None:
        """Why there is no ratio to balance, or None if there is one."""
        return problem_named(self.problem_code())

    def scaled(self, log_alpha: float) -> "Statistics":
        """The statistics after calibration: d_w times alpha, d_l over alpha."""
        return replace(self, log_d_w=self.log_d_w + log_alpha, log_d_l=self.log_d_l - log_alpha)


def problem_named(code: float) -> str | None:
    """The name of a problem by its code, once that is read."""
    return PROBLEMS[int(code) - 1] if int(code) else None


def statistics(d_w: LogMean, d_l: LogMean, scores: Scores) -> Statistics:
    """Joins incentives and scores of one batch."""
    return Statistics(d_w.log_abs, d_l.log_abs, d_w.sign, d_l.sign, scores.log_s_w, scores.log_s_l, scores.rho)


def incentive_sums(parts: Sequence[Incentives], reduce: Reduce | None = None) -> Tensor:
    """What `means_of` reads, [workers, 5], still on the device: nothing is waited for."""
    log_d_w, d_w, log_d_l, d_l = (
        torch.cat([getattr(part, name) for part in parts]) for name in ("log_d_w", "d_w", "log_d_l", "d_l")
    )
    count = log_d_w.new_full((), len(d_w))
    local = torch.stack([*_log_sums(log_d_w, d_w), *_log_sums(log_d_l, d_l), count]).double()
    return local[None] if reduce is None else reduce.gather(local)


def means_of(rows: Sequence[Sequence[float]]) -> tuple[LogMean, LogMean]:
    """Both mean incentives, from what each worker summed up."""
    plus_w, minus_w, plus_l, minus_l, counts = zip(*rows, strict=True)
    return _signed_mean(plus_w, minus_w, sum(counts)), _signed_mean(plus_l, minus_l, sum(counts))


def _log_sums(log_abs: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """log of the sum of positive and of negative incentives.

    The sign of an incentive that underflowed to 0 is taken as positive, unless its log says it is exactly 0.
    """
    negative = torch.where(value < 0, log_abs, -math.inf)
    positive = torch.where(value < 0, -math.inf, log_abs)
    return torch.logsumexp(positive, 0), torch.logsumexp(negative, 0)


def _signed_mean(positive: Sequence[float], negative: Sequence[float], count: float) -> LogMean:
    plus, minus = _logsumexp(positive), _logsumexp(negative)
    broken = (plus != plus) | (minus != minus) | (plus == math.inf) | (minus == math.inf)
    nothing = plus == minus  # both -inf (inactive), or an exact cancellation
    high, low = larger(plus, minus), smaller(plus, minus)
    log_abs = high + log1p(-exp(low - high)) - log(count)
    sign = choose(plus > minus, 1, -1)
    return LogMean(
        choose(broken, math.nan, choose(nothing, -math.inf, log_abs)), choose(broken, 0, choose(nothing, 0, sign))
    )


def _logsumexp(values: Sequence[float]) -> Number:
    top = fold(larger, values)
    return choose((top == math.inf) | (top == -math.inf), top, top + log(sum(exp(v - top) for v in values)))


def score_products(grads_w: Gradients, grads_l: Gradients, reduce: Reduce | None = None) -> Tensor:
    """<s_w, s_w>, <s_l, s_l>, <s_w, s_l> of the summed scores, [3], reduced before they are squared."""
    products = torch.zeros(3, dtype=torch.float64, device=grads_w[0].device)
    for g_w, g_l in zip(grads_w, grads_l, strict=True):
        # float32 or better holds each product's terms, float64 their sum
        wide = torch.promote_types(g_w.dtype, torch.float32)
        g_w, g_l = g_w.to(wide), g_l.to(wide)
        if reduce is not None:
            g_w, g_l = reduce.sum(g_w), reduce.sum(g_l)
        terms = (g_w * g_w, g_l * g_l, g_w * g_l)
        products += torch.stack([term.sum(dtype=torch.float64) for term in terms])
    return products


def from_products(products: Sequence[float], pairs: int) -> Scores:
    """Norms and cosine of the means over `pairs` pairs."""
    ww, ll, wl = products
    finite = (abs(ww) < math.inf) & (abs(ll) < math.inf) & (abs(wl) < math.inf)
    root_w, root_l = (sqrt(choose(square > 0, square, 1.0)) for square in (ww, ll))
    rho = choose((ww > 0) & (ll > 0), larger(-1.0, smaller(1.0, wl / root_w / root_l)), math.nan)
    values = (_half_log(ww) - math.log(pairs), _half_log(ll) - math.log(pairs), rho)
    return Scores(*(choose(finite, value, math.nan) for value in values))


def _half_log(square: float) -> Number:
    return choose(square > 0, 0.5 * log(square), -math.inf)


@dataclass(frozen=True)
class Band:
    """The interval of log r that admits pathway (iii)."""

    log_r_star: float
    half_width: float  # -log rho; inf where the scores do not fight, nan where undefined

    @property
    def lower(self) -> float:
        """Lower edge: below it the winner falls."""
        return self.log_r_star - self.half_width

    @property
    def upper(self) -> float:
        """Upper edge: above it the loser rises."""
        return self.log_r_star + self.half_width

    def slack(self, log_r: float) -> float:
        """Log-distance to the nearer edge; not negative exactly when inside (Eq. 10)."""
        if math.isinf(self.half_width):
            return math.nan if math.isnan(log_r) else math.inf
        return self.half_width - abs(log_r - self.log_r_star)

    def clip(self, log_r: float) -> float:
        """The nearest log ratio inside the band."""
        nearest: float = smaller(larger(log_r, self.lower), self.upper)
        return nearest


def band(stats: Statistics) -> Band:
    """The band of one batch (Eq. 9)."""
    return Band(stats.log_s_l - stats.log_s_w, half_width(stats.rho))


def half_width(rho: Number) -> Number:
    """-log rho: half the band's width; unbounded for rho <= 0, and never below 0 for rounding past 1."""
    return choose(rho != rho, math.nan, choose(rho <= 0, math.inf, larger(0.0, -log(rho))))


@dataclass(frozen=True)
class Factor:
    """What the averages say of one batch: numbers, which may still be on a device."""

    log_alpha: float
    problem: float  # as in `Statistics.problem_code`
    clipped: float  # whether it was held back


FACTOR_NUMBERS = 3


@dataclass(frozen=True)
class Calibration:
    """What the calibrator decided for one batch."""

    log_alpha: float
    stats: Statistics  # before calibration
    band: Band
    skipped: str | None = None  # why the batch was left alone, or None
    clipped: bool = False  # the factor was held back, by the band or by MAX_LOG_ALPHA

    @property
    def alpha(self) -> float:
        """The factor on the winner's gradient; the loser's is its inverse."""
        return math.exp(self.log_alpha)

    @property
    def calibrated(self) -> Statistics:
        """The statistics of the update that is actually made."""
        return self.stats.scaled(self.log_alpha)

    @property
    def slack(self) -> float:
        """Log-distance of the realised ratio to the nearer edge of the band."""
        return self.band.slack(self.calibrated.log_r)

    @property
    def in_band(self) -> bool | None:
        """Whether the update that is made lies inside the band; None where that is not defined."""
        # A clipped ratio sits on the edge itself, up to rounding.
        return None if math.isnan(self.slack) else self.slack >= -EDGE_ROUNDING


def calibration_of(stats: Statistics, factor: Factor) -> Calibration:
    """What was decided for a batch, once it is read."""
    skipped = problem_named(factor.problem)
    return Calibration(factor.log_alpha, stats, band(stats), skipped, bool(factor.clipped))


def observe(stats: Statistics) -> Calibration:
    """Diagnostics without calibration: alpha = 1."""
    return Calibration(0.0, stats, band(stats), stats.problem())


class Calibrator:
    """The log-EMAs and the factor they give. The only state is four numbers, NaN before the first batch."""

    def __init__(self, ema_beta: float = EMA_BETA, *, clip: bool = True):
        self.ema_beta = ema_beta
        self.clip = clip
        self._averages: dict[str, Number] = dict.fromkeys(_SMOOTHED, math.nan)

    def update(self, stats: Statistics) -> Calibration:
        """Takes in one batch and returns its factor; a batch without a ratio to balance is left alone.

        Such a batch (an inactive hinge, a zero score, a non-finite value) does not enter the averages either.
        """
        return calibration_of(stats, self.factor(stats))

    def factor(self, stats: Statistics) -> Factor:
        """The same; statistics on a device give a factor there, and nothing is waited for."""
        here, problem, beta = band(stats), stats.problem_code(), self.ema_beta
        usable = problem == 0
        for name, before in self._averages.items():
            now = getattr(stats, name)
            after = choose(before != before, now, beta * before + (1 - beta) * now)
            self._averages[name] = choose(usable, after, before)
        log_d_w, log_d_l, log_s_w, log_s_l = self._averages.values()
        target = stats.log_r + ((log_s_l - log_s_w) - (log_d_w - log_d_l))
        inside = here.clip(target) if self.clip else target
        wanted = (inside - stats.log_r) / 2
        log_alpha = smaller(larger(wanted, -MAX_LOG_ALPHA), MAX_LOG_ALPHA)
        held_back = (inside != target) | (log_alpha != wanted)
        return Factor(choose(usable, log_alpha, 0.0), problem, choose(usable, held_back, False))

    @property
    def ema(self) -> dict[str, float] | None:
        """The averages, read off the device; None before the first batch."""
        numbers = list(self._averages.values())
        if any(isinstance(number, Tensor) for number in numbers):
            numbers = torch.stack(numbers).tolist()
        return None if math.isnan(numbers[0]) else dict(zip(_SMOOTHED, numbers, strict=True))

    def state_dict(self) -> dict[str, float] | None:
        """The averages, exact in JSON; None before the first batch."""
        return self.ema

    def load_state_dict(self, state: dict[str, float] | None) -> None:
        """Restores what `state_dict` gave."""
        self._averages = {name: math.nan if state is None else float(state[name]) for name in _SMOOTHED}
