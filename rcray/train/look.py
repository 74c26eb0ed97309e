"""A look at pairs not yet trained on: what the updates since the last look did to them, and what the next one will do.

Every few steps the mean scores of some pairs that training comes to later are taken over everything trained, each side
with a backward of its own. Their product with the way the weights went since the last look predicts how such pairs
moved; their products with the optimizer's memory and with both branches of the gradient are what calibration steers by.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from rcray.calibration.preview import Coordinates, preview_of
from rcray.calibration.scores import Gradients, Reduce
from rcray.calibration.update import AdamPreview, Foreseen, Move, SgdPreview, seen_by
from rcray.data.batch import Batch, moved
from rcray.data.layout import Layout
from rcray.models.capabilities import capabilities_of
from rcray.objectives import objective
from rcray.train.extra_gradients import ExtraGradients
from rcray.train.micro import Policy, ReadOff
from rcray.train.parts import PlainPart
from rcray.train.scaling import LossScaling


@dataclass(frozen=True)
class Fresh:
    """The pairs of a look on this worker."""

    batches: Sequence[Batch]
    pairs: int  # over all workers
    start: Tensor  # [2, pairs here] their likelihoods where training began, chosen and rejected


@dataclass(frozen=True)
class Look:
    """Mean scores of fresh pairs on the coordinates that are read, and how far the pairs are from where they began."""

    score_w: Tensor
    score_l: Tensor
    drift: Move
    pairs: int
    predicted: Move | None  # their move since the last look, to first order; None at the first


class Looks:
    """Takes looks, and keeps what the last one saw."""

    def __init__(
        self,
        policy: Policy,
        optimizer: torch.optim.Optimizer,
        clip_norm: float,
        *,
        rank: int = 0,
        reduce: Reduce | None = None,
        sum_gradients: Callable[[Sequence[Tensor]], None] | None = None,
        scaling: LossScaling | None = None,
    ):
        # Plain likelihoods, whatever the objective makes of its tokens: what the probe and the evaluation measure.
        self.policy = replace(policy, objective=objective("dpo"), reference=None, live_reference=None)
        self.optimizer, self.clip_norm = optimizer, clip_norm
        self.reduce, self.sum_gradients, self.scaling = reduce, sum_gradients, scaling
        self.parameters: list[nn.Parameter] = [p for group in optimizer.param_groups for p in group["params"]]
        self.coordinates = Coordinates(self.parameters, rank, reduce)
        #: Weights and scores of the last look, and the scale of the next one's seeds in float16; for checkpoints too.
        self.last: dict[str, Tensor] = {}

    def take(self, fresh: Fresh) -> Look:
        """Scores of fresh pairs under the weights as they stand, each side by a backward of its own."""
        score_w, score_l, likelihoods = self._scores(fresh)
        while self.scaling and not self.scaling.settle(self._norm(score_w, score_l)):
            score_w, score_l, likelihoods = self._scores(fresh)  # they overflowed: once more at half the scale
        before = self.last
        self.last = {"weights": self.coordinates.flat(self.parameters), "score_w": score_w, "score_l": score_l}
        if self.scaling:
            self.last["loss_scale"] = torch.tensor(self.scaling.state(), dtype=torch.float64)
        return Look(
            score_w,
            score_l,
            drift=self._drift(likelihoods - moved(fresh.start, likelihoods.device), fresh.pairs),
            pairs=fresh.pairs,
            predicted=self._since(before) if before else None,
        )

    def restore(self, last: dict[str, Tensor]) -> None:
        """Goes on from a checkpoint."""
        self.last = {name: tensor.to(self.policy.device) for name, tensor in last.items()}
        if self.scaling and "loss_scale" in self.last:
            self.scaling.restore(self.last["loss_scale"].tolist())

    def _scores(self, fresh: Fresh) -> tuple[Tensor, Tensor, Tensor]:
        """Both mean scores on the coordinates that are read, and the likelihoods [2, pairs here] beside them."""
        branches: tuple[Gradients, Gradients] = ([], [])
        likelihoods = []
        for batch in fresh.batches:
            micro = self._forward(batch)
            seeds = torch.full_like(micro.pairs.z_w, (self.scaling.scale if self.scaling else 1) / fresh.pairs)
            micro.branches(seeds, seeds, branches, self.parameters)
            likelihoods.append(torch.stack([micro.pairs.z_w, micro.pairs.z_l]).detach())
        if self.sum_gradients:
            for side in branches:
                self.sum_gradients(side)
        score_w, score_l = map(self.coordinates.flat, branches)
        if self.scaling:
            self.scaling.unscale([score_w, score_l])
        return score_w, score_l, torch.cat(likelihoods, 1)

    def _norm(self, *scores: Tensor) -> float:
        """Not finite where an entry is not, on whichever worker."""
        return float(self.coordinates.total(torch.stack([score.double().norm() for score in scores]).sum()))

    def _forward(self, batch: Batch) -> ReadOff | ExtraGradients:
        policy = self.policy
        if not capabilities_of(policy.model).plain_head:
            return ExtraGradients(policy, batch, ())

        def part(layout: Layout, _weights: Tensor | None) -> PlainPart:
            return PlainPart(policy.model, layout, policy.short_mlp)

        return ReadOff(policy, batch, part, apart=True)

    def _since(self, before: dict[str, Tensor]) -> Move:
        """The move of fresh pairs, by the mean of their scores at both ends of the way."""
        way = self.last["weights"] - before["weights"]
        score_w, score_l = ((self.last[name] + before[name]) / 2 for name in ("score_w", "score_l"))
        return seen_by(score_w, score_l, way, self.coordinates.total)

    def _drift(self, changes: Tensor, pairs: int) -> Move:
        sums = changes.sum(1, dtype=torch.float64)
        return Move(*((sums if self.reduce is None else self.reduce.sum(sums)) / pairs).tolist())

    def foresee(self, look: Look, branch_w: Gradients, branch_l: Gradients) -> Foreseen | None:
        """The coming update as a function of alpha; None for an optimizer whose memory cannot be read."""
        preview = self.preview()
        if preview is None:
            return None
        flat = self.coordinates.flat
        branches = flat(branch_w), flat(branch_l)
        return Foreseen(look.score_w, look.score_l, *branches, preview, self.clip_norm, self.coordinates.total)

    def memory(self, preview: AdamPreview | SgdPreview) -> Move | None:
        """What the optimizer's memory alone will do to fresh pairs; None before the first look."""
        if not self.last:
            return None
        return seen_by(self.last["score_w"], self.last["score_l"], preview.kept(), self.coordinates.total)

    def preview(self) -> AdamPreview | SgdPreview | None:
        """What the optimizer would do next."""
        return preview_of(self.optimizer, self.parameters, self.coordinates)
