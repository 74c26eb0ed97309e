"""Incentives of any objective, by autograd on detached leaves (paper, Eq. 5).

Legend: d_w = -dL/dz_w, d_l = dL/dz_l, per pair; the batch's incentive is their mean, kept as sign and log.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from rcray.objectives import Objective, PairLogps

PairLoss = Callable[[Tensor, Tensor], Tensor]


class Reduce(Protocol):
    """How workers share what each of them saw; the default is one worker."""

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over workers."""
        ...

    def gather(self, values: Tensor) -> Tensor:
        """All workers' values, [workers, ...]."""
        ...


class OneWorker:
    """The reduction of a process that works alone."""

    def sum(self, tensor: Tensor) -> Tensor:
        """The tensor itself."""
        return tensor

    def gather(self, values: Tensor) -> Tensor:
        """One row."""
        return values[None]


@dataclass(frozen=True)
class Incentives:
    """Incentives per pair, float64, with their logs kept apart so that saturated ones stay comparable."""

    d_w: Tensor
    d_l: Tensor
    log_d_w: Tensor  # log |d_w|; -inf where the incentive is exactly zero
    log_d_l: Tensor


@dataclass(frozen=True)
class LogMean:
    """A signed mean as sign and log of its absolute value."""

    log_abs: float
    sign: int

    @property
    def value(self) -> float:
        """The mean itself; may underflow to 0 where log_abs does not."""
        return self.sign * math.exp(self.log_abs)


def incentives(loss: Objective | PairLoss, pairs: PairLogps) -> Incentives:
    """d_w and d_l of every pair, for an `Objective` or any function `loss(z_w, z_l) -> [pairs]`.

    The incentive of a pair is the derivative of the summed loss, so a loss may also couple the pairs of a batch.
    A pair whose likelihoods or loss are not finite has NaN incentives, even where the derivative is a constant
    (the winner of DDRO, a hinge): it must not pass for a healthy pair.
    """
    pairs = in_double(pairs)
    z_w, z_l = pairs.z_w.requires_grad_(), pairs.z_l.requires_grad_()
    with torch.enable_grad():
        values = loss.loss(pairs) if isinstance(loss, Objective) else loss(z_w, z_l)
        grad_w, grad_l = torch.autograd.grad(values.sum(), (z_w, z_l), allow_unused=True)
    d_w = torch.zeros_like(z_w) if grad_w is None else -grad_w
    d_l = torch.zeros_like(z_l) if grad_l is None else grad_l
    closed = loss.formula.log_incentives if isinstance(loss, Objective) else None
    with torch.no_grad():
        log_w, log_l = closed(pairs, loss.params) if closed else (d_w.abs().log(), d_l.abs().log())  # type: ignore[union-attr]
        broken = ~(values.isfinite() & z_w.isfinite() & z_l.isfinite())
        return Incentives(*(x.detach().masked_fill(broken, math.nan) for x in (d_w, d_l, log_w, log_l)))


def in_double(pairs: PairLogps) -> PairLogps:
    """Detached float64 copies: incentives are scalars per pair, precision there costs nothing."""

    def double(tensor: Tensor) -> Tensor:
        return tensor.detach().to(torch.float64, copy=True)

    return replace(
        pairs,
        z_w=double(pairs.z_w),
        z_l=double(pairs.z_l),
        ref_w=None if pairs.ref_w is None else double(pairs.ref_w),
        ref_l=None if pairs.ref_l is None else double(pairs.ref_l),
        constants={name: double(value) for name, value in pairs.constants.items()},
    )


def mean_incentives(found: Incentives, reduce: Reduce | None = None) -> tuple[LogMean, LogMean]:
    """The batch's mean d_w and d_l over the pairs of all workers, in the log domain."""
    reduce = reduce or OneWorker()
    count = float(len(found.d_w))
    local = torch.tensor(
        [
            *_log_sums(found.log_d_w, found.d_w),
            *_log_sums(found.log_d_l, found.d_l),
            count,
        ],
        dtype=torch.float64,
        device=found.d_w.device,
    )
    rows = reduce.gather(local).tolist()
    total = sum(row[4] for row in rows)
    return (
        _signed_mean([row[0] for row in rows], [row[1] for row in rows], total),
        _signed_mean([row[2] for row in rows], [row[3] for row in rows], total),
    )


def _log_sums(log_abs: Tensor, value: Tensor) -> tuple[float, float]:
    """log of the sum of positive and of negative incentives.

    The sign of an incentive that underflowed to 0 is taken as positive, unless its log says it is exactly 0.
    """
    negative = torch.where(value < 0, log_abs, -math.inf)
    positive = torch.where(value < 0, -math.inf, log_abs)
    return torch.logsumexp(positive, 0).item(), torch.logsumexp(negative, 0).item()


def _signed_mean(positive: list[float], negative: list[float], count: float) -> LogMean:
    plus, minus = _logsumexp(positive), _logsumexp(negative)
    if math.isnan(plus) or math.isnan(minus) or math.inf in (plus, minus):
        return LogMean(math.nan, 0)
    if plus == minus:  # both -inf (inactive), or an exact cancellation
        return LogMean(-math.inf, 0)
    high, low = max(plus, minus), min(plus, minus)
    log_abs = high + (math.log1p(-math.exp(low - high)) if low > -math.inf else 0.0)
    return LogMean(log_abs - math.log(count), 1 if plus > minus else -1)


def _logsumexp(values: list[float]) -> float:
    top = max(values)
    if any(math.isnan(v) for v in values):
        return math.nan
    return top if math.isinf(top) else top + math.log(sum(math.exp(v - top) for v in values))
