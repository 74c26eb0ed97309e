"""Token-level objectives: their branch statistics need more than sums of log-probabilities (paper, A.3.1).

Legend: D_w, D_l = sum over response tokens of KL(reference || policy); w_t = token importance; sg = stop-gradient.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, relu

from rcray.config.objectives import TDpo, TiDpo
from rcray.errors import ConfigError
from rcray.objectives.base import PairLogps, Reduction, TokenLogps, reduce_tokens, register


def _needed(tensor: Tensor | None, what: str, objective: str) -> Tensor:
    if tensor is None:
        raise ConfigError(f"objective {objective!r} needs {what} in TokenLogps, and none were given")
    return tensor


def _tdpo_statistics(tokens: TokenLogps, p: TDpo, reduction: Reduction) -> PairLogps:
    """z_w (+ D_w in variant 1) and z_l + a D_l, so that s_l carries the gradient of D_l (a = 1 in variant 1)."""
    pairs = reduce_tokens(tokens, reduction)
    kl_w = _needed(tokens.kl_w, "kl_w and kl_l", "tdpo").sum(-1)
    kl_l = _needed(tokens.kl_l, "kl_w and kl_l", "tdpo").sum(-1)
    if reduction == "mean":
        kl_w, kl_l = kl_w / pairs.n_w, kl_l / pairs.n_l
    if p.variant == 1:
        return pairs.with_z(pairs.z_w + kl_w, pairs.z_l + kl_l)
    return replace(pairs, z_l=pairs.z_l + p.alpha * kl_l, constants={"kl_w": kl_w.detach()})


def _tdpo_argument(pairs: PairLogps, p: TDpo) -> Tensor:
    if p.variant == 1:
        return p.beta * pairs.mt
    return p.beta * (pairs.mt + p.alpha * _needed(pairs.constants.get("kl_w"), "the constant kl_w", "tdpo"))


def _tdpo_log_incentives(pairs: PairLogps, p: TDpo) -> tuple[Tensor, Tensor]:
    log_d = math.log(p.beta) + logsigmoid(-_tdpo_argument(pairs, p))
    return log_d, log_d


@register(TDpo, statistics=_tdpo_statistics, log_incentives=_tdpo_log_incentives)
def tdpo(pairs: PairLogps, p: TDpo) -> Tensor:
    """Variant 1: -log s(b [m~ - (D_l - D_w)]); variant 2: -log s(b [m~ - a (D_l - sg D_w)])."""
    return -logsigmoid(_tdpo_argument(pairs, p))


def _gaussian_prior(mask: Tensor) -> Tensor:
    """exp(-((t - mu)/sigma)^2 / 2) over the response, mu = (T - 1)/2, sigma = T/4."""
    length = mask.sum(-1, keepdim=True)
    position = mask.cumsum(-1) - 1
    return torch.exp(-0.5 * ((position - (length - 1) / 2) / (length / 4)).square()) * mask


def token_importance(logp: Tensor, mask: Tensor, gradient: Tensor | None, p: TiDpo) -> Tensor:
    """Detached weights of the response tokens, [pairs, tokens], the same for policy and reference."""
    mask = mask.to(logp.dtype)
    if p.importance == "probability":  # the authors' proxy: surprising tokens weigh more
        return (1 - logp.detach().exp()) * mask
    gradient = _needed(gradient, "importance_w and importance_l", "ti-dpo").detach()
    return (p.lam * gradient + (1 - p.lam) * _gaussian_prior(mask)) * mask


def _tidpo_statistics(tokens: TokenLogps, p: TiDpo, reduction: Reduction) -> PairLogps:
    """z = sum_t w_t log p_t, divided by sum_t w_t under `mean`; the reference with the same weights."""
    sides = []
    for logp, ref, mask, gradient in (
        (tokens.logp_w, tokens.ref_logp_w, tokens.mask_w, tokens.importance_w),
        (tokens.logp_l, tokens.ref_logp_l, tokens.mask_l, tokens.importance_l),
    ):
        weight = token_importance(logp, mask, gradient, p)
        # A response of certain tokens has no weight at all; then its z is 0, not 0/0.
        total = weight.sum(-1).clamp_min(torch.finfo(weight.dtype).tiny) if reduction == "mean" else 1.0
        ref = _needed(ref, "ref_logp_w and ref_logp_l", "ti-dpo")
        sides.append(((weight * logp).sum(-1) / total, (weight * ref).sum(-1) / total, mask.sum(-1)))
    (z_w, ref_w, n_w), (z_l, ref_l, n_l) = sides
    return PairLogps(z_w, z_l, n_w, n_l, ref_w, ref_l, reduction)


def _tidpo_triplet(tokens: TokenLogps, p: TiDpo) -> Tensor:
    """max(0, sum_t (d_t - b_t)^2 - sum_t (c_t - d_t)^2 + margin), weighted by g; 0 where switched off.

    b, c, d: per-token log-ratios of chosen, rejected and a sampled anchor. Responses are aligned from their first
    token; a missing token counts as log-ratio 0.
    """
    if not p.triplet:
        return tokens.logp_w.new_zeros(tokens.logp_w.shape[0])
    ratio_w = tokens.logp_w - _needed(tokens.ref_logp_w, "ref_logp_w", "ti-dpo")
    ratio_l = tokens.logp_l - _needed(tokens.ref_logp_l, "ref_logp_l", "ti-dpo")
    anchor = _needed(tokens.anchor_ratio, "anchor_ratio", "ti-dpo")
    width = max(ratio_w.shape[-1], ratio_l.shape[-1], anchor.shape[-1])
    b, c, d = (torch.nn.functional.pad(r, (0, width - r.shape[-1])) for r in (ratio_w, ratio_l, anchor))
    return p.gamma * relu((d - b).square().sum(-1) - (c - d).square().sum(-1) + p.margin)


def _tidpo_log_incentives(pairs: PairLogps, p: TiDpo) -> tuple[Tensor, Tensor]:
    log_d = math.log(p.beta) + logsigmoid(-p.beta * pairs.mt)
    return log_d, log_d


@register(TiDpo, statistics=_tidpo_statistics, log_incentives=_tidpo_log_incentives, auxiliary=_tidpo_triplet)
def ti_dpo(pairs: PairLogps, p: TiDpo) -> Tensor:
    """-log s(b m~) on importance-weighted statistics."""
    return -logsigmoid(p.beta * pairs.mt)
