"""One forward of a layout: hidden states of the answers, their log-probabilities, and hooks on the way.

Hooks
  answers_only   the last feed-forward layer computes the tokens that predict answers and no others
  unfolding      the last block sees the two plain rows of each packed pair
  watching       what flows through the factors of adapters is recorded
  cutting        the graph is parted at the input of a block
  one_a_row      transformers does not ask the device whether a row holds several sequences
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from rcray.data.layout import Layout
from rcray.models.blocks import AdapterBlock
from rcray.models.head import HeadPass, OnLogits, OnResiduals, head_pass

#: FlexAttention for packed rows, see attention.py; by the second part of the name transformers asks if a model can.
FLEX = "packed_flex_attention"
#: Leaving prompts out of a layer is worth it from this share of a row on: picking and putting back is not free.
WORTH_LEAVING_OUT = 0.1


def body_of(model: Any) -> Any:
    """The transformer below the head; LoRA layers are inside it."""
    causal = model.get_base_model() if hasattr(model, "get_base_model") else model
    return causal.base_model


def attention_of(model: Any) -> str | None:
    """The attention kernel, as transformers calls it."""
    return getattr(model.config, "_attn_implementation", None)


def heads_of(model: Any) -> tuple[int, int, int]:
    """Heads of the queries, heads of keys and values, and the width of one."""
    config = model.config
    heads: int = config.num_attention_heads
    keys = getattr(config, "num_key_value_heads", None) or heads
    return heads, keys, getattr(config, "head_dim", None) or config.hidden_size // heads


def answer_hidden(model: Any, layout: Layout, mlp: nn.Module | None = None) -> Tensor:
    """Hidden states that predict the answer tokens, [answers, hidden], with their graph; `mlp` computes no others."""
    inputs: dict[str, Any] = {"input_ids": layout.ids, "use_cache": False}
    if layout.packed:
        mask = layout.block_mask() if attention_of(model) == FLEX else layout.mask()
        inputs |= {"attention_mask": mask, "position_ids": layout.positions}
    with answers_only(mlp, layout), one_a_row():
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
    on_logits: OnLogits | None = None,
) -> tuple[Tensor, HeadPass]:
    """Log-probabilities of the answer tokens, [answers], and the head's pass they came from.

    Args:
        model: a causal language model with a plain head.
        layout: its pairs, as they lie in the forward.
        mlp: the last block's feed-forward layer, where it may leave out the prompts (`Capabilities.short_mlp`).
        scores: whether the pass will be asked for the head's scores.
        on_residuals: called with the head's residuals as they pass.
        on_logits: called with its logits as they pass.
    """
    hidden = answer_hidden(model, layout, mlp)
    head, targets = model.get_output_embeddings(), layout.targets
    return head_pass(head, hidden, targets, scores=scores, on_residuals=on_residuals, on_logits=on_logits)


@contextmanager
def one_a_row() -> Iterator[None]:
    """Rows without a mask hold one sequence each. Else every such forward would wait for the GPU to say so."""
    from transformers import masking_utils

    asking = masking_utils.find_packed_sequence_indices
    masking_utils.find_packed_sequence_indices = lambda position_ids: None
    try:
        yield
    finally:
        masking_utils.find_packed_sequence_indices = asking


@contextmanager
def unfolding(model: Any, block: nn.Module, layout: Layout) -> Iterator[None]:
    """Within it, `block`, the last one, sees the two plain rows of each packed pair: its gradients part by side.

    Everything that lies along the row (positions, rotary angles) is unfolded with the hidden states; plain rows need
    no mask.
    """
    if not layout.packed:
        yield
        return
    assert layout.unpacked is not None
    pairs, width, columns = layout.pairs, layout.ids.shape[1], layout.unpacked
    row = torch.arange(pairs, device=columns.device).repeat(2)[:, None]
    place = (row * width + columns).flatten()

    def unfold(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dim() < 2 or value.shape[1] != width:
            return value
        flat = value.expand(pairs, *value.shape[1:]).reshape(pairs * width, *value.shape[2:])
        return flat.index_select(0, place).view(*columns.shape, *value.shape[2:])

    def unfold_all(value: Any) -> Any:  # rotary angles come as a pair
        return tuple(map(unfold, value)) if isinstance(value, tuple) else unfold(value)

    def before(_block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], Any]:
        kwargs = {name: None if name == "attention_mask" else unfold_all(value) for name, value in kwargs.items()}
        return tuple(map(unfold_all, args)), kwargs

    handle = block.register_forward_pre_hook(before, with_kwargs=True, prepend=True)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def answers_only(mlp: nn.Module | None, layout: Layout) -> Iterator[None]:
    """Within it, `mlp`, that of the last block, computes the tokens that predict answers; the others get zeros.

    Nothing reads what the last block makes of the earlier prompt tokens: attention has taken their keys and values.
    """
    if mlp is None:
        yield
        return
    places: list[tuple[Tensor, torch.Size]] = []

    def before(_mlp: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        hidden, *others = args
        rows = layout if len(hidden) == len(layout.ids) else layout.plain_rows
        if rows.span > (1 - WORTH_LEAVING_OUT) * hidden.shape[1]:
            return args
        index = rows.answer_columns[:, :, None].expand(-1, -1, hidden.shape[-1])
        places.append((index, hidden.shape))
        return (hidden.gather(1, index), *others)

    def after(_mlp: nn.Module, _args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        if not places:
            return output
        index, shape = places.pop()
        return output.new_zeros(shape).scatter(1, index, output)

    handles = [mlp.register_forward_pre_hook(before), mlp.register_forward_hook(after)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


#: Bytes a factor's gradients of single rows may take; beyond it they are summed anew for every question.
ROWS_BYTES = 64 * 2**20


@dataclass
class Flow:
    """What went into an adapter factor, and the gradient that came back to its output."""

    layer: nn.Linear
    inputs: Tensor
    gradient: Tensor | None = None

    def weight_gradient(self, rows: slice, scale: Tensor | None = None) -> Tensor:
        """Gradient of the weight from these rows, [outputs, inputs], each row times its scale."""
        weight = self.layer.weight
        if self.gradient is None:  # nothing above it depends on this factor
            return torch.zeros_like(weight)
        if len(self.gradient) * weight.numel() * self.gradient.element_size() <= ROWS_BYTES:
            single = self._of_rows[rows]
            total = single.sum(0) if scale is None else torch.tensordot(scale[rows].to(single.dtype), single, 1)
            return total.to(weight.dtype)
        gradient, inputs = self.gradient[rows], self.inputs[rows].to(self.gradient.dtype)
        if scale is not None:
            gradient = gradient * scale[rows, None, None].to(gradient.dtype)
        product = gradient.reshape(-1, gradient.shape[-1]).T @ inputs.reshape(-1, inputs.shape[-1])
        return product.to(weight.dtype)

    @cached_property
    def _of_rows(self) -> Tensor:
        """The gradient of each row, [rows, outputs, inputs]: both sides and the scaled sum are read off it."""
        assert self.gradient is not None
        return torch.bmm(self.gradient.transpose(1, 2), self.inputs.to(self.gradient.dtype))


@contextmanager
def watching(block: AdapterBlock) -> Iterator[list[Flow]]:
    """Records the flow through every adapter factor of the forward made within it; gradients arrive later."""
    flows: list[Flow] = []

    def after(layer: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        flow = Flow(layer, inputs[0].detach())
        flows.append(flow)
        if output.requires_grad:
            output.register_hook(lambda gradient: setattr(flow, "gradient", gradient))

    handles = [layer.register_forward_hook(after) for layer in block.layers]
    try:
        yield flows
    finally:
        for handle in handles:
            handle.remove()


@dataclass
class Cut:
    """A tensor of the forward, held apart from what computed it."""

    below: Tensor | None = None
    above: Tensor | None = None


@contextmanager
def cutting(block: nn.Module) -> Iterator[Cut]:
    """Parts the graph of the forward made within it at the input of `block`."""
    cut = Cut()

    def before(_block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], Any]:
        given = args[0] if args else kwargs["hidden_states"]
        cut.below, cut.above = given, given.detach().requires_grad_()
        if args:
            return (cut.above, *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": cut.above}

    handle = block.register_forward_pre_hook(before, with_kwargs=True)
    try:
        yield cut
    finally:
        handle.remove()
