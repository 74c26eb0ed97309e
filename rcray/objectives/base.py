"""What an objective is: branch statistics from token log-probabilities, then one loss per pair.

Legend
  z_w, z_l   [pairs]  branch statistics: log-likelihood of chosen / rejected (sum or mean over its tokens)
  ref_w, ref_l        the same of the frozen reference model; constants
  n_w, n_l   [pairs]  response tokens
  z~ = z - ref        m = z_w - z_l        m~ = z~_w - z~_l

  d_w = -dL/dz_w, d_l = dL/dz_l   [pairs]  incentives (paper, Eq. 5)

An objective is a pure function of `PairLogps`. It is differentiated once, by autograd on detached leaves: the seeds of
the backward and the incentives are the same numbers, so loss, calibration and log cannot drift apart.
"""

import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from rcray.config.objectives import BY_NAME, Custom, ObjectiveParams
from rcray.config.objectives.names import nearest_name, resolve_objective
from rcray.errors import ConfigError

Reduction = Literal["sum", "mean"]


@dataclass(frozen=True)
class PairLogps:
    """Branch statistics of a batch of preference pairs; every tensor is [pairs]."""

    z_w: Tensor
    z_l: Tensor
    n_w: Tensor
    n_l: Tensor
    ref_w: Tensor | None = None
    ref_l: Tensor | None = None
    reduction: Reduction = "sum"
    #: Constants some objectives carry beside the statistics (KTO's baseline, TDPO's stopped KL).
    constants: dict[str, Tensor] = field(default_factory=dict)
    #: [2, pairs] what the two terms of a loss that is a sum over its sides weigh, where rows of unpaired data repeat.
    weights: Tensor | None = None

    @property
    def m(self) -> Tensor:
        """The margin z_w - z_l."""
        return self.z_w - self.z_l

    @property
    def zt_w(self) -> Tensor:
        """z~_w: the chosen statistic normalised by the reference."""
        return self.z_w - _present(self.ref_w)

    @property
    def zt_l(self) -> Tensor:
        """z~_l: the rejected statistic normalised by the reference."""
        return self.z_l - _present(self.ref_l)

    @property
    def mt(self) -> Tensor:
        """m~: the effective margin z~_w - z~_l."""
        return self.zt_w - self.zt_l

    def with_z(self, z_w: Tensor, z_l: Tensor) -> "PairLogps":
        """The same pairs with other branch statistics: leaves, or calibrated ones."""
        return replace(self, z_w=z_w, z_l=z_l)


def _present(ref: Tensor | None) -> Tensor:
    if ref is None:
        raise ConfigError(
            "this objective reads the reference likelihoods, and none were given",
            fix="pass ref_w and ref_l, or declare needs_reference: true",
        )
    return ref


@dataclass(frozen=True)
class TokenLogps:
    """Log-probabilities of response tokens, [pairs, tokens], zero outside the mask."""

    logp_w: Tensor
    logp_l: Tensor
    mask_w: Tensor
    mask_l: Tensor
    ref_logp_w: Tensor | None = None
    ref_logp_l: Tensor | None = None
    #: KL(reference || policy) at each position, for objectives with `needs_reference_distribution`.
    kl_w: Tensor | None = None
    kl_l: Tensor | None = None
    #: Gradient importance of each token, already normalised, for TI-DPO's `importance: gradient`.
    importance_w: Tensor | None = None
    importance_l: Tensor | None = None
    #: Per-token log-ratios of a sampled anchor response, for TI-DPO's triplet term.
    anchor_ratio: Tensor | None = None


#: Loss per pair; of an objective whose traits say `separates`, its two terms: the winner's and the loser's.
Loss = Callable[[PairLogps, Any], Tensor | tuple[Tensor, Tensor]]
BuildStatistics = Callable[[TokenLogps, Any, Reduction], PairLogps]
LogIncentives = Callable[[PairLogps, Any], tuple[Tensor, Tensor]]
GuardedPairs = Callable[[PairLogps, Any], Tensor]
Auxiliary = Callable[[TokenLogps, Any], Tensor]


