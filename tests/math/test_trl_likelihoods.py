"""Packed rows, plain rows and TRL's DPOTrainer: the same likelihoods, and the same gradient of the DPO loss."""

import pytest
import torch

pytest.importorskip("trl")
from benchmarks.trl_side import trl_batch, trl_trainer
from rcray.data.layout import CHOSEN, REJECTED, packed, two_rows
from rcray.models.capabilities import capabilities_of
from rcray.models.forward import answer_logps
from rcray.models.likelihood import side_logps
from rcray.models.reference import ReferenceLogps
from rcray.train.step import optimizer_step
from tests.math.test_one_backward import SIZES, build, gradients, make_batch, make_pairs, state_of

SMALL_RATE = 1e-6


def of_trl(model, pairs, reference):
    """Likelihoods of both sides, and the gradients of TRL's own loss."""
    trainer = trl_trainer(model, model.config.vocab_size, len(pairs), SMALL_RATE)
    causal = model.get_base_model() if hasattr(model, "get_base_model") else model
    seen = []
    handle = causal.register_forward_hook(lambda _model, _args, output: seen.append(output.log_probs.detach()))
    batch = trl_batch(trainer, pairs, reference)
    trainer.model.zero_grad(set_to_none=True)
    trainer.training_step(trainer.model, batch)
    handle.remove()
    (log_probs,) = seen
    return log_probs.sum(1).split(len(pairs)), gradients(model)


def of_layout(model, layout, mlp):
    logp, _ = answer_logps(model, layout, mlp=mlp)
    return [layout.matrix(logp.detach(), side).sum(-1) for side in (CHOSEN, REJECTED)]


@pytest.mark.parametrize("method", ["full", "lora"])
@pytest.mark.parametrize("architecture", ["tiny-neox", "tiny-mistral", "tiny-qwen2"])
def test_likelihoods_and_gradients_are_trls(quick_cache, architecture, method):
    pairs, batch = make_pairs(), make_batch()
    model = build(quick_cache, method, architecture).float()
    drift = torch.linspace(-2, 2, len(pairs), dtype=torch.float64)
    with torch.no_grad():
        plain = [side_logps(model, side).sums for side in (batch.chosen, batch.rejected)]
    lengths = torch.tensor([[w, r] for _, w, r in SIZES], dtype=torch.float64).T
    reference = ReferenceLogps(plain[0].double() - drift, plain[1].double() + drift, *lengths)

    ours = {}
    for sharing in ("on", "off"):
        state = state_of(
            model, "dpo", estimator="head" if method == "full" else "adapters", calibrated=False, sharing=sharing
        )
        state.policy.reference = reference
        for padding in ("left", "right"):
            optimizer_step(state, [make_batch(padding=padding)], 1)
            ours[sharing, padding] = gradients(model)
            model.zero_grad(set_to_none=True)
    mlp = capabilities_of(model).short_mlp
    rows = {
        "packed": of_layout(model, packed(batch), mlp),
        "two rows": of_layout(model, two_rows(batch), mlp),
    }
    theirs, expected = of_trl(model, pairs, reference)

    for found in (plain, *rows.values()):
        for one, other in zip(found, theirs, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-4)
    largest = max(g.abs().max() for g in expected.values())
    for way, got in ours.items():
        assert got.keys() == expected.keys()
        worst = max((got[name] - expected[name]).abs().max() / largest for name in expected)
        assert worst < 1e-5, way
