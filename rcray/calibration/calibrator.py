"""Reward calibration: rescale the backward pass so that the incentive ratio stays at the band's centre.

Legend
  alpha = (r* / r)^(1/2)      d_w -> alpha d_w, d_l -> d_l / alpha (paper, Eq. 12, Proposition 3.4)
  EMA                         of log d_w, log d_l, log |s_w|, log |s_l|, started at the first value and
                              including the current batch (appendix, "Log-Domain EMA")
  clip                        the calibrated ratio is kept inside the band of the current batch
                              (appendix, "Dynamic Clipping")

The factor itself is held within exp(+-MAX_LOG_ALPHA): where only one side of a loss is saturated the ratio may be
e^10000, and no float holds its root. `clipped` marks both kinds of holding back.

The appendix centres the clip on EMA[log r*] while promising the band of the current batch; here the band of the
current batch is used, so that the promise holds.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rcray.calibration.band import EDGE_ROUNDING, Band, Statistics, band

#: Bound of |log alpha|: alpha and 1/alpha stay below 3e17, so that a float32 or bfloat16 gradient times either holds.
MAX_LOG_ALPHA = 40.0


_SMOOTHED = ("log_d_w", "log_d_l", "log_s_w", "log_s_l")


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

    def __init__(self, ema_beta: float = 0.98, *, clip: bool = True):
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


def scale_gradient(z: Tensor, factor: float) -> Tensor:
    """z^rc of Eq. 12: the value of z bit for bit, its gradient times `factor`."""
    scaled: Tensor = _ScaleGradient.apply(z, factor)
    return scaled


class _ScaleGradient(torch.autograd.Function):
    """Identity forward, product backward.

    Not factor*z + (1-factor)*sg(z), which rounds; nor sg(z) + factor*(z - sg(z)), which is NaN at z = -inf.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor, factor: float) -> Tensor:
        return z.view_as(z)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0] * ctx.factor, None