@dataclass(frozen=True)
class LossFunctions:
    """The torch side of an objective; everything but the loss is optional."""

    loss: Loss
    statistics: BuildStatistics | None = None
    #: log|d_w|, log|d_l| in closed form, for losses whose incentives underflow; tested against autograd.
    log_incentives: LogIncentives | None = None
    #: Which pairs are in a documented continuation of the loss, [pairs] bool.
    guarded: GuardedPairs | None = None
    #: A loss per pair outside the two incentives; never calibrated.
    auxiliary: Auxiliary | None = None


@dataclass(frozen=True)
class Objective:
    """Hyperparameters bound to their formula."""

    params: ObjectiveParams
    formula: LossFunctions

    def loss(self, pairs: PairLogps) -> Tensor:
        """Loss per pair, [pairs]."""
        loss = self.formula.loss(pairs, self.params)
        if isinstance(loss, Tensor):
            return loss
        weights = pairs.weights
        return loss[0] + loss[1] if weights is None else weights[0] * loss[0] + weights[1] * loss[1]

    def guarded(self, pairs: PairLogps) -> Tensor:
        """Which pairs sit in a documented continuation of the loss, [pairs] bool."""
        if self.formula.guarded is None:
            return pairs.z_w.new_zeros(pairs.z_w.shape).bool()
        return self.formula.guarded(pairs, self.params)

    def statistics(self, tokens: TokenLogps, reduction: Reduction) -> PairLogps:
        """Branch statistics from token log-probabilities; sum or mean unless the objective says otherwise."""
        build = self.formula.statistics or (lambda t, _params, r: reduce_tokens(t, r))
        return build(tokens, self.params, reduction)


PairLoss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Incentives:
    """Loss and incentives per pair; logs kept apart, in float64, so that saturated incentives stay comparable."""

    loss: Tensor
    d_w: Tensor
    d_l: Tensor
    log_d_w: Tensor  # log |d_w|; -inf where the incentive is exactly zero
    log_d_l: Tensor


def incentives(loss: Objective | PairLoss, pairs: PairLogps, *, double: bool = True) -> Incentives:
    """d_w and d_l of every pair, for an `Objective` or any function `loss(z_w, z_l) -> [pairs]`.

    The incentive of a pair is the derivative of the summed loss, so a loss may also couple the pairs of a batch.
    A pair whose likelihoods or loss are not finite has NaN incentives, even where the derivative is a constant
    (the winner of DDRO, a hinge): it must not pass for a healthy pair.

    Args:
        loss: what is differentiated.
        pairs: the likelihoods; their graph is not touched.
        double: differentiate in float64. A training step does not: -d_w and d_l are the seeds of its backward, bit for
            bit those of the plain loss. Logs in closed form are in float64 either way.
    """
    wide = _in_double(pairs)
    leaves = wide if double else pairs.with_z(pairs.z_w.detach().clone(), pairs.z_l.detach().clone())
    z_w, z_l = leaves.z_w.requires_grad_(), leaves.z_l.requires_grad_()
    with torch.enable_grad():
        values = loss.loss(leaves) if isinstance(loss, Objective) else loss(z_w, z_l)
        grad_w, grad_l = torch.autograd.grad(values.sum(), (z_w, z_l), allow_unused=True)
    d_w = torch.zeros_like(z_w) if grad_w is None else -grad_w
    d_l = torch.zeros_like(z_l) if grad_l is None else grad_l
    closed = loss.formula.log_incentives if isinstance(loss, Objective) else None
    with torch.no_grad():
        if closed is not None:
            log_w, log_l = closed(wide, loss.params)  # type: ignore[union-attr]
            if pairs.weights is not None:
                log_w, log_l = (x + w.double().log() for x, w in zip((log_w, log_l), pairs.weights, strict=True))
        else:
            log_w, log_l = d_w.double().abs().log(), d_l.double().abs().log()
        broken = ~(values.isfinite() & z_w.isfinite() & z_l.isfinite())
        masked = (x.detach().masked_fill(broken, math.nan) for x in (d_w, d_l, log_w, log_l))
        return Incentives(values.detach(), *masked)


