"""One forward of a layout: hidden states of the answers, and their log-probabilities."""

import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from rcray.data.batch import Batch, Side
from rcray.data.layout import Layout, packed, two_rows
from rcray.errors import ConfigError
from rcray.models.head import HeadPass, OnResiduals, head_pass
from rcray.models.last_mlp import answers_only, last_mlp
from rcray.models.likelihood import body_of, has_plain_head

log = logging.getLogger(__name__)

FLEX = "flex_attention"  # as transformers calls it


def answer_hidden(model: Any, layout: Layout, mlp: nn.Module | None = None) -> Tensor:
    """Hidden states that predict the answer tokens, [answers, hidden], with their graph; `mlp` computes no others."""
    inputs: dict[str, Any] = {"input_ids": layout.ids, "use_cache": False}
    if layout.packed:
        mask = layout.block_mask() if _uses_flex(model) else layout.mask()
        inputs |= {"attention_mask": mask, "position_ids": layout.positions}
    with answers_only(mlp, layout):
        hidden = body_of(model)(**inputs).last_hidden_state
    above = layout.plain_rows if hidden.shape[0] != layout.ids.shape[0] else layout
    return hidden.reshape(-1, hidden.shape[-1]).index_select(0, above.predicts)  # its backward adds, [] would scatter


def answer_logps(
    model: Any,
    layout: Layout,
    *,
    mlp: nn.Module | None = None,
    scores: bool = False,
    on_residuals: OnResiduals | None = None,
) -> tuple[Tensor, HeadPass]:
    """Log-probabilities of the answer tokens, [answers], and the head's pass they came from.

    Args:
        model: a causal language model with a plain head.
        layout: its pairs, as they lie in the forward.
        mlp: the last block's feed-forward layer (`short_mlp`), where it may leave out the prompts.
        scores: whether the pass will be asked for the head's scores.
        on_residuals: called with the head's residuals as they pass.
    """
    hidden = answer_hidden(model, layout, mlp)
    return head_pass(model.get_output_embeddings(), hidden, layout.targets, scores=scores, on_residuals=on_residuals)


@contextmanager
def unfolding(model: Any, block: nn.Module, layout: Layout) -> Iterator[None]:
    """Within it, `block`, the last one, sees the two plain rows of each packed pair: its gradients part by side.

    Everything that lies along the row (positions, rotary angles) is unfolded with the hidden states; plain rows need
    no mask, except for FlexAttention, to which none means that all read all.
    """
    if not layout.packed:
        yield
        return
    assert layout.unpacked is not None
    pairs, width, columns = layout.pairs, layout.ids.shape[1], layout.unpacked
    mask = layout.plain_rows.block_mask() if _uses_flex(model) else None
    row = torch.arange(pairs, device=columns.device).repeat(2)[:, None]
    place = (row * width + columns).flatten()

    def unfold(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(unfold(part) for part in value)
        if not isinstance(value, Tensor) or value.dim() < 2 or value.shape[1] != width:
            return value
        flat = value.expand(pairs, *value.shape[1:]).reshape(pairs * width, *value.shape[2:])
        return flat.index_select(0, place).view(*columns.shape, *value.shape[2:])

    def before(_block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], Any]:
        kwargs = {name: mask if name == "attention_mask" else unfold(value) for name, value in kwargs.items()}
        return tuple(unfold(value) for value in args), kwargs

    handle = block.register_forward_pre_hook(before, with_kwargs=True, prepend=True)
    try:
        yield
    finally:
        handle.remove()


def short_mlp(model: Any) -> nn.Module | None:
    """The last feed-forward layer, where likelihoods stay the same without the prompts' way through it; tried once."""
    if "rcray_short_mlp" not in model.__dict__:
        mlp = last_mlp(model)
        # Held in a tuple: as an attribute of its own it would become a second name of the same parameters.
        model.rcray_short_mlp = (mlp if mlp is not None and _short_equals_whole(model, mlp) else None,)
    (found,) = model.rcray_short_mlp
    return found  # type: ignore[no-any-return]


def can_share_prompts(model: Any) -> bool:
    """Whether packed rows give this model's likelihoods; tried once per model, on a few tokens."""
    known = model.__dict__.get("rcray_shares_prompts")
    if known is None:
        known = _takes_packed_rows(model) and _packed_equals_plain(model)
        model.rcray_shares_prompts = known
        if not known:
            log.info("%s does not take packed rows; each pair is forwarded as two rows", type(model).__name__)
    return bool(known)


def _takes_packed_rows(model: Any) -> bool:
    if _attention(model) not in ("sdpa", FLEX) or not has_plain_head(model):
        return False
    return "position_ids" in inspect.signature(body_of(model).forward).parameters


def attention_window(model: Any) -> int | None:
    """How many tokens back this model reads, where that is bounded: a mask of ours would lift the bound."""
    if not getattr(model.config, "use_sliding_window", True):
        return None
    return getattr(model.config, "sliding_window", None)


def use_flex_attention(model: Any, device: torch.device) -> None:
    """Attention by FlexAttention, which skips what packed rows must not read; torch has its backward on GPUs.

    Raises:
        ConfigError: no GPU, or a model that cannot.
    """
    if device.type != "cuda":
        raise ConfigError(
            f"execution.attention: 'flex' cannot be trained on {device.type}: torch has no backward for it there",
            fix="use sdpa",
        )
    try:
        model.set_attn_implementation(FLEX)
    except (ValueError, ImportError) as error:
        raise ConfigError(
            f"execution.attention: 'flex' does not fit {type(model).__name__}: {error}", fix="use sdpa"
        ) from None


def _attention(model: Any) -> str | None:
    return getattr(model.config, "_attn_implementation", None)


def _uses_flex(model: Any) -> bool:
    return _attention(model) == FLEX


def _packed_equals_plain(model: Any) -> bool:
    return _agree(
        model,
        lambda batch: answer_logps(model, packed(batch).to(_device(model)))[0],
        lambda batch: answer_logps(model, two_rows(batch).to(_device(model)))[0],
    )


def _short_equals_whole(model: Any, mlp: nn.Module) -> bool:
    return _agree(
        model,
        lambda batch: answer_logps(model, two_rows(batch).to(_device(model)), mlp=mlp)[0],
        lambda batch: answer_logps(model, two_rows(batch).to(_device(model)))[0],
    )


def _agree(model: Any, *ways: Callable[[Batch], Tensor]) -> bool:
    """Whether ways to compute likelihoods agree on a few tokens; one that cannot be gone does not."""
    weight = model.get_output_embeddings().weight
    words = torch.arange(1, 12) % weight.shape[0]

    def side(*columns: int) -> Side:
        ids = words[list(columns)][None]
        return Side(ids, torch.ones_like(ids), (torch.arange(len(columns)) >= 3).long()[None])

    batch = Batch(torch.tensor([0]), side(0, 1, 2, 3, 4, 5), side(0, 1, 2, 6, 7))
    exact = weight.dtype in (torch.float32, torch.float64)
    try:
        with torch.no_grad():
            one, two = (way(batch).float() for way in ways)
    except (TypeError, ValueError, RuntimeError):
        return False
    return torch.allclose(one, two, atol=1e-3 if exact else 0.1, rtol=1e-3 if exact else 0.05)


def _device(model: Any) -> torch.device:
    return model.get_output_embeddings().weight.device  # type: ignore[no-any-return]
