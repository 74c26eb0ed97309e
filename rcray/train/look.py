"""A look at pairs not yet trained on: what the updates since the last look did to them, and what the next one will do.

Every few steps the mean scores of some pairs that training comes to later are taken over everything trained, each side
with a backward of its own. Their product with the way the weights went since the last look predicts how such pairs
moved; their products with the optimizer's memory and with both branches of the gradient are what calibration steers by.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor, nn

from rcray.calibration.preview import AdamPreview, Coordinates, SgdPreview, preview_of
from rcray.calibration.scores import Gradients, Reduce
from rcray.calibration.update import Foreseen, Move, Response, UpdateCalibrator, products
from rcray.data.batch import Batch, moved
from rcray.data.layout import Layout
from rcray.models.capabilities import capabilities_of
from rcray.objectives import objective
from rcray.train.extra_gradients import ExtraGradients
from rcray.train.micro import Policy, ReadOff
from rcray.train.parts import PlainPart
from rcray.train.scaling import LossScaling

Branches = tuple[Gradients, Gradients]  # the gradient's parts through the chosen and through the rejected answers


@dataclass(frozen=True)
class Fresh:
    """The pairs of a look on this worker."""

    batches: Sequence[Batch]
    pairs: int  # over all workers
    start: Tensor  # [2, pairs here] their likelihoods where training began, chosen and rejected


@dataclass
class Look:
    """Mean scores of fresh pairs on the coordinates that are read, and how far the pairs are from where they began."""

    score_w: Tensor
    score_l: Tensor
    fresh: Fresh
    before: dict[str, Tensor]  # the last look; empty at the first
    numbers: Tensor  # what is read of it, where it was computed: drift, prediction (not at the first), norm in float16

    @property
    def pairs(self) -> int:
        """Over all workers."""
        return self.fresh.pairs

    @cached_property
    def read(self) -> list[float]:
        """The numbers; read with others where others are needed (`Looks.ask`)."""
        numbers: list[float] = self.numbers.tolist()
        return numbers

    def shows(self, windows: Sequence[int]) -> tuple[int, float]:
        """How many windows of so many pairs are walked with their sides apart for it, and their share of all pairs.

        The first ones, until there are as many pairs as it has itself: more would judge it no better than it sees.
        """
        until = list(accumulate(windows))
        shown = sum(before < self.pairs for before in [0, *until[:-1]])
        return shown, until[shown - 1] / until[-1]

    @property
    def drift(self) -> Move:
        """From where training began."""
        return Move(*self.read[:2])

    @property
    def predicted(self) -> Move | None:
        """The pairs' move since the last look, to first order; None at the first."""
        return Move(*self.read[2:4]) if self.before else None


@dataclass(frozen=True)
class Asked:
    """A look that was read, and what it says of the coming update: of its branches, and of the optimizer's memory."""

    look: Look
    foreseen: Foreseen
    response: Response
    memory: Move


