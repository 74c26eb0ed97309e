"""One forward of a micro-batch, the scores read off it, and the one backward.

A part knows the log-probabilities of its answer tokens. Told what each token weighs in its likelihood, it gives the
scores; told the seeds, it makes the backward. Which kind of part does it depends on where the scores are measured:

  HeadPart       head, sketch: scores come from the head's residuals, before the body's backward
  CutPart        adapters, calibrating: the head and the last block are walked once with unit seeds, the scores are read
                 from what flowed through the block's adapters, and the same walk, scaled row by row, goes on below
  WatchedPart    adapters, not calibrating: an ordinary backward, watched; rows are divided by their seeds afterwards
"""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from rcray.calibration.head_scores import HeadSums, exact_form, gram_products
from rcray.calibration.scores import Estimator, Gradients, Products, branch_gradients, sketch_projection
from rcray.data.layout import CHOSEN, REJECTED, Layout
from rcray.models.blocks import AdapterBlock, Flow, cutting, last_adapter_block, watching
from rcray.models.forward import answer_logps, can_share_prompts, short_mlp, unfolding
from rcray.models.likelihood import has_plain_head

#: Below this a row's gradient is too small to be divided by its seed again.
SMALLEST_SEED = 1e-12


@dataclass(frozen=True)
class SideScores:
    """Gradients of the summed likelihoods of one side or both; empty for a side that is not there."""

    w: Gradients
    l: Gradients  # noqa: E741  the paper's letter


@dataclass(frozen=True)
class ScoreSource:
    """Where a model's scores are read off its own backward."""

    estimator: Estimator
    block: AdapterBlock | None = None
    projection: Tensor | None = None
    mlp: nn.Module | None = None  # the last feed-forward layer, where it may leave out the prompts

    @property
    def shares_prompts(self) -> bool:
        """Whether packed rows still part by side where the scores are measured."""
        return self.block is None or self.block.is_last


def score_source(model: Any, estimator: Estimator) -> ScoreSource | None:
    """The by-product that gives these scores; None where only extra gradients can (`full`, an unusual head)."""
    if estimator == "full" or not has_plain_head(model):
        return None
    if estimator == "adapters":
        block = last_adapter_block(model)
        return None if block is None else ScoreSource(estimator, block, mlp=short_mlp(model))
    head = model.get_output_embeddings()
    projection = sketch_projection(head.weight) if estimator == "sketch" else None
    return ScoreSource(estimator, projection=projection, mlp=short_mlp(model))


def may_share_prompts(model: Any, source: ScoreSource | None) -> bool:
    """Whether the pairs of this model may be packed."""
    return source is not None and source.shares_prompts and can_share_prompts(model)


class Part(Protocol):
    """See the module. After `begin`, scores then backward, or, without calibration, backward then scores."""

    logp: Tensor  # [answers], detached
    layout: Layout

    def begin(self, weights: Tensor) -> None:
        """Takes what each token weighs in its likelihood, dz / d logp."""
        ...

    def scores(self) -> SideScores | Products:
        """The scores of the sides that lie here."""
        ...

    def backward(self, seed_w: Tensor, seed_l: Tensor) -> None:
        """Adds the gradient of sum_i seed_i z_i to the parameters."""
        ...


class HeadPart:
    """Scores at the head. `weights` are known beforehand for every objective but the token-level ones."""

    def __init__(self, model: nn.Module, layout: Layout, source: ScoreSource, weights: Tensor | None, *, alone: bool):
        self.layout, self.source = layout, source
        head: Any = model.get_output_embeddings()  # type: ignore[operator]
        vocabulary, hidden = head.weight.shape
        self.form = "sketch"
        if source.projection is None:
            self.form = exact_form(len(layout.targets), hidden, vocabulary, head.weight.element_size(), alone=alone)
        self.sums: HeadSums | None = None
        if weights is not None and self.form != "gram":
            self.sums = HeadSums(weights, layout.split, source.projection)
        self.graph, self.made = answer_logps(model, layout, mlp=source.mlp, scores=True, on_residuals=self.sums)
        self.logp = self.graph.detach()

    def begin(self, weights: Tensor) -> None:
        """Where the weights were not known before, the residuals are read once more."""
        self.weights = weights
        if self.form != "gram" and self.sums is None:
            self.sums = HeadSums(weights, self.layout.split, self.source.projection)
            for rows, residual in self.made.residuals():
                self.sums(self.made, rows, residual)

    def scores(self) -> SideScores | Products:
        """From the residuals: summed while they passed, or all against all."""
        if self.sums is None:
            return gram_products(self.made, self.weights, self.layout.split)
        assert self.sums.w is not None and self.sums.l is not None
        return SideScores([self.sums.w], [self.sums.l])

    def exact_scores(self) -> SideScores:
        """What a sketch estimates, by direct sums over the residuals."""
        sums = HeadSums(self.weights, self.layout.split)
        for rows, residual in self.made.residuals():
            sums(self.made, rows, residual)
        assert sums.w is not None and sums.l is not None
        return SideScores([sums.w], [sums.l])

    def backward(self, seed_w: Tensor, seed_l: Tensor) -> None:
        """The ordinary backward, from the log-probabilities."""
        self.graph.backward(self.weights * self.layout.token_seeds(seed_w, seed_l))


