"""TDPO and TI-DPO on a tiny softmax: their branch statistics against formulas written out by hand, and autograd."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rcray.calibration import incentives
from rcray.errors import ConfigError
from rcray.objectives import TokenLogps, objective
from rcray.objectives.base import reduce_tokens

FEW = settings(max_examples=25, deadline=None)
PAIRS, TOKENS, VOCABULARY = 2, 5, 7
seeds = st.integers(0, 10_000)
betas = st.floats(0.05, 2)


class Softmax:
    """A policy that is nothing but logits, a reference that is other logits, and responses of unequal length."""

    def __init__(self, seed):
        g = torch.Generator().manual_seed(seed)

        def draw():
            return torch.randn(PAIRS, TOKENS, VOCABULARY, generator=g, dtype=torch.float64)

        self.logits = {side: draw().requires_grad_() for side in "wl"}
        self.ref = {side: draw().log_softmax(-1) for side in "wl"}
        self.ids = {side: torch.randint(0, VOCABULARY, (PAIRS, TOKENS), generator=g) for side in "wl"}
        lengths = {side: torch.randint(1, TOKENS + 1, (PAIRS,), generator=g) for side in "wl"}
        self.mask = {side: torch.arange(TOKENS)[None] < lengths[side][:, None] for side in "wl"}

    def logp(self, side):
        """Per-token log-probabilities, zero outside the mask."""
        log_probs = self.logits[side].log_softmax(-1)
        return log_probs.gather(-1, self.ids[side][..., None])[..., 0] * self.mask[side]

    def ref_logp(self, side):
        return self.ref[side].gather(-1, self.ids[side][..., None])[..., 0] * self.mask[side]

    def kl(self, side):
        """KL(reference || policy) at each response position."""
        ref, policy = self.ref[side], self.logits[side].log_softmax(-1)
        return (ref.exp() * (ref - policy)).sum(-1) * self.mask[side]

    def tokens(self, **more):
        return TokenLogps(
            self.logp("w"), self.logp("l"), self.mask["w"], self.mask["l"],
            self.ref_logp("w"), self.ref_logp("l"), self.kl("w"), self.kl("l"), **more,
        )  # fmt: skip

    def gradients(self, loss):
        return torch.autograd.grad(loss.sum(), [self.logits["w"], self.logits["l"]])


def close(ours, expected):
    return all(torch.allclose(f, e, rtol=1e-9, atol=1e-12) for f, e in zip(ours, expected, strict=True))


@FEW
@given(seed=seeds, b=betas, a=st.floats(0.1, 2), variant=st.sampled_from([1, 2]), mean=st.booleans())
def test_tdpo_equals_its_formula_in_value_and_in_gradient(seed, b, a, variant, mean):
    policy = Softmax(seed)
    tdpo = objective("tdpo", variant=variant, beta=b, alpha=a)
    loss = tdpo.loss(tdpo.statistics(policy.tokens(), "mean" if mean else "sum"))

    n = {side: policy.mask[side].sum(-1) if mean else torch.ones(PAIRS) for side in "wl"}
    zt = {side: (policy.logp(side) - policy.ref_logp(side)).sum(-1) / n[side] for side in "wl"}
    d_w, d_l = (policy.kl(side).sum(-1) / n[side] for side in "wl")
    correction = d_l - d_w if variant == 1 else a * (d_l - d_w.detach())
    expected = torch.log1p(torch.exp(-b * (zt["w"] - zt["l"] - correction)))

    assert torch.allclose(loss, expected, rtol=1e-10)
    assert close(policy.gradients(loss), policy.gradients(expected))


@FEW
@given(seed=seeds, b=betas, a=st.floats(0.1, 2))
def test_tdpo2_scores_hold_the_losers_kl_and_not_the_winners(seed, b, a):
    """s_w = grad log pi(y_w); s_l = grad log pi(y_l) + a grad D_l; the update is d_w s_w - d_l s_l (paper, A.3.1)."""
    policy = Softmax(seed)
    tdpo = objective("tdpo", variant=2, beta=b, alpha=a)
    pairs = tdpo.statistics(policy.tokens(), "sum")
    (s_w,) = torch.autograd.grad(pairs.z_w.sum(), policy.logits["w"], retain_graph=True)
    (s_l,) = torch.autograd.grad(pairs.z_l.sum(), policy.logits["l"], retain_graph=True)
    (plain_w,) = torch.autograd.grad(policy.logp("w").sum(), policy.logits["w"])
    (plain_l,) = torch.autograd.grad(policy.logp("l").sum(), policy.logits["l"])
    # the gradient of KL(ref || softmax) in the logits is softmax - ref
    kl_slope = (policy.logits["l"].softmax(-1) - policy.ref["l"].exp()) * policy.mask["l"][..., None]
    assert torch.allclose(s_w, plain_w, rtol=1e-10, atol=1e-12)
    assert torch.allclose(s_l, plain_l + a * kl_slope, rtol=1e-10, atol=1e-12)

    d = incentives(tdpo, pairs)
    update_w, update_l = policy.gradients(tdpo.loss(pairs))
    assert torch.allclose(-update_w, d.d_w[:, None, None] * s_w, rtol=1e-9, atol=1e-12)
    assert torch.allclose(-update_l, -d.d_l[:, None, None] * s_l, rtol=1e-9, atol=1e-12)


def test_tdpo_without_a_kl_is_refused():
    policy = Softmax(0)
    bare = TokenLogps(policy.logp("w"), policy.logp("l"), policy.mask["w"], policy.mask["l"])
    with pytest.raises(ConfigError, match="kl_w"):
        objective("tdpo").statistics(bare, "sum")


@FEW
@given(seed=seeds, b=betas, mean=st.booleans())
def test_tidpo_by_probability_equals_its_formula(seed, b, mean):
    """w_t = 1 - p(y_t), detached, the same weights for the reference; under `mean` divided by their sum."""
    policy = Softmax(seed)
    tidpo = objective("ti-dpo", beta=b)
    loss = tidpo.loss(tidpo.statistics(policy.tokens(), "mean" if mean else "sum"))

    zt = {}
    for side in "wl":
        rows = []
        for i in range(PAIRS):
            length = int(policy.mask[side][i].sum())
            logp, ref = policy.logp(side)[i, :length], policy.ref_logp(side)[i, :length]
            w = [1 - math.exp(value) for value in logp.tolist()]
            total = sum(w) if mean else 1.0
            rows.append(sum(w[t] * (logp[t] - ref[t]) for t in range(length)) / total)
        zt[side] = torch.stack(rows)
    expected = torch.log1p(torch.exp(-b * (zt["w"] - zt["l"])))

    assert torch.allclose(loss, expected, rtol=1e-10)
    assert close(policy.gradients(loss), policy.gradients(expected))


@FEW
@given(seed=seeds, lam=st.floats(0, 1))
def test_tidpo_by_gradient_mixes_importance_with_a_gaussian_prior(seed, lam):
    policy = Softmax(seed)
    importance = {side: policy.logits[side].detach().abs().sum(-1).softmax(-1) for side in "wl"}
    tidpo = objective("ti-dpo", importance="gradient", lam=lam)
    tokens = policy.tokens(importance_w=importance["w"], importance_l=importance["l"])
    pairs = tidpo.statistics(tokens, "sum")
    for side, z, ref in (("w", pairs.z_w, pairs.ref_w), ("l", pairs.z_l, pairs.ref_l)):
        for i in range(PAIRS):
            length = int(policy.mask[side][i].sum())
            prior = [math.exp(-0.5 * ((t - (length - 1) / 2) / (length / 4)) ** 2) for t in range(length)]
            w = [lam * importance[side][i, t].item() + (1 - lam) * prior[t] for t in range(length)]
            assert z[i].item() == pytest.approx(sum(w[t] * policy.logp(side)[i, t].item() for t in range(length)))
            assert ref[i].item() == pytest.approx(sum(w[t] * policy.ref_logp(side)[i, t].item() for t in range(length)))


def test_tidpo_of_a_certain_response_is_zero_and_not_a_nan():
    certain = torch.zeros(1, 3)
    tokens = TokenLogps(certain, certain - 1, torch.ones(1, 3), torch.ones(1, 3), certain - 2, certain - 2)
    pairs = objective("ti-dpo").statistics(tokens, "mean")
    assert pairs.z_w.item() == 0.0 and pairs.ref_w.item() == 0.0
    assert pairs.z_l.item() == pytest.approx(-1.0)


@FEW
@given(seed=seeds, margin=st.floats(0, 3), g=st.floats(0.01, 1))
def test_the_triplet_term_equals_its_formula(seed, margin, g):
    policy = Softmax(seed)
    anchor = torch.randn(PAIRS, TOKENS + 2, generator=torch.Generator().manual_seed(seed + 1), dtype=torch.float64)
    tidpo = objective("ti-dpo", triplet=True, margin=margin, gamma=g)
    auxiliary = tidpo.formula.auxiliary(policy.tokens(anchor_ratio=anchor), tidpo.params)
    for i in range(PAIRS):
        b, c = ([*(policy.logp(side) - policy.ref_logp(side))[i].tolist(), 0.0, 0.0] for side in "wl")
        d = anchor[i].tolist()
        near = sum((d[t] - b[t]) ** 2 for t in range(TOKENS + 2))
        far = sum((c[t] - d[t]) ** 2 for t in range(TOKENS + 2))
        assert auxiliary[i].item() == pytest.approx(g * max(0.0, near - far + margin), abs=1e-12)


def test_the_triplet_term_is_zero_where_it_is_off():
    tidpo = objective("ti-dpo")
    assert tidpo.formula.auxiliary(Softmax(3).tokens(), tidpo.params).tolist() == [0.0, 0.0]


@FEW
@given(seed=seeds)
def test_plain_reductions(seed):
    policy = Softmax(seed)
    sums, means = reduce_tokens(policy.tokens(), "sum"), reduce_tokens(policy.tokens(), "mean")
    for i in range(PAIRS):
        length = int(policy.mask["w"][i].sum())
        assert sums.z_w[i].item() == pytest.approx(sum(policy.logp("w")[i, :length].tolist()))
        assert means.z_w[i].item() == pytest.approx(sums.z_w[i].item() / length)
        assert means.ref_w[i].item() == pytest.approx(sums.ref_w[i].item() / length)
        assert sums.n_w[i].item() == length
    assert means.reduction == "mean" and sums.reduction == "sum"