@dataclass(frozen=True)
class Joined:
    """The gradient of pairs whose sides were walked apart, joined by the factor that a look led to."""

    gradients: Gradients
    look: Look
    log_alpha: float
    foreseen: Foreseen | None  # None: the optimizer's memory cannot be read
    coordinates: Coordinates
    partly: bool  # the step has other pairs beside these

    def judged(self, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
        """What the look says of the update that their whole gradient makes; not read yet."""
        foreseen = self.foreseen
        if foreseen is None:
            return []
        if self.partly:
            whole = self.coordinates.flat([p.grad for p in parameters if p.grad is not None])
            foreseen = foreseen.completed(whole, self.log_alpha)
        return [foreseen.judged(self.log_alpha)]


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
        self.optimizer, self.clip_norm, self.rank = optimizer, clip_norm, rank
        self.reduce, self.sum_gradients, self.scaling = reduce, sum_gradients, scaling
        self.parameters: list[nn.Parameter] = [p for group in optimizer.param_groups for p in group["params"]]
        self.coordinates = Coordinates(self.parameters, rank, reduce)
        #: Weights and scores of the last look, and the scale of the next one's seeds in float16; for checkpoints too.
        self.last: dict[str, Tensor] = {}

    def take(self, fresh: Fresh) -> Look:
        """Scores of fresh pairs under the weights as they stand, each side by a backward of its own; reads nothing."""
        return self._take(fresh, self.last)

    def _take(self, fresh: Fresh, before: dict[str, Tensor]) -> Look:
        score_w, score_l, likelihoods = self._scores(fresh)
        self.last = {"weights": self.coordinates.flat(self.parameters), "score_w": score_w, "score_l": score_l}
        numbers = [self._drift(likelihoods - moved(fresh.start, likelihoods.device), fresh.pairs)]
        numbers += [self._since(before)] if before else []
        numbers += [self._norm(score_w, score_l)] if self.scaling else []
        return Look(score_w, score_l, fresh, before, torch.cat(numbers))

    def settled(self, look: Look) -> Look:
        """The look, read; one that overflowed in float16 is taken once more at half the scale."""
        while self._read(look) is None:
            look = self._take(look.fresh, look.before)
        return look

    def ask(self, look: Look, branches: Branches, share: float, rule: UpdateCalibrator) -> Asked:
        """What the coming update will do to the pairs of a look, read with the look itself: its one wait."""
        while True:
            foreseen = self.foresee(look, branches, share)
            assert foreseen is not None  # refused in the configuration
            responses = foreseen.responses(float(rule.log_alpha), rule.norm if share < 1 else 0.0)
            others = self._read(look, responses, self.remembered(foreseen.preview))
            if others is not None:
                return Asked(look, foreseen, Response(*others[:4]), Move(*others[4:]))
            look = self._take(look.fresh, look.before)

    def _read(self, look: Look, *others: Tensor) -> list[float] | None:
        """Reads a look, and others with it; None where it overflowed."""
        numbers = torch.cat([look.numbers, *others]).tolist()
        own = len(look.numbers)
        look.read = numbers[:own]
        if self.scaling is not None:
            sound = self.scaling.settle(look.read[-1])
            self.last["loss_scale"] = torch.tensor(self.scaling.state(), dtype=torch.float64)
            if not sound:
                return None
        return numbers[own:]

    def state(self) -> dict[str, Tensor]:
        """The last look for a checkpoint; of a sharded model a row for each worker. All workers must take part."""
        reduce = self.coordinates.reduce
        if reduce is None or not self.last:
            return self.last
        size = reduce.gather(torch.tensor([len(self.last["weights"])])).flatten()
        longest = int(size.max())
        rows = {
            name: reduce.gather(nn.functional.pad(own, (0, longest - len(own)))).cpu()
            for name, own in self.last.items()
            if name != "loss_scale"
        }
        return {**self.last, **rows, "size": size}

    def restore(self, last: dict[str, Tensor]) -> None:
        """Goes on from a checkpoint; parts of a model that was cut otherwise fit nobody: looks begin anew."""
        kept = {name: tensor for name, tensor in last.items() if name != "size"}
        if "size" in last:
            own = self.rank < len(last["size"]) and int(last["size"][self.rank])
            kept = {name: t[self.rank, :own] if t.ndim == 2 else t for name, t in kept.items()} if own else {}
        if kept and len(kept["weights"]) != len(self.coordinates.flat(self.parameters)):
            kept = {}
        self.last = {name: tensor.to(self.policy.device) for name, tensor in kept.items()}
        if self.scaling and "loss_scale" in last:
            self.scaling.restore(last["loss_scale"].tolist())

    def _scores(self, fresh: Fresh) -> tuple[Tensor, Tensor, Tensor]:
        """Both mean scores on the coordinates that are read, and the likelihoods [2, pairs here] beside them."""
        branches: Branches = ([], [])
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

    def _norm(self, *scores: Tensor) -> Tensor:
        """[1] not finite where an entry is not, on whichever worker."""
        return self.coordinates.total(torch.stack([score.double().norm() for score in scores]).sum(0, keepdim=True))

    def _forward(self, batch: Batch) -> ReadOff | ExtraGradients:
        policy = self.policy
        if not capabilities_of(policy.model).plain_head:
            return ExtraGradients(policy, batch, ())

        def part(layout: Layout, _weights: Tensor | None) -> PlainPart:
            return PlainPart(policy.model, layout, policy.short_mlp)

        return ReadOff(policy, batch, part, apart=True)

    def _since(self, before: dict[str, Tensor]) -> Tensor:
        """[2] the move of fresh pairs, by the mean of their scores at both ends of the way."""
        way = self.last["weights"] - before["weights"]
        score_w, score_l = ((self.last[name] + before[name]) / 2 for name in ("score_w", "score_l"))
        return products(score_w, score_l, way, self.coordinates.total)

    def _drift(self, changes: Tensor, pairs: int) -> Tensor:
        sums = changes.sum(1, dtype=torch.float64)
        return (sums if self.reduce is None else self.reduce.sum(sums)) / pairs

    def foresee(self, look: Look, branches: Branches, share: float) -> Foreseen | None:
        """The coming update as a function of alpha; None for an optimizer whose memory cannot be read.

        `share`: that of the pairs of the step whose branches these are; they stand for the others.
        """
        preview = self.preview()
        if preview is None:
            return None
        branch_w, branch_l = (self.coordinates.flat(branch).div_(share) for branch in branches)
        return Foreseen(look.score_w, look.score_l, branch_w, branch_l, preview, self.clip_norm, self.coordinates.total)

    def join(self, look: Look, branches: Branches, share: float, log_alpha: float, foreseen: Foreseen | None) -> Joined:
        """Makes one gradient of two branches, in their place."""
        up, down = math.exp(log_alpha), math.exp(-log_alpha)
        gradients = [from_w.mul_(up).add_(from_l, alpha=down) for from_w, from_l in zip(*branches, strict=True)]
        branches[1].clear()  # as large as the gradient itself
        return Joined(gradients, look, log_alpha, foreseen, self.coordinates, partly=share < 1)

    def remembered(self, preview: AdamPreview | SgdPreview) -> Tensor:
        """[2] what the optimizer's memory alone will do to fresh pairs."""
        return products(self.last["score_w"], self.last["score_l"], preview.kept(), self.coordinates.total)

    def memory(self, preview: AdamPreview | SgdPreview) -> Move | None:
        """The same for both sides, read where that costs nothing; None before the first look."""
        if not self.last:
            return None
        seen = self.remembered(preview)
        return Move(*(seen.tolist() if self.policy.on_cpu else seen.unbind()))

    def preview(self) -> AdamPreview | SgdPreview | None:
        """What the optimizer would do next."""
        return preview_of(self.optimizer, self.parameters, self.coordinates)
