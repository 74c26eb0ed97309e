"""The last block's feed-forward layer, for the tokens that predict an answer and no others.

Nothing reads what the last block makes of the earlier prompt tokens: attention has already taken their keys and values.
Their way through the largest layer of the block is left out; what stands there afterwards is no hidden state.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from rcray.data.layout import Layout
from rcray.models.blocks import blocks_of
from rcray.models.likelihood import body_of

#: Worth it where at least this share of a row is left out: picking and putting back is not free.
WORTH_LEAVING_OUT = 0.1


def last_mlp(model: Any) -> nn.Module | None:
    """The feed-forward module of the last block, where the architecture calls it `mlp` and it has one plain output."""
    try:
        found = getattr(blocks_of(body_of(model))[-1], "mlp", None)
    except (ValueError, IndexError):
        return None
    if not isinstance(found, nn.Module) or hasattr(found, "experts") or hasattr(found, "gate"):
        return None  # a router looks at all tokens
    return found


@contextmanager
def answers_only(mlp: nn.Module | None, layout: Layout) -> Iterator[None]:
    """Within it, `mlp` computes the tokens that predict answers; the others get zeros."""
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
