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
Decisions are on floats in the log domain: exp() of a sum of log-ratios overflows, its logarithm does not.

alpha is held within exp(+-MAX_LOG_ALPHA): where only one side of a loss is saturated the ratio may be e^10000, and no
float holds its root. `clipped` marks both kinds of holding back. The appendix centres the clip on EMA[log r*] while
promising the band of the current batch; here the band of the current batch is used, so that the promise holds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rcray.calibration.scores import Gradients, Reduce
from rcray.config.calibration import EMA_BETA
from rcray.objectives.base import Incentives

EDGE_ROUNDING = 1e-9  # nats: a ratio this close to an edge lies on it
#: Bound of |log alpha|: alpha and 1/alpha stay below 3e17, so that a float32 or bfloat16 gradient times either holds.
MAX_LOG_ALPHA = 40.0

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

    def problem(self) -> str | None:
        """Why there is no ratio to balance, or None if there is one."""
        values = (self.log_d_w, self.log_d_l, self.log_s_w, self.log_s_l)
        if any(math.isnan(v) or v == math.inf for v in values):
            return "non_finite"
        if self.sign_w == 0 and self.sign_l == 0:
            return "both_inactive"
        if self.sign_l == 0:
            return "inactive_loser"
        if self.sign_w == 0:
            return "inactive_winner"
        if self.log_s_w == -math.inf or self.log_s_l == -math.inf or math.isnan(self.rho):
            return "zero_score"
        if self.sign_w != self.sign_l:
            return "opposite_signs"
        return None

    def scaled(self, log_alpha: float) -> "Statistics":
        """The statistics after calibration: d_w times alpha, d_l over alpha."""
        return replace(self, log_d_w=self.log_d_w + log_alpha, log_d_l=self.log_d_l - log_alpha)


def statistics(d_w: LogMean, d_l: LogMean, scores: Scores) -> Statistics:
    """Joins incentives and scores of one batch."""
    return Statistics(d_w.log_abs, d_l.log_abs, d_w.sign, d_l.sign, scores.log_s_w, scores.log_s_l, scores.rho)


def mean_incentives(incentives: Incentives, reduce: Reduce | None = None) -> tuple[LogMean, LogMean]:
    """Mean d_w and d_l over the pairs of a batch and of all workers, in the log domain."""
    return means_of(incentive_sums([incentives], reduce).tolist())


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
    if math.isnan(plus) or math.isnan(minus) or math.inf in (plus, minus):
        return LogMean(math.nan, 0)
    if plus == minus:  # both -inf (inactive), or an exact cancellation
        return LogMean(-math.inf, 0)
    high, low = max(plus, minus), min(plus, minus)
    log_abs = high + (math.log1p(-math.exp(low - high)) if low > -math.inf else 0.0)
    return LogMean(log_abs - math.log(count), 1 if plus > minus else -1)


def _logsumexp(values: Sequence[float]) -> float:
    top = max(values)
    if any(math.isnan(v) for v in values):
        return math.nan
    return top if math.isinf(top) else top + math.log(sum(math.exp(v - top) for v in values))


def summarise(grads_w: Gradients, grads_l: Gradients, reduce: Reduce | None = None, *, pairs: int) -> Scores:
    """Norms and cosine of the mean scores over `pairs` pairs of all workers."""
    return from_products(score_products(grads_w, grads_l, reduce).tolist(), pairs)


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
    if not all(map(math.isfinite, (ww, ll, wl))):
        return Scores(math.nan, math.nan, math.nan)
    rho = max(-1.0, min(1.0, wl / math.sqrt(ww) / math.sqrt(ll))) if ww and ll else math.nan
    return Scores(_half_log(ww) - math.log(pairs), _half_log(ll) - math.log(pairs), rho)


def _half_log(square: float) -> float:
    return 0.5 * math.log(square) if square > 0 else -math.inf


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
        return min(max(log_r, self.lower), self.upper)


def band(stats: Statistics) -> Band:
    """The band of one batch (Eq. 9)."""
    return Band(stats.log_s_l - stats.log_s_w, half_width(stats.rho))


def half_width(rho: float) -> float:
    """-log rho: half the band's width; unbounded for rho <= 0, and never below 0 for rounding past 1."""
    if math.isnan(rho):
        return math.nan
    return math.inf if rho <= 0 else max(0.0, -math.log(rho))


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


def observe(stats: Statistics) -> Calibration:
    """Diagnostics without calibration: alpha = 1."""
    return Calibration(0.0, stats, band(stats), stats.problem())


class Calibrator:
    """The log-EMAs and the factor they give. The only state is four floats."""

    def __init__(self, ema_beta: float = EMA_BETA, *, clip: bool = True):
        self.ema_beta = ema_beta
        self.clip = clip
        self.ema: dict[str, float] | None = None

    def update(self, stats: Statistics) -> Calibration:
        """Takes in one batch and returns its factor; a batch without a ratio to balance is left alone.

        Such a batch (an inactive hinge, a zero score, a non-finite value) does not enter the averages either.
        """
        here = band(stats)
        if problem := stats.problem():
            return Calibration(0.0, stats, here, skipped=problem)
        current = {name: getattr(stats, name) for name in _SMOOTHED}
        if self.ema is None:
            self.ema = current
        else:
            beta = self.ema_beta
            self.ema = {name: beta * self.ema[name] + (1 - beta) * current[name] for name in _SMOOTHED}
        log_r = self.ema["log_d_w"] - self.ema["log_d_l"]
        log_r_star = self.ema["log_s_l"] - self.ema["log_s_w"]
        target = stats.log_r + (log_r_star - log_r)
        inside = here.clip(target) if self.clip else target
        wanted = (inside - stats.log_r) / 2
        log_alpha = min(max(wanted, -MAX_LOG_ALPHA), MAX_LOG_ALPHA)
        return Calibration(log_alpha, stats, here, clipped=inside != target or log_alpha != wanted)

    def state_dict(self) -> dict[str, float] | None:
        """The averages, exact in JSON; None before the first batch."""
        return None if self.ema is None else dict(self.ema)

    def load_state_dict(self, state: dict[str, float] | None) -> None:
        """Restores what `state_dict` gave."""
        self.ema = None if state is None else {name: float(state[name]) for name in _SMOOTHED}


def normalised_gradient() -> Calibrator:
    """Pairwise normalised gradients (Yuan et al. 2024, arXiv:2410.13828): s_w/|s_w| - s_l/|s_l|, whatever d_w and d_l.

    Each window's ratio becomes its own r*: calibration without memory, and nothing to clip. The length of the step is
    left as it was, (d_w |s_w| d_l |s_l|)^(1/2) of the window, so that learning rates keep their meaning.
    """
    return Calibrator(ema_beta=0.0, clip=False)
