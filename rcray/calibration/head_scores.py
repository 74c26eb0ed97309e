"""The head's scores as by-products of one pass over its residuals.

Legend: G = sum_t v_t residual_t h_t^T over the answer tokens of one side; v_t = dz / d logp_t. Three forms:
  gram     |G|^2 = sum_tu v_t v_u <residual_t, residual_u> <h_t, h_u>: exact, tokens x tokens, cheapest for few tokens
  direct   G itself, [vocabulary, hidden] per side: exact, and may be summed over micro-batches and workers
  sketch   G R, [vocabulary, columns] per side: the same sums at columns / hidden of the cost
"""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from rcray.calibration.scores import Products, SideScores
from rcray.data.layout import Layout
from rcray.models.head import KEEP_BYTES, HeadPass, add_product

Form = Literal["gram", "direct", "sketch"]


def exact_form(tokens: int, hidden: int, vocabulary: int, bytes_each: int, *, alone: bool) -> Form:
    """The cheaper exact form. A Gram matrix has to hold every residual at once, and does not add up over windows."""
    fits = tokens * vocabulary * bytes_each <= KEEP_BYTES
    # Three of the four blocks of tokens/2 x tokens/2, against one product with every hidden column.
    return "gram" if alone and fits and 0.75 * tokens < hidden else "direct"


@dataclass
class HeadSums:
    """G or G R of both sides, fed chunk by chunk; tokens before `split` are chosen ones."""

    weights: Tensor  # v, [tokens]
    split: int
    projection: Tensor | None = None  # R; None: exact
    w: Tensor | None = field(default=None, init=False)
    l: Tensor | None = field(default=None, init=False)  # noqa: E741  the paper's letter

    def __call__(self, applied: HeadPass, rows: slice, residual: Tensor) -> None:
        """Adds a chunk."""
        if self.w is None or self.l is None:
            columns = applied.h.shape[1] if self.projection is None else self.projection.shape[1]
            wide = torch.promote_types(applied.h.dtype, torch.float32)
            self.w, self.l = applied.h.new_zeros(2, applied.weight.shape[0], columns, dtype=wide).unbind()
        right = applied.h[rows] if self.projection is None else applied.h[rows] @ self.projection.to(applied.h.dtype)
        right = right * self.weights[rows, None].to(right.dtype)
        middle = min(max(self.split - rows.start, 0), len(right))
        if middle:
            add_product(self.w, residual[:middle], right[:middle])
        if middle < len(right):
            add_product(self.l, residual[middle:], right[middle:])

    def side_scores(self) -> SideScores:
        """What was summed, once every chunk has passed."""
        assert self.w is not None and self.l is not None
        return SideScores([self.w], [self.l])


def pair_products(applied: HeadPass, layout: Layout, weights: Tensor) -> list[Products]:
    """The products of every pair of a layout apart: its own answers' scores, and no other pair's."""
    vocabulary, hidden = applied.weight.shape
    products = []
    for pair, split in enumerate(layout.counts[0].tolist()):
        tokens = torch.nonzero(layout.pair == pair).flatten()  # chosen ones come first
        part, own = applied.of(tokens), weights[tokens]
        if exact_form(len(tokens), hidden, vocabulary, applied.h.element_size(), alone=True) == "gram":
            part.kept = torch.cat([residual.clone() for _, residual in part.residuals()])
            products.append(gram_products(part, own, split))
            continue
        sums = HeadSums(own, split)
        for rows, residual in part.residuals():
            sums(part, rows, residual)
        w, l = (side[0].double() for side in (sums.side_scores().w, sums.side_scores().l))  # noqa: E741
        products.append(Products(torch.stack([(a * b).sum() for a, b in ((w, w), (l, l), (w, l))])))
    return products


def gram_products(applied: HeadPass, weights: Tensor, split: int) -> Products:
    """|G_w|^2, |G_l|^2 and <G_w, G_l> without G."""
    ((_, residual),) = applied.residuals()
    right = applied.h * weights[:, None].to(applied.h.dtype)

    def product(a: slice, b: slice) -> Tensor:
        block = (residual[a] @ residual[b].T) * (right[a] @ right[b].T)
        return block.sum(dtype=torch.float64)

    w, l = slice(None, split), slice(split, None)  # noqa: E741
    return Products(torch.stack([product(w, w), product(l, l), product(w, l)]))