class CutPart:
    """Scores at the last block's adapters, by a walk that stops at the block's input."""

    def __init__(self, model: nn.Module, layout: Layout, block: AdapterBlock, mlp: nn.Module | None):
        with cutting(block.block) as self.cut:
            self.graph, self.flows = _watched_logps(model, layout, block, mlp)
        self.logp = self.graph.detach()
        self.layout, self.rows = layout, layout.plain_rows

    def begin(self, weights: Tensor) -> None:
        """Walks head and last block with unit seeds."""
        assert self.cut.above is not None
        (self.above,) = torch.autograd.grad(self.graph, [self.cut.above], weights.to(self.graph.dtype))

    def scores(self) -> SideScores:
        """From what flowed through the adapters."""
        return _side_scores(self.flows, self.rows)

    def backward(self, seed_w: Tensor, seed_l: Tensor) -> None:
        """The block's own adapters from the walk already made, everything below by going on with it."""
        seeds = self.rows.row_seeds(seed_w, seed_l)
        for flow in self.flows:
            gradient = flow.weight_gradient(slice(None), seeds)
            weight = flow.layer.weight
            weight.grad = gradient if weight.grad is None else weight.grad + gradient
        assert self.cut.below is not None
        if self.cut.below.requires_grad:
            self.cut.below.backward(self.above * seeds[:, None, None].to(self.above.dtype))


class WatchedPart:
    """Scores at the last block's adapters from an ordinary backward, for runs whose seeds are not rescaled."""

    def __init__(self, model: nn.Module, layout: Layout, block: AdapterBlock, mlp: nn.Module | None):
        self.parameters = block.parameters
        self.graph, self.flows = _watched_logps(model, layout, block, mlp)
        self.logp = self.graph.detach()
        self.layout, self.rows = layout, layout.plain_rows
        self.found: SideScores | None = None

    def begin(self, weights: Tensor) -> None:
        """Keeps the weights."""
        self.weights = weights

    def backward(self, seed_w: Tensor, seed_l: Tensor) -> None:
        """The ordinary backward; where a seed is too small to be divided out again, extra gradients before it."""
        seeds = self.rows.row_seeds(seed_w, seed_l)
        divides = float(seeds.abs().min()) >= SMALLEST_SEED
        if not divides:
            self.found = self._extra_gradients()
        self.graph.backward(self.weights * self.layout.token_seeds(seed_w, seed_l))
        if divides:
            self.found = _side_scores(self.flows, self.rows, 1 / seeds)

    def scores(self) -> SideScores:
        """What the backward showed."""
        assert self.found is not None
        return self.found

    def _extra_gradients(self) -> SideScores:
        chosen = torch.arange(len(self.weights), device=self.weights.device) < self.layout.split
        sides = [self.weights * chosen, self.weights * ~chosen]
        w, l = (branch_gradients(self.graph, self.parameters, s, keep_graph=True) for s in sides)  # noqa: E741
        return SideScores(w, l)


def _watched_logps(
    model: nn.Module, layout: Layout, block: AdapterBlock, mlp: nn.Module | None
) -> tuple[Tensor, list[Flow]]:
    """Log-probabilities with their graph, and the flow through the block's adapters; packed rows unfold there."""
    with unfolding(model, block.block, layout), watching(block) as flows:
        logp, _ = answer_logps(model, layout, mlp=mlp)
    return logp, flows


def _side_scores(flows: list[Flow], rows: Layout, scale: Tensor | None = None) -> SideScores:
    """Gradients of the adapters' weights from the rows of each side; chosen rows come first."""
    chosen = rows.pairs if CHOSEN in rows.sides else 0
    w = [flow.weight_gradient(slice(None, chosen), scale) for flow in flows] if CHOSEN in rows.sides else []
    l = [flow.weight_gradient(slice(chosen, None), scale) for flow in flows] if REJECTED in rows.sides else []  # noqa: E741
    return SideScores(w, l)
