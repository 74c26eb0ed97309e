"""Objectives that TRL also has, against TRL's own loss code."""

from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("trl")
from hypothesis import given, settings
from hypothesis import strategies as st
from trl import DPOTrainer

from rcray.objectives import TokenLogps, objective

TOKENS = 6
seeds = st.integers(0, 10_000)
FEW = settings(max_examples=25, deadline=None)


def random_tokens(seed, pairs):
    g = torch.Generator().manual_seed(seed)
    sides = {}
    for side in ("w", "l"):
        lengths = torch.randint(1, TOKENS + 1, (pairs,), generator=g)
        mask = torch.arange(TOKENS)[None] < lengths[:, None]
        logp, ref = (-3 * torch.rand(pairs, TOKENS, generator=g, dtype=torch.float64) * mask for _ in range(2))
        sides |= {f"logp_{side}": logp.requires_grad_(), f"ref_logp_{side}": ref, f"mask_{side}": mask}
    return TokenLogps(**sides)


def trl_loss(loss_type, b, tokens):
    """`DPOTrainer._compute_loss` on a model that answers with these log-probabilities; nothing of it is rewritten."""
    logp = torch.cat([tokens.logp_w, tokens.logp_l])
    blank = torch.zeros_like(logp)
    outputs = SimpleNamespace(log_probs=logp, entropy=blank, mean_logits=blank, is_top1=blank.bool())
    mask = torch.cat([tokens.mask_w, tokens.mask_l]).long()
    mask = torch.cat([torch.zeros(len(mask), 1, dtype=torch.long), mask], 1)  # one prompt token
    inputs = {
        "input_ids": torch.zeros_like(mask),
        "attention_mask": torch.ones_like(mask),
        "completion_mask": mask,
        "ref_chosen_logps": tokens.ref_logp_w.sum(-1),
        "ref_rejected_logps": tokens.ref_logp_l.sum(-1),
    }
    trainer = SimpleNamespace(
        model=SimpleNamespace(training=True),
        accelerator=SimpleNamespace(device="cpu", gather=lambda x: x, gather_for_metrics=lambda x: x),
        beta=b, loss_types=[loss_type], loss_weights=[1.0], f_divergence_type="reverse_kl", label_smoothing=0.0,
        ld_alpha=None, use_weighting=False, aux_loss_enabled=False, precompute_ref_logps=True,
        _metrics={"train": defaultdict(list)}, _total_train_tokens=0, _tp_size=1,
    )  # fmt: skip
    return DPOTrainer._compute_loss(trainer, lambda **_: outputs, inputs, False)


# (our objective, its hyperparameters without beta, whether it takes beta, likelihood, TRL's name)
SAME = {
    "dpo": ("dpo", {}, True, "sum", "sigmoid"),
    "dpo-mean": ("dpo", {}, True, "mean", "sigmoid_norm"),
    "r-dpo-0": ("r-dpo", {"alpha": 0.0}, True, "sum", "sigmoid"),
    "bpo-lr": ("bpo", {"kind": "lr", "min_ratio": 1e-300, "max_ratio": 1e300}, True, "sum", "sigmoid"),
    "kto": ("kto", {}, True, "sum", "apo_zero"),
    "dil-bce": ("dil-bce", {}, False, "sum", "bco_pair"),
}


@pytest.mark.parametrize("case", SAME)
@FEW
@given(seed=seeds, pairs=st.integers(1, 3), b=st.floats(0.05, 2))
def test_the_same_loss_and_the_same_gradient_as_trl(case, seed, pairs, b):
    name, hyperparameters, takes_beta, reduction, theirs = SAME[case]
    b = b if takes_beta else 1.0
    bound = objective(name, **hyperparameters, **({"beta": b} if takes_beta else {}))
    tokens = random_tokens(seed, pairs)
    ours = bound.loss(bound.statistics(tokens, reduction)).mean()
    trl = trl_loss(theirs, b, tokens)
    assert ours.item() == pytest.approx(trl.item(), rel=1e-10)
    leaves = [tokens.logp_w, tokens.logp_l]
    for mine, other in zip(torch.autograd.grad(ours, leaves), torch.autograd.grad(trl, leaves), strict=True):
        assert torch.allclose(mine, other, rtol=1e-9, atol=1e-14)


@FEW
@given(seed=seeds, tau=st.floats(0.1, 2))
def test_ipo_on_means_is_trls_ipo(seed, tau):
    tokens = random_tokens(seed, 2)
    bound = objective("ipo", tau=tau)
    ours = bound.loss(bound.statistics(tokens, "mean")).mean()
    assert ours.item() == pytest.approx(trl_loss("ipo", tau, tokens).item(), rel=1e-9)
