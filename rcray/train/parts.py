"""Where a model's scores are read off its own backward, and the parts of micro.py that do not calibrate adapters."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rcray.calibration.head_scores import HeadSums, exact_form, gram_products
from rcray.calibration.scores import Estimator, Products, SideScores, branch_gradients
from rcray.data.layout import Layout
from rcray.models.blocks import AdapterBlock, last_adapter_block
from rcray.models.capabilities import capabilities_of
from rcray.models.forward import answer_logps
from rcray.models.head import sketch_projection
from rcray.train.micro import side_scores_of, watched_logps


@dataclass(frozen=True)
class ScoreSource:
    """Where scores are read off: the last block's adapters, or, without a block, the head."""

    block: AdapterBlock | None = None
    projection: Tensor | None = None  # of a sketch of the head's scores

    @property
    def shares_prompts(self) -> bool:
        """Whether packed rows still part by side where the scores are measured."""
        return self.block is None or self.block.is_last


@dataclass
class Scoring:
    """Where scores are measured, and over which pairs."""

    per_micro_batch: bool  # the window of the statistics; the same with calibration off, so that curves compare
    source: ScoreSource | None = None  # where they are read off the backward
    parameters: Sequence[Tensor] = ()  # where they are measured by extra gradients, without a source
    full_parameters: Sequence[Tensor] = ()  # for the band over all parameters, recorded beside the first where asked
    check_sketch_every: int = 0  # steps between two looks at the exact scores beside a sketch; 0: never


def score_source(model: Any, estimator: Estimator) -> ScoreSource | None:
    """The by-product that gives these scores; None where only extra gradients can (`full`, an unusual head)."""
    if estimator == "full" or not capabilities_of(model).plain_head:
        return None
    if estimator == "adapters":
        block = last_adapter_block(model)
        return None if block is None else ScoreSource(block)
    head = model.get_output_embeddings()
    return ScoreSource(projection=sketch_projection(head.weight) if estimator == "sketch" else None)


def may_share_prompts(model: Any, source: ScoreSource | None) -> bool:
    """Whether the pairs of this model may be packed."""
    return source is not None and source.shares_prompts and capabilities_of(model).packs_rows


class HeadPart:
    """Scores at the head. `weights` are known beforehand for every objective but the token-level ones.

    `alone`: no other micro-batch or worker joins its statistics.
    """

    def __init__(
        self,
        model: nn.Module,
        layout: Layout,
        projection: Tensor | None,
        mlp: nn.Module | None,
        weights: Tensor | None,
        *,
        alone: bool,
    ):
        self.layout, self.projection = layout, projection
        head: Any = model.get_output_embeddings()  # type: ignore[operator]
        vocabulary, hidden = head.weight.shape
        self.form = "sketch"
        if projection is None:
            self.form = exact_form(len(layout.targets), hidden, vocabulary, head.weight.element_size(), alone=alone)
        self.sums: HeadSums | None = None
        if weights is not None and self.form != "gram":
            self.sums = HeadSums(weights, layout.split, projection)
        self.graph, self.head = answer_logps(model, layout, mlp=mlp, scores=True, on_residuals=self.sums)
        self.logp = self.graph.detach()

    def begin(self, weights: Tensor) -> None:
        """Where the weights were not known before, the residuals are read once more."""
        self.weights = weights
        if self.form != "gram" and self.sums is None:
            self.sums = self._sum_residuals(self.projection)

    def scores(self) -> SideScores | Products:
        """From the residuals: summed while they passed, or all against all."""
        if self.sums is None:
            return gram_products(self.head, self.weights, self.layout.split)
        return self.sums.side_scores()

    def exact_scores(self) -> SideScores:
        """What a sketch estimates, by direct sums over the residuals."""
        return self._sum_residuals(None).side_scores()

    def backward(self, seed_w: Tensor, seed_l: Tensor) -> None:
        """The ordinary backward, from the log-probabilities."""
        self.graph.backward(self.weights * self.layout.token_seeds(seed_w, seed_l))

    def _sum_residuals(self, projection: Tensor | None) -> HeadSums:
        sums = HeadSums(self.weights, self.layout.split, projection)
        for rows, residual in self.head.residuals():
            sums(self.head, rows, residual)
        return sums


class PlainPart:
    """No scores: a forward and its ordinary backward."""

    def __init__(self, model: nn.Module, layout: Layout, mlp: nn.Module | None):
        self.graph, _ = answer_logps(model, layout, mlp=mlp)
        self.logp = self.graph.detach()
        self.layout = layout

    def begin(self, weights: Tensor) -> None:
        """Keeps the weights."""
        self.weights = weights

    def scores(self) -> SideScores:
        """None are measured."""
        return SideScores([], [])

    def backward(self, seed_w: Tensor, seed_l: Tensor) -> None:
        """From the log-probabilities."""
        self.graph.backward(self.weights * self.layout.token_seeds(seed_w, seed_l))


#: Below this a row's gradient is too small to be divided by its seed again.
SMALLEST_SEED = 1e-12


class WatchedPart:
    """Scores at the last block's adapters from an ordinary backward, for runs whose seeds are not rescaled."""

    def __init__(self, model: nn.Module, layout: Layout, block: AdapterBlock, mlp: nn.Module | None):
        self.parameters = block.parameters
        self.graph, self.flows = watched_logps(model, layout, block, mlp)
        self.logp = self.graph.detach()
        self.layout, self.rows = layout, layout.plain_rows
        self.side_scores: SideScores | None = None

    def begin(self, weights: Tensor) -> None:
        """Keeps the weights."""
        self.weights = weights

    def backward(self, seed_w: Tensor, seed_l: Tensor) -> None:
        """The ordinary backward; where a seed is too small to be divided out again, extra gradients before it."""
        seeds = self.rows.row_seeds(seed_w, seed_l)
        divides = float(seeds.abs().min()) >= SMALLEST_SEED
        if not divides:
            self.side_scores = self._extra_gradients()
        self.graph.backward(self.weights * self.layout.token_seeds(seed_w, seed_l))
        if divides:
            self.side_scores = side_scores_of(self.flows, self.rows, 1 / seeds)

    def scores(self) -> SideScores:
        """What the backward showed."""
        assert self.side_scores is not None
        return self.side_scores

    def _extra_gradients(self) -> SideScores:
        chosen = torch.arange(len(self.weights), device=self.weights.device) < self.layout.split
        sides = [self.weights * chosen, self.weights * ~chosen]
        return SideScores(*(branch_gradients(self.graph, self.parameters, s, keep_graph=True) for s in sides))
