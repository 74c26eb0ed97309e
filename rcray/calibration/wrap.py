"""Calibration for any loss in a loop of your own: one call around `loss(z_w, z_l)`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rcray.calibration.band import Calibration, Calibrator, mean_incentives, observe, statistics, summarise
from rcray.calibration.scores import Reduce, plain_scores
from rcray.objectives import Objective, PairLogps
from rcray.objectives.base import PairLoss, incentives


@dataclass(frozen=True)
class Calibrated:
    """Losses per pair whose backward is calibrated, and what was decided about it."""

    loss: Tensor
    report: Calibration


def calibrate(
    loss: Objective | PairLoss,
    z_w: Tensor,
    z_l: Tensor,
    *,
    parameters: Sequence[Tensor],
    calibrator: Calibrator | None,
    pairs: PairLogps | None = None,
    reduce: Reduce | None = None,
) -> Calibrated:
    """Evaluates `loss` with its backward rescaled to the band's centre; the value is unchanged bit for bit.

    Args:
        loss: `loss(z_w, z_l) -> [pairs]`, or an `Objective` (then give `pairs`, which holds reference and lengths).
        z_w: log-likelihoods of the chosen answers, [pairs], with their graph.
        z_l: the same of the rejected answers.
        parameters: where the scores are measured, usually `[model.lm_head.weight]`.
        calibrator: holds the averages between calls; None records the band and leaves the backward as it is.
        pairs: the container an `Objective` reads; its z_w and z_l are replaced.
        reduce: shares statistics between workers.
    """
    if pairs is None:
        unknown = torch.ones_like(z_w)
        pairs = PairLogps(z_w, z_l, n_w=unknown, n_l=unknown)
    pairs = pairs.with_z(z_w, z_l)
    everywhere = len(z_w) if reduce is None else int(reduce.sum(torch.tensor(len(z_w), device=z_w.device)).item())
    scores = summarise(*plain_scores(z_w, z_l, parameters), reduce, pairs=everywhere)
    stats = statistics(*mean_incentives(incentives(loss, pairs), reduce), scores)
    report = calibrator.update(stats) if calibrator else observe(stats)
    scaled_w, scaled_l = scale_gradient(z_w, report.alpha), scale_gradient(z_l, 1 / report.alpha)
    if isinstance(loss, Objective):
        return Calibrated(loss.loss(pairs.with_z(scaled_w, scaled_l)), report)
    return Calibrated(loss(scaled_w, scaled_l), report)


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
