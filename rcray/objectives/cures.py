"""Objectives against a falling chosen likelihood: a penalty, a weight, a target, a likelihood term, another reward.

Legend: z~ = z - z_ref; m~ = z~_w - z~_l; s = sigmoid; b, a, g = beta, alpha, gamma; n = response tokens; p = exp(z/n).
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, relu

from rcray.config.objectives import AlphaPo, BalancedPo, BDpo, CalDpo, DpoP, DpoShift, Orpo, Rpo
from rcray.objectives.base import PairLogps, register
from rcray.objectives.margin import token_counts


def _dpop_argument(pairs: PairLogps, p: DpoP) -> Tensor:
    return p.beta * (pairs.mt - p.lam * relu(-pairs.zt_w))


def _dpop_log_incentives(pairs: PairLogps, p: DpoP) -> tuple[Tensor, Tensor]:
    log_d_l = math.log(p.beta) + logsigmoid(-_dpop_argument(pairs, p))
    return log_d_l + (pairs.zt_w < 0).to(log_d_l.dtype) * math.log1p(p.lam), log_d_l


@register(DpoP, log_incentives=_dpop_log_incentives)
def dpop(pairs: PairLogps, p: DpoP) -> Tensor:
    """-log s(b [m~ - lam max(0, -z~_w)])."""
    return -logsigmoid(_dpop_argument(pairs, p))


def _shift_argument(pairs: PairLogps, p: DpoShift) -> Tensor:
    return p.beta * (pairs.zt_w - p.shift * pairs.zt_l)


def _shift_log_incentives(pairs: PairLogps, p: DpoShift) -> tuple[Tensor, Tensor]:
    log_d_w = math.log(p.beta) + logsigmoid(-_shift_argument(pairs, p))
    return log_d_w, log_d_w + math.log(p.shift)


@register(DpoShift, log_incentives=_shift_log_incentives)
def dpo_shift(pairs: PairLogps, p: DpoShift) -> Tensor:
    """-log s(b [z~_w - f z~_l])."""
    return -logsigmoid(_shift_argument(pairs, p))


@register(CalDpo)
def cal_dpo(pairs: PairLogps, p: CalDpo) -> Tensor:
    """-log s(m~) + ((z~_w - t)^2 + (z~_l + t)^2)/2 with t = 1/(2b)."""
    target = 1 / (2 * p.beta)
    squares = (pairs.zt_w - target).square() + (pairs.zt_l + target).square()
    return -logsigmoid(pairs.mt) + squares / 2


def _rpo_log_incentives(pairs: PairLogps, p: Rpo) -> tuple[Tensor, Tensor]:
    log_d_l = math.log(p.beta) + logsigmoid(-p.beta * pairs.mt)
    return torch.log(log_d_l.exp() + p.alpha / token_counts(pairs)[0]), log_d_l


@register(Rpo, log_incentives=_rpo_log_incentives)
def rpo(pairs: PairLogps, p: Rpo) -> Tensor:
    """-log s(b m~) - a z_w/n_w."""
    return -logsigmoid(p.beta * pairs.mt) - p.alpha * pairs.z_w / token_counts(pairs)[0]


def _alphapo_reward(mean: Tensor, p: AlphaPo) -> Tensor:
    """R = (1 - e^(-a z/n))/a, along its tangent past a slope of max_slope; z/n itself at a = 0."""
    if p.alpha == 0:
        return mean
    edge = math.log(p.max_slope)
    power = -p.alpha * mean
    # expm1 below the edge: near a = 0 the 1 would swallow the difference
    grown = torch.expm1(power.clamp(max=edge)) + p.max_slope * relu(power - edge)
    return -grown / p.alpha


def _alphapo_argument(pairs: PairLogps, p: AlphaPo) -> Tensor:
    n_w, n_l = token_counts(pairs)
    return p.beta * (_alphapo_reward(pairs.z_w / n_w, p) - _alphapo_reward(pairs.z_l / n_l, p)) - p.gamma


def _alphapo_log_incentives(pairs: PairLogps, p: AlphaPo) -> tuple[Tensor, Tensor]:
    n_w, n_l = token_counts(pairs)
    shared = math.log(p.beta) + logsigmoid(-_alphapo_argument(pairs, p))
    edge = math.log(p.max_slope)
    power_w, power_l = ((-p.alpha * z / n).clamp(max=edge) for z, n in ((pairs.z_w, n_w), (pairs.z_l, n_l)))
    return shared + power_w - n_w.log(), shared + power_l - n_l.log()


def _alphapo_guarded(pairs: PairLogps, p: AlphaPo) -> Tensor:
    n_w, n_l = token_counts(pairs)
    return torch.maximum(-p.alpha * pairs.z_w / n_w, -p.alpha * pairs.z_l / n_l) > math.log(p.max_slope)


@register(AlphaPo, log_incentives=_alphapo_log_incentives, guarded=_alphapo_guarded)
def alphapo(pairs: PairLogps, p: AlphaPo) -> Tensor:
    """-log s(b (R_w - R_l) - g), R = (1 - p^-a)/a."""
    return -logsigmoid(_alphapo_argument(pairs, p))


def _certain(p: Orpo) -> float:
    """The z/n at which 1/(1 - p) reaches max_slope."""
    return math.log1p(-1 / p.max_slope)


def _log_odds(mean: Tensor, p: Orpo) -> Tensor:
    """log(p/(1 - p)) of p = e^mean, along its tangent from an almost certain answer on."""
    edge = _certain(p)
    bounded = mean.clamp(max=edge)
    return bounded - torch.log(-torch.expm1(bounded)) + p.max_slope * relu(mean - edge)


def _orpo_log_incentives(pairs: PairLogps, p: Orpo) -> tuple[Tensor, Tensor]:
    n_w, n_l = token_counts(pairs)
    mean_w, mean_l = pairs.z_w / n_w, pairs.z_l / n_l
    log_pull = math.log(p.lam) + logsigmoid(_log_odds(mean_l, p) - _log_odds(mean_w, p))
    # -log(1 - p) of both sides: the slope of the log-odds
    slope_w, slope_l = (-torch.log(-torch.expm1(mean.clamp(max=_certain(p)))) for mean in (mean_w, mean_l))
    return torch.log1p((log_pull + slope_w).exp()) - n_w.log(), log_pull + slope_l - n_l.log()


def _orpo_guarded(pairs: PairLogps, p: Orpo) -> Tensor:
    n_w, n_l = token_counts(pairs)
    return torch.maximum(pairs.z_w / n_w, pairs.z_l / n_l) > _certain(p)


@register(Orpo, log_incentives=_orpo_log_incentives, guarded=_orpo_guarded)
def orpo(pairs: PairLogps, p: Orpo) -> Tensor:
    """-z_w/n_w - lam log s(logit p_w - logit p_l)."""
    n_w, n_l = token_counts(pairs)
    mean_w, mean_l = pairs.z_w / n_w, pairs.z_l / n_l
    return -mean_w - p.lam * logsigmoid(_log_odds(mean_w, p) - _log_odds(mean_l, p))


def _bdpo_argument(pairs: PairLogps, p: BDpo) -> Tensor:
    mixed = torch.logaddexp(pairs.zt_l + math.log(p.lam), torch.full_like(pairs.zt_l, math.log1p(-p.lam)))
    return p.beta * (pairs.zt_w - mixed)


def _bdpo_log_incentives(pairs: PairLogps, p: BDpo) -> tuple[Tensor, Tensor]:
    log_d_w = math.log(p.beta) + logsigmoid(-_bdpo_argument(pairs, p))
    return log_d_w, log_d_w + logsigmoid(pairs.zt_l + math.log(p.lam) - math.log1p(-p.lam))


@register(BDpo, log_incentives=_bdpo_log_incentives)
def bdpo(pairs: PairLogps, p: BDpo) -> Tensor:
    """-log s(b [z~_w - log(lam e^z~_l + 1 - lam)])."""
    return -logsigmoid(_bdpo_argument(pairs, p))


def _balanced_argument(pairs: PairLogps, p: BalancedPo) -> Tensor:
    return p.beta * torch.minimum(pairs.zt_w, -p.alpha * pairs.zt_l)


def _balanced_log_incentives(pairs: PairLogps, p: BalancedPo) -> tuple[Tensor, Tensor]:
    log_d = math.log(p.beta) + logsigmoid(-_balanced_argument(pairs, p))
    # 1, 0, or 1/2 at a tie, as autograd takes a minimum
    share_w = torch.sign(-p.alpha * pairs.zt_l - pairs.zt_w) / 2 + 0.5
    return log_d + share_w.log(), log_d + math.log(p.alpha) + (1 - share_w).log()


@register(BalancedPo, log_incentives=_balanced_log_incentives)
def balanced_po(pairs: PairLogps, p: BalancedPo) -> Tensor:
    """-log s(b min(z~_w, -a z~_l))."""
    return -logsigmoid(_balanced_argument(pairs, p))
