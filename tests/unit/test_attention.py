"""Which attention reads packed rows: SDPA under a mask, FlexAttention under a block mask, and a model with a window."""

import pytest
import torch
from torch import nn

from rcray.data.layout import packed, two_rows
from rcray.errors import ConfigError
from rcray.models.blocks import blocks_of
from rcray.models.capabilities import capabilities_of, use_flex_attention
from rcray.models.forward import answer_logps, body_of, unfolding
from rcray.train import micro
from rcray.train.step import optimizer_step
from tests.math.test_one_backward import SIZES, build, gradients, make_batch, state_of

CPU = torch.device("cpu")
LONGEST_ROW = max(prompt + max(chosen, rejected) for prompt, chosen, rejected in SIZES)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("architecture", ["tiny-neox", "tiny-mistral", "tiny-qwen2"])
def test_flex_attention_gives_the_same_likelihoods(quick_cache, architecture):
    """Forwards only, and not compiled: torch has the backward, and kernels that take such a mask, on GPUs."""
    model = build(quick_cache, "full", architecture).float().eval()
    batch = make_batch()
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        expected, _ = answer_logps(model, two_rows(batch))
        model.set_attn_implementation("flex_attention")
        whole, _ = answer_logps(model, packed(batch))
        with unfolding(model, blocks_of(body_of(model))[-1], packed(batch)):
            unfolded, _ = answer_logps(model, packed(batch))
    torch.testing.assert_close(whole, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(unfolded, expected, rtol=1e-4, atol=1e-4)


def test_flex_attention_cannot_be_trained_without_a_gpu(quick_cache):
    with pytest.raises(ConfigError, match=r"execution\.attention: 'flex' cannot be trained on cpu"):
        use_flex_attention(build(quick_cache, "full", "tiny-neox"), CPU)


def test_a_model_without_flex_attention_is_named():
    class Own(nn.Module):
        def set_attn_implementation(self, name):
            raise ValueError(f"no {name} here")

    with pytest.raises(ConfigError, match=r"execution\.attention: 'flex' does not fit Own: no flex_attention here"):
        use_flex_attention(Own(), torch.device("cuda"))


@pytest.mark.parametrize(
    ("window", "shares"), [(None, True), (LONGEST_ROW, True), (LONGEST_ROW - 1, False), (7, False)]
)
def test_rows_within_a_models_window_are_packed_and_no_others(quick_cache, monkeypatch, window, shares):
    """A mask of ours would lift the window: a longer pair keeps its two rows, and its gradients."""
    found, model = {}, build(quick_cache, "lora", "tiny-mistral")
    layouts = []
    monkeypatch.setattr(micro, "packed", lambda batch: layouts.append(packed(batch)) or layouts[-1])
    model.config.sliding_window = window
    assert capabilities_of(model).window == window and capabilities_of(model).packs_rows
    for sharing in ("on", "off"):
        state = state_of(model, "dpo", estimator="adapters", sharing=sharing)
        state.policy.window = capabilities_of(model).window
        optimizer_step(state, [make_batch()], 1)
        found[sharing] = gradients(model)
        model.zero_grad(set_to_none=True)
    assert len(layouts) == (1 if shares else 0)
    for name, expected in found["off"].items():
        torch.testing.assert_close(found["on"][name], expected, rtol=1e-6, atol=1e-9)


def test_a_window_that_is_switched_off_is_none(quick_cache):
    """As in Qwen2.5: a size is written down and not used."""
    model = build(quick_cache, "full", "tiny-qwen2")
    model.config.sliding_window, model.config.use_sliding_window = 4, False
    assert capabilities_of(model).window is None
