"""Calibration for any loss in a loop of your own: one call around `loss(z_w, z_l)`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, overload

import torch
from torch import Tensor

from rcray.calibration.band import (
    Calibration,
    Calibrator,
    LogMean,
    Scores,
    from_products,
    incentive_sums,
    means_of,
    observe,
    score_products,
    statistics,
)
from rcray.calibration.scores import Gradients, Reduce, plain_scores
from rcray.calibration.steering import Steered, UpdateSteering
from rcray.errors import ConfigError
from rcray.objectives import Objective, PairLogps
from rcray.objectives.base import Incentives, PairLoss, incentives

Report = TypeVar("Report", Calibration, Steered)


@dataclass(frozen=True)
class Calibrated(Generic[Report]):
    """Losses per pair whose backward is calibrated, and what was decided about it."""

    loss: Tensor
    report: Report


@overload
def calibrate(
    loss: Objective | PairLoss,
    z_w: Tensor,
    z_l: Tensor,
    *,
    calibrator: UpdateSteering,
    parameters: None = None,
    pairs: PairLogps | None = None,
    reduce: Reduce | None = None,
) -> Calibrated[Steered]: ...


@overload
def calibrate(
    loss: Objective | PairLoss,
    z_w: Tensor,
    z_l: Tensor,
    *,
    calibrator: Calibrator | None,
    parameters: Sequence[Tensor],
    pairs: PairLogps | None = None,
    reduce: Reduce | None = None,
) -> Calibrated[Calibration]: ...


def calibrate(
    loss: Objective | PairLoss,
    z_w: Tensor,
    z_l: Tensor,
    *,
    calibrator: Calibrator | UpdateSteering | None,
    parameters: Sequence[Tensor] | None = None,
    pairs: PairLogps | None = None,
    reduce: Reduce | None = None,
) -> Calibrated[Calibration] | Calibrated[Steered]:
    """Evaluates `loss` with its backward calibrated; the value is unchanged bit for bit.

    Args:
        loss: `loss(z_w, z_l) -> [pairs]`, or an `Objective` (then give `pairs`, which holds reference and lengths).
        z_w: log-likelihoods of the chosen answers, [pairs], with their graph.
        z_l: the same of the rejected answers.
        calibrator: holds the averages between calls: the published `Calibrator`, or an `UpdateSteering`, which was
            given the optimizer. None records the band and leaves the backward as it is.
        parameters: where the scores of the band are measured, usually `[model.lm_head.weight]`; an `UpdateSteering`
            measures them over all that the optimizer trains.
        pairs: the container an `Objective` reads; its z_w and z_l are replaced. With reference likelihoods in it, an
            `UpdateSteering` holds the realised drift, otherwise what it foresaw of it.
        reduce: shares statistics between workers.
    """
    if pairs is None:
        unknown = torch.ones_like(z_w)
        pairs = PairLogps(z_w, z_l, n_w=unknown, n_l=unknown)
    pairs = pairs.with_z(z_w, z_l)
    if isinstance(calibrator, UpdateSteering):
        steered = calibrator.steer(loss, pairs, reduce)
        return Calibrated(_scaled(loss, pairs, steered.alpha), steered)
    if parameters is None:
        raise ConfigError("calibrate: no parameters to measure scores at", fix="parameters=[model.lm_head.weight]")
    everywhere = len(z_w) if reduce is None else int(reduce.sum(torch.tensor(len(z_w), device=z_w.device)).item())
    scores = summarise(*plain_scores(z_w, z_l, parameters), reduce, pairs=everywhere)
    stats = statistics(*mean_incentives(incentives(loss, pairs), reduce), scores)
    report = calibrator.update(stats) if calibrator else observe(stats)
    return Calibrated(_scaled(loss, pairs, report.alpha), report)


def mean_incentives(incentives: Incentives, reduce: Reduce | None = None) -> tuple[LogMean, LogMean]:
    """Mean d_w and d_l over the pairs of a batch and of all workers, in the log domain."""
    return means_of(incentive_sums([incentives], reduce).tolist())


def summarise(grads_w: Gradients, grads_l: Gradients, reduce: Reduce | None = None, *, pairs: int) -> Scores:
    """Norms and cosine of the mean scores over `pairs` pairs of all workers."""
    return from_products(score_products(grads_w, grads_l, reduce).tolist(), pairs)


def _scaled(loss: Objective | PairLoss, pairs: PairLogps, alpha: float) -> Tensor:
    scaled_w, scaled_l = scale_gradient(pairs.z_w, alpha), scale_gradient(pairs.z_l, 1 / alpha)
    return loss.loss(pairs.with_z(scaled_w, scaled_l)) if isinstance(loss, Objective) else loss(scaled_w, scaled_l)


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


def normalised_gradient() -> Calibrator:
    """Pairwise normalised gradients (Yuan et al. 2024, arXiv:2410.13828): s_w/|s_w| - s_l/|s_l|, whatever d_w and d_l.

    Each window's ratio becomes its own r*: calibration without memory, and nothing to clip. The length of the step is
    left as it was, (d_w |s_w| d_l |s_l|)^(1/2) of the window, so that learning rates keep their meaning.
    """
    return Calibrator(ema_beta=0.0, clip=False)
