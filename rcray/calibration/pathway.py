"""What the theorem predicts of an update: the rates of both likelihoods, and the pathway they make.

Legend: as in band.py. The rates are Theorem 3.1, the margin's is Corollary 3.2.
"""

import math
from dataclasses import dataclass

from rcray.calibration.band import Statistics, observe
from rcray.records.columns import Pathway, pathway_of


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


def predicted_pathway(stats: Statistics) -> Pathway:
    """The pathway the theorem predicts for an update with these statistics.

    A ratio clipped onto an edge of the band has a rate of exactly zero there; which way its last bit fell says nothing.
    """
    if stats.problem() is None and observe(stats).in_band:
        return "reversed" if stats.reversed else "iii"
    predicted = rates(stats)
    return pathway_of(predicted.z_w, predicted.z_l)
