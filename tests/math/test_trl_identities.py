"""Objectives that TRL also has, against TRL's own loss code."""

import inspect
import re
from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("trl")
from hypothesis import given, settings
from hypothesis import strategies as st
from trl import DPOTrainer, KTOTrainer
from trl.experimental.cpo import CPOTrainer
from trl.experimental.orpo import ORPOTrainer

from rcray.config import RunConfig
from rcray.config.objectives.names import NAMES, REFUSED, TRL
from rcray.errors import ConfigError
from rcray.objectives import PairLogps, TokenLogps, build_objective, objective

TOKENS = 6
seeds = st.integers(0, 10_000)
FEW = settings(max_examples=12, deadline=None)
#: What TRL's code compares `loss_type` with, in its own order.
LOSS_TYPES = re.findall(r'loss_type == "(\w+)"', inspect.getsource(DPOTrainer._compute_loss))


def random_tokens(seed, pairs):
    g = torch.Generator().manual_seed(seed)
    sides = {}
    for side in ("w", "l"):
        lengths = torch.randint(1, TOKENS + 1, (pairs,), generator=g)
        mask = torch.arange(TOKENS)[None] < lengths[:, None]
        logp, ref = (-3 * torch.rand(pairs, TOKENS, generator=g, dtype=torch.float64) * mask for _ in range(2))
        sides |= {f"logp_{side}": logp.requires_grad_(), f"ref_logp_{side}": ref, f"mask_{side}": mask}
    return TokenLogps(**sides)


def trl_loss(loss_type, b, tokens, *, smoothing=0.0, tau=0.05, divergence="reverse_kl"):
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
        beta=b, loss_types=[loss_type], loss_weights=[1.0], f_divergence_type=divergence, label_smoothing=smoothing,
        args=SimpleNamespace(discopop_tau=tau), ld_alpha=None, use_weighting=False, aux_loss_enabled=False,
        precompute_ref_logps=True,
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
    assert_same(bound, reduction, tokens, trl_loss(theirs, b, tokens))


def assert_same(bound, reduction, tokens, theirs, rel=1e-9, near=1e-13):
    """The value, and the gradient in every token of an answer."""
    ours = bound.loss(bound.statistics(tokens, reduction)).mean()
    assert ours.item() == pytest.approx(theirs.item(), rel=rel, abs=near)
    leaves, masks = [tokens.logp_w, tokens.logp_l], [tokens.mask_w, tokens.mask_l]
    gradients = zip(torch.autograd.grad(ours, leaves), torch.autograd.grad(theirs, leaves), masks, strict=True)
    for mine, other, mask in gradients:
        assert torch.allclose(mine * mask, other * mask, rtol=rel, atol=near)


def as_a_run(name, **parameters):
    """The objective and the likelihood of a run that names TRL's loss; the authors' preset must not reach it."""
    config = RunConfig.model_validate({"fidelity": "official", "objective": {"name": TRL + name, **parameters}})
    return build_objective(config.objective), config.likelihood


def test_every_loss_of_trl_is_named_or_refused():
    """A new `loss_type` in TRL shows up here."""
    assert len(LOSS_TYPES) >= 15
    assert {TRL + loss_type for loss_type in LOSS_TYPES} == {n for n in [*NAMES, *REFUSED] if n.startswith(TRL)}


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
@FEW
@given(seed=seeds, pairs=st.integers(1, 3), b=st.floats(0.05, 2), smoothing=st.floats(0.01, 0.45))
def test_a_name_of_trl_is_trls_loss(loss_type, seed, pairs, b, smoothing):
    name = TRL + loss_type
    if name in REFUSED:
        with pytest.raises(ConfigError, match=r"not offered.* nearest is '(cdpo|rpo)'"):
            objective(name)
        return
    tokens = random_tokens(seed, pairs)
    near = 1e-6 if loss_type == "exo_pair" else 1e-13  # TRL has its smoothing in float32, and it is a KL near 0
    first = 1e-3 if loss_type == "exo_pair" else 0.0  # TRL's own default is one that its exo_pair refuses
    assert_same(*as_a_run(loss_type), tokens, trl_loss(loss_type, 0.1, tokens, smoothing=first), near=near)
    words = NAMES[name].words
    given = {"beta": b} | ({"label_smoothing": smoothing} if "label_smoothing" in words else {})
    given |= {"discopop_tau": 0.2} if "discopop_tau" in words else {}
    theirs = trl_loss(loss_type, b, tokens, smoothing=smoothing, tau=given.get("discopop_tau", 0.05))
    assert_same(*as_a_run(loss_type, **given), tokens, theirs, near=near)


@pytest.mark.parametrize("divergence", ["reverse_kl", "forward_kl", "js_divergence"])
@FEW
@given(seed=seeds, b=st.floats(0.05, 2))
def test_a_divergence_of_trl_is_f_dpo(divergence, seed, b):
    tokens = random_tokens(seed, 2)
    bound, reduction = as_a_run("sigmoid", beta=b, f_divergence_type=divergence)
    bound = build_objective(bound.params.model_copy(update={"max_slope": 1e30}))  # TRL has no tangent
    assert_same(bound, reduction, tokens, trl_loss("sigmoid", b, tokens, divergence=divergence))


