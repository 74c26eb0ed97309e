"""Entangled objectives: one function of a margin, some with a chosen-only term (paper, Eq. 1 and A.3.1).

Legend: m = z_w - z_l; m~ = m - m_ref; s = sigmoid; b, a, g = beta, alpha, gamma; t = 1/(2 tau).
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, relu

from rcray.config.objectives import Bpo, Cpo, Dpo, Ipo, RDpo, Rrhf, SimPo, SlicHf
from rcray.objectives.base import PairLogps, register


def same(log_d: Tensor) -> tuple[Tensor, Tensor]:
    """d_w = d_l: the ratio is exactly 1, however small the incentives are."""
    return log_d, log_d


def _dpo_log_incentives(pairs: PairLogps, p: Dpo) -> tuple[Tensor, Tensor]:
    return same(math.log(p.beta) + logsigmoid(-p.beta * pairs.mt))


@register(Dpo, log_incentives=_dpo_log_incentives)
def dpo(pairs: PairLogps, p: Dpo) -> Tensor:
    """-log s(b m~). Paper Eq. 2."""
    return -logsigmoid(p.beta * pairs.mt)


@register(Ipo)
def ipo(pairs: PairLogps, p: Ipo) -> Tensor:
    """(m~ - t)^2 with t = 1/(2 tau)."""
    return (pairs.mt - 1 / (2 * p.tau)).square()


def _rdpo_argument(pairs: PairLogps, p: RDpo) -> Tensor:
    return p.beta * pairs.mt + p.alpha * (pairs.n_w - pairs.n_l)


def _rdpo_log_incentives(pairs: PairLogps, p: RDpo) -> tuple[Tensor, Tensor]:
    return same(math.log(p.beta) + logsigmoid(-_rdpo_argument(pairs, p)))


@register(RDpo, log_incentives=_rdpo_log_incentives)
def r_dpo(pairs: PairLogps, p: RDpo) -> Tensor:
    """-log s(b m~ + a (n_w - n_l))."""
    return -logsigmoid(_rdpo_argument(pairs, p))


def token_counts(pairs: PairLogps) -> tuple[Tensor, Tensor]:
    """What z is still to be divided by: the length under `sum`, nothing under `mean`."""
    if pairs.reduction == "mean":
        return torch.ones_like(pairs.z_w), torch.ones_like(pairs.z_l)
    return pairs.n_w.to(pairs.z_w.dtype), pairs.n_l.to(pairs.z_l.dtype)


def _simpo_margin(pairs: PairLogps, p: SimPo) -> Tensor:
    n_w, n_l = token_counts(pairs)
    return p.beta * pairs.z_w / n_w - p.beta * pairs.z_l / n_l


def _simpo_log_incentives(pairs: PairLogps, p: SimPo) -> tuple[Tensor, Tensor]:
    n_w, n_l = token_counts(pairs)
    shared = math.log(p.beta) + logsigmoid(p.gamma - _simpo_margin(pairs, p))
    return shared - n_w.log(), shared - n_l.log()


@register(SimPo, log_incentives=_simpo_log_incentives)
def simpo(pairs: PairLogps, p: SimPo) -> Tensor:
    """-log s(b z_w/n_w - b z_l/n_l - g)."""
    return -logsigmoid(_simpo_margin(pairs, p) - p.gamma)


def _cpo_log_incentives(pairs: PairLogps, p: Cpo) -> tuple[Tensor, Tensor]:
    log_d_l = math.log(p.beta) + logsigmoid(-p.beta * pairs.m)
    return torch.log(log_d_l.exp() + p.lam) if p.lam else log_d_l, log_d_l


@register(Cpo, log_incentives=_cpo_log_incentives)
def cpo(pairs: PairLogps, p: Cpo) -> Tensor:
    """-log s(b m) - lam z_w."""
    return -logsigmoid(p.beta * pairs.m) - p.lam * pairs.z_w


@register(Rrhf)
def rrhf(pairs: PairLogps, p: Rrhf) -> Tensor:
    """max(0, -m) - lam z_w."""
    return relu(-pairs.m) - p.lam * pairs.z_w


@register(SlicHf)
def slic_hf(pairs: PairLogps, p: SlicHf) -> Tensor:
    """max(0, g - m) - lam z_w."""
    return relu(p.gamma - pairs.m) - p.lam * pairs.z_w


def _bpo_log_ratio(pairs: PairLogps, p: Bpo) -> Tensor:
    return -p.beta * pairs.mt


def _bpo_guarded(pairs: PairLogps, p: Bpo) -> Tensor:
    u = _bpo_log_ratio(pairs, p)
    return (u < math.log(p.min_ratio)) | (u > math.log(p.max_ratio))


@register(Bpo, guarded=_bpo_guarded)
def bpo(pairs: PairLogps, p: Bpo) -> Tensor:
    """L(R), R = exp(-b m~) kept at or above min_ratio; past max_ratio L goes on along its tangent in log R."""
    log_max = math.log(p.max_ratio)
    u = _bpo_log_ratio(pairs, p).clamp(min=math.log(p.min_ratio))
    bounded = u.clamp(max=log_max)
    edge = torch.full_like(u, log_max).requires_grad_()
    with torch.enable_grad():
        (slope,) = torch.autograd.grad(_bregman(edge, p).sum(), edge)
    return _bregman(bounded, p) + slope * relu(u - log_max)


def _bregman(u: Tensor, p: Bpo) -> Tensor:
    """The Bregman losses as functions of u = log R."""
    match p.kind:
        case "lr":  # log(1 + R)
            return -logsigmoid(-u)
        case "kliep":  # R + log R
            return u.exp() + u
        case "lsif":  # R^2 - 2/R
            return (2 * u).exp() - 2 * (-u).exp()
        case "ba":  # R^(lam+1) - ((lam+1)/lam) R^-lam
            return ((p.lam + 1) * u).exp() - (p.lam + 1) / p.lam * (-p.lam * u).exp()
        case "sba" if p.lam == 0:  # (R + log R) / s
            return (u.exp() + u) / p.scale
        case "sba":  # R^(lam+1)/(s (lam+1)) - R^-lam/(s lam)
            return ((p.lam + 1) * u).exp() / (p.scale * (p.lam + 1)) - (-p.lam * u).exp() / (p.scale * p.lam)
