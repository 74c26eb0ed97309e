"""The other losses of TRL's DPOTrainer.

Legend: z~ = z - z_ref; m~ = z~_w - z~_l; u = b m~; s = sigmoid; b, e = beta, label_smoothing; t = 1/(2b).
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, relu

from rcray.config.objectives import ApoDown, Bco, CDpo, DiscoPop, Exo, FDpo, Hinge, Nca, Robust, SppoHard
from rcray.objectives.base import PairLogps, register
from rcray.objectives.margin import same
from rcray.objectives.ratio import bounded_exp, log_sigmoid_slope, sigmoid


def _log(probability: float) -> float:
    return math.log(probability) if probability > 0 else -math.inf


@register(Hinge)
def hinge(pairs: PairLogps, p: Hinge) -> Tensor:
    """max(0, 1 - u)."""
    return relu(1 - p.beta * pairs.mt)


def _robust_log_incentives(pairs: PairLogps, p: Robust) -> tuple[Tensor, Tensor]:
    u, e = p.beta * pairs.mt, p.label_smoothing
    blend = torch.logaddexp(logsigmoid(-u) + math.log1p(-e), logsigmoid(u) + _log(e))
    return same(math.log(p.beta) - math.log1p(-2 * e) + blend)


@register(Robust, log_incentives=_robust_log_incentives)
def robust(pairs: PairLogps, p: Robust) -> Tensor:
    """(-(1 - e) log s(u) + e log s(-u))/(1 - 2e)."""
    u, e = p.beta * pairs.mt, p.label_smoothing
    return (e * logsigmoid(-u) - (1 - e) * logsigmoid(u)) / (1 - 2 * e)


def _cdpo_log_incentives(pairs: PairLogps, p: CDpo) -> tuple[Tensor, Tensor]:
    log_pull = logsigmoid(-p.beta * pairs.mt)
    if p.label_smoothing:
        log_pull = (log_pull.exp() - p.label_smoothing).abs().log()
    return same(math.log(p.beta) + log_pull)


@register(CDpo, log_incentives=_cdpo_log_incentives)
def cdpo(pairs: PairLogps, p: CDpo) -> Tensor:
    """-(1 - e) log s(u) - e log s(-u)."""
    u, e = p.beta * pairs.mt, p.label_smoothing
    return -(1 - e) * logsigmoid(u) - e * logsigmoid(-u)


def _exo_log_incentives(pairs: PairLogps, p: Exo) -> tuple[Tensor, Tensor]:
    u, e = p.beta * pairs.mt, p.label_smoothing
    distance = math.log1p(-e) - math.log(e) - u
    return same(math.log(p.beta) + log_sigmoid_slope(u) + distance.abs().log())


@register(Exo, log_incentives=_exo_log_incentives)
def exo(pairs: PairLogps, p: Exo) -> Tensor:
    """KL from (q, 1 - q), q = s(u), to (1 - e, e)."""
    u, e = p.beta * pairs.mt, p.label_smoothing
    return sigmoid(u) * (logsigmoid(u) - math.log1p(-e)) + sigmoid(-u) * (logsigmoid(-u) - math.log(e))


@register(DiscoPop)
def discopop(pairs: PairLogps, p: DiscoPop) -> Tensor:
    """-(1 - q) log s(u) + q e^-u, q = s(u/tau)."""
    u = p.beta * pairs.mt
    # in one exponent: e^-u alone overflows where q has long vanished
    return -sigmoid(-u / p.tau) * logsigmoid(u) + torch.exp(logsigmoid(u / p.tau) - u)


def _phi(ratio: Tensor, p: FDpo) -> Tensor:
    """f'(e^z~) of the divergence, less its constant; the forward KL's along its tangent past max_slope."""
    if p.divergence == "js_divergence":
        return logsigmoid(ratio)
    return -bounded_exp(-ratio, math.log(p.max_slope))


def _log_phi_slope(ratio: Tensor, p: FDpo) -> Tensor:
    return logsigmoid(-ratio) if p.divergence == "js_divergence" else (-ratio).clamp(max=math.log(p.max_slope))


def _fdpo_argument(pairs: PairLogps, p: FDpo) -> Tensor:
    return p.beta * (_phi(pairs.zt_w, p) - _phi(pairs.zt_l, p))


def _fdpo_log_incentives(pairs: PairLogps, p: FDpo) -> tuple[Tensor, Tensor]:
    shared = math.log(p.beta) + logsigmoid(-_fdpo_argument(pairs, p))
    return shared + _log_phi_slope(pairs.zt_w, p), shared + _log_phi_slope(pairs.zt_l, p)


def _fdpo_guarded(pairs: PairLogps, p: FDpo) -> Tensor:
    lowest = torch.minimum(pairs.zt_w, pairs.zt_l)
    return (lowest < -math.log(p.max_slope)) & (p.divergence == "forward_kl")


@register(FDpo, log_incentives=_fdpo_log_incentives, guarded=_fdpo_guarded)
def f_dpo(pairs: PairLogps, p: FDpo) -> Tensor:
    """-log s(b (phi(z~_w) - phi(z~_l)))."""
    return -logsigmoid(_fdpo_argument(pairs, p))


@register(SppoHard)
def sppo_hard(pairs: PairLogps, p: SppoHard) -> tuple[Tensor, Tensor]:
    """(z~_w - t)^2 + (z~_l + t)^2."""
    target = 1 / (2 * p.beta)
    return (pairs.zt_w - target).square(), (pairs.zt_l + target).square()


def _nca_log_incentives(pairs: PairLogps, p: Nca) -> tuple[Tensor, Tensor]:
    chosen = 1 - 1.5 * torch.sigmoid(p.beta * pairs.zt_w)
    return math.log(p.beta) + chosen.abs().log(), math.log(p.beta / 2) + logsigmoid(p.beta * pairs.zt_l)


@register(Nca, log_incentives=_nca_log_incentives)
def nca(pairs: PairLogps, p: Nca) -> tuple[Tensor, Tensor]:
    """-log s(b z~_w) - log s(-b z~_w)/2 - log s(-b z~_l)/2."""
    u_w, u_l = p.beta * pairs.zt_w, p.beta * pairs.zt_l
    return -logsigmoid(u_w) - logsigmoid(-u_w) / 2, -logsigmoid(-u_l) / 2


def _bco_log_incentives(pairs: PairLogps, p: Bco) -> tuple[Tensor, Tensor]:
    scale = math.log(p.beta)
    return scale + logsigmoid(-p.beta * pairs.zt_w), scale + logsigmoid(p.beta * pairs.zt_l)


@register(Bco, log_incentives=_bco_log_incentives)
def bco(pairs: PairLogps, p: Bco) -> tuple[Tensor, Tensor]:
    """-log s(b z~_w) - log s(-b z~_l)."""
    return -logsigmoid(p.beta * pairs.zt_w), -logsigmoid(-p.beta * pairs.zt_l)


def _apo_down_log_incentives(pairs: PairLogps, p: ApoDown) -> tuple[Tensor, Tensor]:
    margin, anchor = log_sigmoid_slope(p.beta * pairs.mt), log_sigmoid_slope(p.beta * pairs.zt_w)
    # log |e^margin - e^anchor|, -inf where they are equal
    difference = torch.maximum(margin, anchor) + torch.log(-torch.expm1(-(margin - anchor).abs()))
    return math.log(p.beta) + difference, math.log(p.beta) + margin


@register(ApoDown, log_incentives=_apo_down_log_incentives)
def apo_down(pairs: PairLogps, p: ApoDown) -> Tensor:
    """s(b z~_w) + 1 - s(b m~)."""
    return sigmoid(p.beta * pairs.zt_w) + sigmoid(-p.beta * pairs.mt)