def _in_double(pairs: PairLogps) -> PairLogps:
    """Detached float64 copies: these are scalars per pair, precision there costs nothing."""

    def double(tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else tensor.detach().to(torch.float64, copy=True)

    copies: dict[str, Any] = {name: double(getattr(pairs, name)) for name in ("z_w", "z_l", "ref_w", "ref_l")}
    return replace(
        pairs, **copies, constants={name: value.detach().double() for name, value in pairs.constants.items()}
    )


_FUNCTIONS: dict[str, LossFunctions] = {}
BoundLoss = TypeVar("BoundLoss", bound=Loss)


def register(
    params: type[ObjectiveParams],
    *,
    statistics: BuildStatistics | None = None,
    log_incentives: LogIncentives | None = None,
    guarded: GuardedPairs | None = None,
    auxiliary: Auxiliary | None = None,
) -> Callable[[BoundLoss], BoundLoss]:
    """Binds a loss function to its hyperparameter class."""

    def bind(loss: BoundLoss) -> BoundLoss:
        name = str(params.model_fields["name"].default)
        _FUNCTIONS[name] = LossFunctions(loss, statistics, log_incentives, guarded, auxiliary)
        return loss

    return bind


def build_objective(params: ObjectiveParams) -> Objective:
    """The objective of a config: built in by name, or the user's own by import path."""
    if isinstance(params, Custom):
        return Objective(params, LossFunctions(_user_loss(params)))
    return Objective(params, _FUNCTIONS[params.name])


def objective(name: str, **hyperparameters: Any) -> Objective:
    """Shorthand for loops of your own: `objective("dpo", beta=0.2)`; sums or means are the loop's choice."""
    if ":" in name:
        return build_objective(Custom(name=name, params=hyperparameters))
    try:
        settings, _ = resolve_objective({"name": name, **hyperparameters})
    except ValueError as error:
        raise ConfigError(str(error)) from None
    if settings["name"] not in BY_NAME:
        raise ConfigError(f"unknown objective {name!r}{nearest_name(name)}")
    return build_objective(BY_NAME[settings["name"]](**settings))


def _user_loss(params: Custom) -> Loss:
    module_name, _, function_name = params.name.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"objective.name: cannot import {params.name!r}: {error}",
            fix="the module must be installed or in the working directory, and hold that function",
        ) from None
    return lambda pairs, p: function(pairs, **p.params)


def reduce_tokens(tokens: TokenLogps, reduction: Reduction) -> PairLogps:
    """Sum or mean of token log-probabilities over each response."""
    n_w, n_l = tokens.mask_w.sum(-1), tokens.mask_l.sum(-1)

    def reduced(logp: Tensor | None, n: Tensor) -> Tensor | None:
        if logp is None:
            return None
        return logp.sum(-1) if reduction == "sum" else logp.sum(-1) / n

    z_w, z_l = reduced(tokens.logp_w, n_w), reduced(tokens.logp_l, n_l)
    assert z_w is not None and z_l is not None
    ref_w, ref_l = reduced(tokens.ref_logp_w, n_w), reduced(tokens.ref_logp_l, n_l)
    return PairLogps(z_w, z_l, n_w, n_l, ref_w, ref_l, reduction)


#: Of means over a batch: a float, or a 0-dim float64 tensor in its place, which stays on a GPU; a condition is a bool,
#: or a 0-dim bool tensor. Formulas over them are written once, by these functions.
Number = Any


def choose(condition: Number, yes: Number, no: Number) -> Number:
    """`yes` where the condition holds, else `no`."""
    if not isinstance(condition, Tensor):
        return yes if condition else no
    # A plain number would be copied to the device while the host waits; a tensor is filled with it there.
    filled = (v if isinstance(v, Tensor) else torch.full_like(condition, v, dtype=torch.float64) for v in (yes, no))
    return torch.where(condition, *filled)


def larger(one: Number, two: Number) -> Number:
    """The larger of two; NaN if one of them is."""
    return choose((two > one) | (two != two), two, one)


def smaller(one: Number, two: Number) -> Number:
    """The smaller of two; NaN if one of them is."""
    return choose((two < one) | (two != two), two, one)


def _of_either(name: str) -> Callable[[Number], Number]:
    """A function of `math` that takes tensors, too; NaN in place of an error, since that case will not be chosen."""
    of_float, of_tensor = getattr(math, name), getattr(torch, name)

    def function(x: Number) -> Number:
        if isinstance(x, Tensor):
            return of_tensor(x)
        try:
            return of_float(x)
        except ValueError:
            return math.nan

    return function


exp, log, log1p, sqrt = map(_of_either, ("exp", "log", "log1p", "sqrt"))
