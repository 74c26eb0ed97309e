"""The disentanglement band: where the incentive ratio must lie to suppress the loser and preserve the winner.

Legend
  d_w, d_l    incentives; r = d_w / d_l (paper, Eq. 5)
  s_w, s_l    scores; rho = cosine(s_w, s_l)
  r* = |s_l| / |s_w|   centre of the band (Proposition 3.3)
  band        |log r - log r*| <= -log rho (Eq. 9); slack = -log rho - |log r - log r*| (Eq. 10)

With rho <= 0 the two updates do not fight: every positive ratio gives pathway (iii) and the band is unbounded.
Everything here is on floats in the log domain: exp() of a sum of log-ratios overflows, its logarithm does not.
"""

import math
from dataclasses import dataclass, replace

from rcray.records.columns import Pathway

EDGE_ROUNDING = 1e-9  # nats: a ratio this close to an edge lies on it


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
class Rates:
    """Predicted time derivatives of the likelihoods, up to one common positive factor (Theorem 3.1)."""

    z_w: float
    z_l: float

    @property
    def margin(self) -> float:
        """The margin's derivative (Corollary 3.2)."""
        return self.z_w - self.z_l


def rates(stats: Statistics) -> Rates:
    """dz_w/dt = d_w |s_w|^2 - d_l <s_w, s_l>; dz_l/dt = d_w <s_w, s_l> - d_l |s_l|^2.

    Divided by the largest exponential, so that signs and relative sizes survive where the values would overflow.
    """
    push_w = stats.log_d_w + stats.log_s_w  # log |d_w s_w|
    push_l = stats.log_d_l + stats.log_s_l
    top = max(push_w, push_l)
    norm_top = max(stats.log_s_w, stats.log_s_l)
    if not math.isfinite(top) or not math.isfinite(norm_top):
        return Rates(math.nan, math.nan)
    rho = 0.0 if math.isnan(stats.rho) else stats.rho
    w = stats.sign_w * math.exp(push_w - top)
    l = stats.sign_l * math.exp(push_l - top)  # noqa: E741  the paper's letter
    return Rates(
        z_w=math.exp(stats.log_s_w - norm_top) * (w - rho * l),
        z_l=math.exp(stats.log_s_l - norm_top) * (rho * w - l),
    )


def pathway_of(change_w: float, change_l: float) -> Pathway:
    """The pathway of two likelihood changes, predicted or realised (paper, Table 2)."""
    if math.isnan(change_w) or math.isnan(change_l):
        return "undefined"
    if change_w >= 0 and change_l <= 0:
        return "iii"
    if change_w > 0 and change_l > 0:
        return "i"
    if change_w < 0 and change_l < 0:
        return "ii"
    return "reversed"


def predicted_pathway(stats: Statistics) -> Pathway:
    """The pathway the theorem predicts for an update with these statistics.

    A ratio clipped onto an edge of the band has a rate of exactly zero there; which way its last bit fell says nothing.
    """
    inside = stats.problem() is None and band(stats).slack(stats.log_r) >= -EDGE_ROUNDING
    if inside:
        return "reversed" if stats.reversed else "iii"
    predicted = rates(stats)
    return pathway_of(predicted.z_w, predicted.z_l)
