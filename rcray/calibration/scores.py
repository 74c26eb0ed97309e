"""Scores: the directions s_w, s_l in parameter space, through their norms and cosine.

Legend: s_w = gradient of the mean z_w over a batch, s_l likewise; estimated on the parameters closest to the output
(`head`) or on every trainable parameter (`full`). Paper, section "Efficient DB Estimation".

`plain_scores` is the published way, two extra `autograd.grad` calls on a retained graph.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from rcray.calibration.band import Statistics
from rcray.calibration.incentives import LogMean, OneWorker, Reduce
from rcray.errors import ConfigError

Gradients = list[Tensor]


@dataclass(frozen=True)
class Scores:
    """Norms and cosine of the two score directions; logs, because the norms span many decades."""

    log_s_w: float
    log_s_l: float
    rho: float


def score_parameters(model: nn.Module, estimator: Literal["head", "full"]) -> list[nn.Parameter]:
    """The parameters whose gradients stand for the scores."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    if estimator == "full":
        return trainable
    head = model.get_output_embeddings()  # type: ignore[operator]
    if head is None or not head.weight.requires_grad:
        raise ConfigError(
            "calibration.scores: 'head' needs a trainable output head, and this model's head is frozen",
            fix="use calibration.scores: full",
        )
    return [head.weight]


def plain_scores(z_w: Tensor, z_l: Tensor, parameters: Sequence[Tensor]) -> tuple[Gradients, Gradients]:
    """Gradients of sum z_w and of sum z_l; the graph is kept for the backward that follows."""
    sides = []
    for z in (z_w, z_l):
        grads = torch.autograd.grad(z.sum(), parameters, retain_graph=True, allow_unused=True)
        sides.append([torch.zeros_like(p) if g is None else g for g, p in zip(grads, parameters, strict=True)])
    return sides[0], sides[1]


def summarise(grads_w: Gradients, grads_l: Gradients, reduce: Reduce | None = None, *, pairs: int) -> Scores:
    """Norms and cosine of the mean scores over `pairs` pairs of all workers, reduced before they are squared."""
    reduce = reduce or OneWorker()
    products = torch.zeros(3, dtype=torch.float64, device=grads_w[0].device)
    for g_w, g_l in zip(grads_w, grads_l, strict=True):
        # float32 or better holds each product's terms, float64 their sum
        wide = torch.promote_types(g_w.dtype, torch.float32)
        g_w, g_l = reduce.sum(g_w.to(wide)), reduce.sum(g_l.to(wide))
        products += torch.stack(
            [
                (g_w * g_w).sum(dtype=torch.float64),
                (g_l * g_l).sum(dtype=torch.float64),
                (g_w * g_l).sum(dtype=torch.float64),
            ]
        )
    ww, ll, wl = products.tolist()
    if not all(map(math.isfinite, (ww, ll, wl))):
        return Scores(math.nan, math.nan, math.nan)
    if ww == 0 or ll == 0:
        return Scores(_half_log(ww) - math.log(pairs), _half_log(ll) - math.log(pairs), math.nan)
    rho = max(-1.0, min(1.0, wl / math.sqrt(ww) / math.sqrt(ll)))
    return Scores(_half_log(ww) - math.log(pairs), _half_log(ll) - math.log(pairs), rho)


def _half_log(square: float) -> float:
    return 0.5 * math.log(square) if square > 0 else -math.inf


def statistics(d_w: LogMean, d_l: LogMean, scores: Scores) -> Statistics:
    """Joins incentives and scores of one batch."""
    return Statistics(d_w.log_abs, d_l.log_abs, d_w.sign, d_l.sign, scores.log_s_w, scores.log_s_l, scores.rho)
