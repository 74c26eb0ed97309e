"""Which attention reads packed rows: SDPA under a mask, FlexAttention under a block mask, and a model with a window."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers.integrations import flex_attention, sdpa_attention

from rcray.data.batch import collate
from rcray.data.encoded import EncodedPair
from rcray.data.layout import packed, two_rows
from rcray.errors import ConfigError
from rcray.faults import classify
from rcray.models import attention, capabilities
from rcray.models.attention import set_flex_attention, use_attention, use_flex_attention, why_no_flex
from rcray.models.blocks import blocks_of
from rcray.models.capabilities import capabilities_of, use_precision
from rcray.models.forward import FLEX, answer_logps, attention_of, body_of, heads_of, unfolding
from rcray.models.precision import Precision
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
        set_flex_attention(model)
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

    with pytest.raises(
        ConfigError, match=r"execution\.attention: 'flex' does not fit Own: no packed_flex_attention here"
    ):
        use_flex_attention(Own(), torch.device("cuda"))


CARD = torch.device("cuda", 0)
SDPA = "sdpa"
SHAPE = (4, 2, 16)


@pytest.mark.parametrize("architecture", ["tiny-neox", "tiny-mistral"])
@pytest.mark.parametrize("precision", [Precision(torch.float32), Precision(torch.bfloat16, autocast=True)])
def test_the_trial_holds_flex_attention_to_masked_sdpa(quick_cache, monkeypatch, architecture, precision):
    """Forward and backward: a stand-in that reads what it must not is found out, and so is a wrong gradient."""
    model = build(quick_cache, "full", architecture)
    by_mask, blocks = sdpa_attention.sdpa_attention_forward, []

    def in_its_place(allowed, scale=1.0):
        def forward(module, query, key, value, mask, **options):
            blocks.append(mask)
            output, _ = by_mask(module, query, key, value, allowed(mask), **options)
            return output.detach() + scale * (output - output.detach()), None

        monkeypatch.setattr(flex_attention, "flex_attention_forward", forward)
        return why_no_flex(heads_of(model), precision, CPU)

    def dense(mask):
        rows, _, width, _ = mask.shape
        row, place = torch.arange(rows)[:, None, None], torch.arange(width)
        return mask.mask_mod(row, torch.tensor(0), place[:, None], place[None])[:, None]

    assert in_its_place(dense) is None
    assert blocks[0].sparsity() > 20, "blocks that are skipped are among those of the trial"
    assert in_its_place(lambda mask: torch.ones_like(dense(mask)).tril()) == DISAGREES
    assert in_its_place(dense, scale=1.5) == DISAGREES
    assert {mask.shape[-1] % 128 == 0 for mask in blocks} == {True, False}, "rows that end within a block, too"
    assert in_its_place(lambda mask: dense(mask) if torch.is_grad_enabled() else dense(mask) & False) == DISAGREES


def test_a_gpu_that_failed_in_the_trial_is_not_gone_on_with(monkeypatch):
    """Nothing works any more in such a process: it ends, and says what to set if that happens again."""

    def broken(*args, **options):
        raise RuntimeError(said)

    monkeypatch.setattr(attention, "attend", broken)
    said = "CUDA error: an illegal memory access was encountered"
    with pytest.raises(ConfigError, match=r"execution\.attention: the GPU failed .* illegal memory") as caught:
        why_no_flex(SHAPE, Precision(torch.float32), CPU)
    assert caught.value.fix == "set execution.attention: sdpa" and classify(caught.value) == "device"
    said = "CUDA out of memory"
    assert why_no_flex(SHAPE, Precision(torch.float32), CPU) == "RuntimeError: CUDA out of memory"


@pytest.mark.parametrize(
    "said", ["CUDA out of memory. Tried to allocate 2 GiB", "CUDA error: unspecified launch failure"]
)
def test_a_full_or_failed_gpu_says_nothing_of_packed_rows(quick_cache, monkeypatch, said):
    def broken(*args, **options):
        raise torch.OutOfMemoryError(said) if "memory" in said else RuntimeError(said)

    model = build(quick_cache, "full", "tiny-mistral")
    monkeypatch.setattr(capabilities, "answer_logps", broken)
    with pytest.raises(RuntimeError, match=said[:20]):
        assert capabilities_of(model).packs_rows


DISAGREES = "its output or gradient is not that of SDPA under a mask"


def test_without_a_gpu_the_trial_says_that_there_is_no_backward():
    """Torch's own words, of the real thing."""
    assert "NotImplementedError" in str(why_no_flex(SHAPE, Precision(torch.float32), CPU))


