"""Disentangled objectives: separate shaping of z~_w and z~_l (paper, Eq. 4 and A.3.2), so a loss has two terms.

Legend: z~ = z - z_ref, the log density ratio of one side; s = sigmoid; lw, ll = lambda_w, lambda_l.

Where exp() of a summed log-ratio would overflow or a loss is singular, the loss goes on along its tangent from the
point where the incentive reaches `max_incentive`. The incentive is then bounded in the loss and in the calibration
alike (but for DDRO's `rc_max_incentive`, where it is given), and `guarded` marks the pairs concerned.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, relu, softplus

from rcray.config.objectives import Ddro, DilBce, DilLsif, DilUkl, Kto
from rcray.errors import ConfigError
from rcray.objectives.base import PairLogps, register


def _kto_arguments(pairs: PairLogps, p: Kto) -> tuple[Tensor, Tensor]:
    """What the two sigmoids of KTO are taken of; K is 0 in the paper's form, and never carries a gradient."""
    if p.baseline == "none":
        return -p.beta * pairs.zt_w, p.beta * pairs.zt_l
    if "kl_baseline" not in pairs.constants:
        raise ConfigError(
            "objective 'kto' with baseline: kl needs the constant kl_baseline in PairLogps, and none was given",
            fix="put K into constants, or set baseline: none",
        )
    baseline = pairs.constants["kl_baseline"].detach()
    return p.beta * (baseline - pairs.zt_w), p.beta * (pairs.zt_l - baseline)


def log_sigmoid_slope(u: Tensor) -> Tensor:
    """log s'(u) = log s(u) + log s(-u)."""
    return logsigmoid(u) + logsigmoid(-u)


def sigmoid(u: Tensor) -> Tensor:
    """s(u) with an exact slope: autograd's s(1 - s) is 0 in float32 past u = 17, that of 1 - s(-u) is not."""
    return torch.where(u > 0, 1 - torch.sigmoid(-u), torch.sigmoid(u))


def _kto_log_incentives(pairs: PairLogps, p: Kto) -> tuple[Tensor, Tensor]:
    u_w, u_l = _kto_arguments(pairs, p)
    return (
        math.log(p.beta * p.lam_w) + log_sigmoid_slope(u_w),
        math.log(p.beta * p.lam_l) + log_sigmoid_slope(u_l),
    )


@register(Kto, log_incentives=_kto_log_incentives)
def kto(pairs: PairLogps, p: Kto) -> tuple[Tensor, Tensor]:
    """lw s(b (K - z~_w)) + ll s(b (z~_l - K))."""
    u_w, u_l = _kto_arguments(pairs, p)
    return p.lam_w * sigmoid(u_w), p.lam_l * sigmoid(u_l)


def _ddro_edge(max_incentive: float) -> float:
    """The z~_l at which d_l = e^z/(2 - e^z) reaches S = max_incentive: e^z = 2S/(1 + S)."""
    return math.log(2 * max_incentive / (1 + max_incentive))


def _ddro_log_incentives(pairs: PairLogps, p: Ddro) -> tuple[Tensor, Tensor]:
    """The authors bound d_l by one number in the loss and by a lower one in the calibration: `rc_max_incentive`."""
    u = pairs.zt_l.clamp(max=_ddro_edge(min(p.max_incentive, p.rc_max_incentive or p.max_incentive)))
    return torch.zeros_like(u), u - torch.log(2 - u.exp())


@register(Ddro, log_incentives=_ddro_log_incentives, guarded=lambda pairs, p: pairs.zt_l > _ddro_edge(p.max_incentive))
def ddro(pairs: PairLogps, p: Ddro) -> tuple[Tensor, Tensor]:
    """log 2 - z~_w + log 2 - log(2 - e^z~_l), along its tangent past d_l = max_incentive."""
    edge = _ddro_edge(p.max_incentive)
    bounded = pairs.zt_l.clamp(max=edge)
    loser = math.log(2) - torch.log(2 - bounded.exp()) + p.max_incentive * relu(pairs.zt_l - edge)
    return math.log(2) - pairs.zt_w, loser


def _bce_log_incentives(pairs: PairLogps, p: DilBce) -> tuple[Tensor, Tensor]:
    return logsigmoid(-pairs.zt_w), logsigmoid(pairs.zt_l)


@register(DilBce, log_incentives=_bce_log_incentives)
def dil_bce(pairs: PairLogps, p: DilBce) -> tuple[Tensor, Tensor]:
    """softplus(-z~_w) + softplus(z~_l)."""
    # softplus's default threshold rounds log(1+e^x) to x past 20, and with it the gradient.
    return softplus(-pairs.zt_w, threshold=80), softplus(pairs.zt_l, threshold=80)


def bounded_exp(x: Tensor, edge: float) -> Tensor:
    """exp(x), continued along its tangent past `edge`."""
    return x.clamp(max=edge).exp() + math.exp(edge) * relu(x - edge)


def _ukl_log_incentives(pairs: PairLogps, p: DilUkl) -> tuple[Tensor, Tensor]:
    return torch.zeros_like(pairs.zt_w), pairs.zt_l.clamp(max=math.log(p.max_incentive))


@register(
    DilUkl,
    log_incentives=_ukl_log_incentives,
    guarded=lambda pairs, p: pairs.zt_l > math.log(p.max_incentive),
)
def dil_ukl(pairs: PairLogps, p: DilUkl) -> tuple[Tensor, Tensor]:
    """e^z~_l - z~_w."""
    return -pairs.zt_w, bounded_exp(pairs.zt_l, math.log(p.max_incentive))


def _lsif_guarded(pairs: PairLogps, p: DilLsif) -> Tensor:
    edge = math.log(p.max_incentive)
    return (pairs.zt_w > edge) | (2 * pairs.zt_l > edge)


def _lsif_log_incentives(pairs: PairLogps, p: DilLsif) -> tuple[Tensor, Tensor]:
    edge = math.log(p.max_incentive)
    return pairs.zt_w.clamp(max=edge), (2 * pairs.zt_l).clamp(max=edge)


@register(DilLsif, log_incentives=_lsif_log_incentives, guarded=_lsif_guarded)
def dil_lsif(pairs: PairLogps, p: DilLsif) -> tuple[Tensor, Tensor]:
    """e^(2 z~_l)/2 - e^z~_w."""
    edge = math.log(p.max_incentive)
    return -bounded_exp(pairs.zt_w, edge), bounded_exp(2 * pairs.zt_l, edge) / 2