@pytest.mark.parametrize("loss_type", ["aot", "aot_unpaired"])
@FEW
@given(seed=seeds, b=st.floats(0.05, 2), smoothing=st.floats(0, 0.45))
def test_what_is_refused_is_its_nearest_on_one_pair(loss_type, seed, b, smoothing):
    tokens = random_tokens(seed, 1)
    bound = objective("cdpo", beta=b, label_smoothing=smoothing)
    assert_same(bound, "sum", tokens, trl_loss(loss_type, b, tokens, smoothing=smoothing))


@FEW
@given(seed=seeds, b=st.floats(0.05, 2), weight=st.floats(0.1, 2))
def test_rpo_is_trls_sigmoid_and_sft_on_one_pair(seed, b, weight):
    tokens = random_tokens(seed, 1)  # TRL's sft is a mean over the batch's tokens
    theirs = trl_loss("sigmoid", b, tokens) + weight * trl_loss("sft", b, tokens)
    assert_same(objective("rpo", beta=b, alpha=weight), "sum", tokens, theirs)


@FEW
@given(seed=seeds, b=st.floats(0.05, 2), alpha=st.floats(0.05, 0.5), gamma=st.floats(0, 2))
def test_alphapo_is_that_of_trls_cpo(seed, b, alpha, gamma):
    tokens = random_tokens(seed, 2)
    means = objective("dpo").statistics(tokens, "mean")
    cpo = SimpleNamespace(
        alpha=alpha, beta=b, simpo_gamma=gamma, loss_type="simpo", label_smoothing=0.0,
        accelerator=SimpleNamespace(device="cpu"),
    )  # fmt: skip
    theirs = CPOTrainer.cpo_loss(cpo, means.z_w, means.z_l)[0].mean()
    assert_same(objective("alphapo", beta=b, alpha=alpha, gamma=gamma), "sum", tokens, theirs)


@FEW
@given(seed=seeds, lam=st.floats(0.05, 2))
def test_orpo_is_trls_odds_ratio_and_likelihood(seed, lam):
    tokens = random_tokens(seed, 2)
    means: PairLogps = objective("dpo").statistics(tokens, "mean")
    trainer = SimpleNamespace(beta=lam, accelerator=SimpleNamespace(device="cpu"))
    theirs = -ORPOTrainer.odds_ratio_loss(trainer, means.z_w, means.z_l)[0].mean() - means.z_w.mean()
    assert_same(objective("orpo", lam=lam), "sum", tokens, theirs, rel=2e-5, near=1e-6)  # TRL goes to float32 there


@FEW
@given(seed=seeds, b=st.floats(0.05, 2), lam_w=st.floats(0.5, 2), lam_l=st.floats(0.5, 2), shift=st.floats(-3, 3))
def test_kto_with_its_baseline_is_trls_kto_on_the_same_rows(seed, b, lam_w, lam_l, shift):
    """TRL's rows have no partner: chosen and rejected ones stand in one batch, and the loss is a mean over rows."""
    tokens = random_tokens(seed, 2)
    logp = torch.cat([tokens.logp_w, tokens.logp_l])
    blank = torch.zeros_like(logp)
    outputs = SimpleNamespace(log_probs=logp, entropy=blank, mean_logits=blank)
    mask = torch.cat([tokens.mask_w, tokens.mask_l]).long()
    mask = torch.cat([torch.zeros(len(mask), 1, dtype=torch.long), mask], 1)  # one prompt token
    mismatched = logp.sum(-1).detach() + shift
    inputs = {
        "input_ids": torch.zeros_like(mask), "attention_mask": torch.ones_like(mask), "completion_mask": mask,
        "label": torch.tensor([True, True, False, False]),
        "ref_logps": torch.cat([tokens.ref_logp_w, tokens.ref_logp_l]).sum(-1), "ref_KL_logps": logp.sum(-1).detach(),
    }  # fmt: skip
    trainer = SimpleNamespace(
        model=SimpleNamespace(training=True), loss_type="kto", beta=b, desirable_weight=lam_w, undesirable_weight=lam_l,
        accelerator=SimpleNamespace(device="cpu", gather=lambda x: x, gather_for_metrics=lambda x: x),
        aux_loss_enabled=False, precompute_ref_logps=True, calculate_KL=True,
        _compute_kl_logps=lambda model, batch: mismatched,
        _metrics={"train": defaultdict(list)}, _total_train_tokens=0, _tp_size=1,
    )  # fmt: skip
    theirs = KTOTrainer._compute_loss(trainer, lambda **_: outputs, inputs, False)
    bound = objective("kto", beta=b, lam_w=lam_w, lam_l=lam_l, baseline="kl")
    pairs = bound.statistics(tokens, "sum")
    baseline = torch.tensor(max(0.0, shift), dtype=torch.float64)  # K: the mean log-ratio of mismatched rows, from 0 on
    ours = bound.loss(replace(pairs, constants={"kl_baseline": baseline})).mean() / 2
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-9)