@pytest.mark.parametrize(
    ("asked", "packs", "device", "problem", "taken"),
    [
        ("auto", True, CARD, None, FLEX),
        ("auto", True, CARD, "no Triton", SDPA),
        ("auto", False, CARD, None, SDPA),
        ("auto", True, CPU, None, SDPA),
        ("sdpa", True, CARD, None, SDPA),
        ("flex", True, CARD, "not asked", FLEX),
    ],
)
def test_which_kernel_is_taken(quick_cache, monkeypatch, caplog, asked, packs, device, problem, taken):
    model = build(quick_cache, "full", "tiny-mistral")
    use_precision(model, Precision(torch.bfloat16, autocast=True))
    tried = []
    monkeypatch.setattr(attention, "why_no_flex", lambda *of: tried.append(of) or problem)
    use_attention(model, device, asked, packs=packs)
    assert attention_of(model) == taken
    is_tried = asked == "auto" and packs and device == CARD
    assert tried == [(heads_of(model), Precision(torch.bfloat16, autocast=True), CARD)] * is_tried
    warnings = [record.message for record in caplog.records if "FlexAttention does not work here" in record.message]
    assert len(warnings) == (problem == "no Triton") and all("no Triton" in warning for warning in warnings)
    assert capabilities_of(model).plain_head


def test_a_process_compiles_flex_attention_for_every_model_it_comes_to(quick_cache, monkeypatch):
    """Torch compiles a function for eight kinds of input and then no more: the second model would go without."""
    monkeypatch.setattr(attention, "why_no_flex", lambda *of: None)
    monkeypatch.setattr(flex_attention, "WrappedFlexAttention", lambda training: lambda: compiled)
    plain = torch.nn.attention.flex_attention
    monkeypatch.setattr(plain, "_warn_once", lambda **what: pytest.fail(f"not compiled: {what}"))
    compiled = torch.compile(plain.flex_attention, backend="eager")
    for heads in (4, 2, 8):
        use_attention(build(quick_cache, "full", "tiny-mistral"), CARD, "auto", packs=True)
        for pairs, tokens in ((1, (20, 30, 40)), (1, (30, 50, 60)), (3, (20, 30, 40)), (2, (9, 9, 9))):
            layout = packed(collate([EncodedPair("a", *((1,) * n for n in tokens))] * pairs, range(pairs)))
            module = SimpleNamespace(training=True, is_causal=True, num_key_value_groups=1)
            part = torch.randn(pairs, heads, layout.ids.shape[1], 8 * heads)
            for gradient in (True, False):
                with torch.set_grad_enabled(gradient):
                    attention.attend(module, part, part, part, layout.block_mask(), scaling=1.0)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_plain_rows_take_sdpa_and_packed_rows_flex_attention(quick_cache, monkeypatch):
    """In the autocast's dtype, whatever the rotary positions made of it; the last block unfolds to plain rows."""
    model, seen = build(quick_cache, "full", "tiny-mistral").float().eval(), []
    set_flex_attention(model)
    for module, name in ((flex_attention, "flex_attention_forward"), (sdpa_attention, "sdpa_attention_forward")):
        real = getattr(module, name)

        def watched(module, query, key, value, mask, real=real, name=name, **options):
            seen.append((name.partition("_")[0], {query.dtype, key.dtype, value.dtype}, mask is None))
            return real(module, query, key, value, mask, **options)

        monkeypatch.setattr(module, name, watched)
    flex, plain = ("flex", {torch.bfloat16}, False), ("sdpa", {torch.bfloat16}, True)
    layers = model.config.num_hidden_layers
    with torch.no_grad(), torch.compiler.set_stance("force_eager"), torch.autocast("cpu", torch.bfloat16):
        answer_logps(model, two_rows(make_batch()))
        assert [kind for kind, *_ in seen] == ["sdpa"] * layers and all(none for *_, none in seen)
        seen.clear()
        with unfolding(model, blocks_of(body_of(model))[-1], packed(make_batch())):
            answer_logps(model, packed(make_batch()))
    assert seen[:-1] == [flex] * (layers - 1)
    assert (seen[-1][0], seen[-1][2]) == (plain[0], plain[2])


@pytest.mark.parametrize(
    ("window", "shares"), [(None, True), (LONGEST_ROW, True), (LONGEST_ROW - 1, False), (7, False)]
)
def test_rows_within_a_models_window_are_packed_and_no_others(quick_cache, monkeypatch, window, shares):
    """A mask of ours would lift the window: a longer pair keeps its two rows, and its gradients."""
    rows, model = {}, build(quick_cache, "lora", "tiny-mistral")
    layouts = []
    monkeypatch.setattr(micro, "packed", lambda batch: layouts.append(packed(batch)) or layouts[-1])
    model.config.sliding_window = window
    assert capabilities_of(model).window == window and capabilities_of(model).packs_rows
    for sharing in ("on", "off"):
        state = state_of(model, "dpo", estimator="adapters", sharing=sharing)
        state.policy.window = capabilities_of(model).window
        optimizer_step(state, [make_batch()], 1)
        rows[sharing] = gradients(model)
        model.zero_grad(set_to_none=True)
    assert len(layouts) == (1 if shares else 0)
    for name, expected in rows["off"].items():
        torch.testing.assert_close(rows["on"][name], expected, rtol=1e-6, atol=1e-9)


def test_a_window_that_is_switched_off_is_none(quick_cache):
    """As in Qwen2.5: a size is written down and not used."""
    model = build(quick_cache, "full", "tiny-qwen2")
    model.config.sliding_window, model.config.use_sliding_window = 4, False
    assert capabilities_of(model).window is None
