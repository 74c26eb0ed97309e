"""Calibration for any loss in a loop of your own: one call around `loss(z_w, z_l)`."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rcray.calibration.calibrator import Calibration, Calibrator, observe, scale_gradient
from rcray.calibration.incentives import PairLoss, Reduce, incentives, mean_incentives
from rcray.calibration.scores import plain_scores, statistics, summarise
from rcray.objectives import Objective, PairLogps


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
