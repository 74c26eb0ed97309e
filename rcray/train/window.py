"""A window: the pairs one set of statistics is taken over, what is decided for them, and what is read of a step.

On a device everything stays there until it is read. The published calibration reads a window's evidence as one vector
before the backward goes on; all else is read once, at the end of the step, together with the gradient's norm.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from rcray.calibration import Calibrator, Reduce, observe
from rcray.calibration.band import from_products, incentive_sums, means_of, score_products, statistics
from rcray.calibration.scores import Products, SideScores
from rcray.objectives.base import Incentives
from rcray.train.micro import Recorded
from rcray.train.record import Decision


@dataclass
class Window:
    """Sums over the micro-batches of one window, on this worker."""

    pairs: int  # over all workers
    checks_sketch: bool = False
    incentives: list[Incentives] = field(default_factory=list)
    scores: SideScores = field(default_factory=lambda: SideScores([], []))
    products: Products | None = None  # in place of the sums, where this worker's one micro-batch is the window
    full: SideScores = field(default_factory=lambda: SideScores([], []))  # over all parameters
    exact: SideScores = field(default_factory=lambda: SideScores([], []))  # what a sketch stands for
    recorded: list[Recorded] = field(default_factory=list)  # of each micro-batch
    tokens: list[int] = field(default_factory=lambda: [0, 0])  # real, computed
    evidence: Tensor | None = None  # what is decided by, on the device
    decision: Decision | None = None

    @property
    def made(self) -> Decision:
        """The decision, once it is made."""
        assert self.decision is not None
        return self.decision

    def close(self, reduce: Reduce | None) -> None:
        """Makes one vector of the evidence, incentives of every worker and products of the scores; frees the scores."""
        if self.products is not None:
            products = [self.products.values]
        else:
            products = [score_products(self.scores.w, self.scores.l, reduce)]
        products += [score_products(other.w, other.l, reduce) for other in (self.full, self.exact) if other.w]
        self.evidence = torch.cat([incentive_sums(self.incentives, reduce).flatten(), *products])
        self.scores, self.products = SideScores([], []), None

    def decide(
        self, calibrator: object, workers: int, *, guarding: bool, numbers: Sequence[float] | None = None
    ) -> Decision:
        """The decision, made once; `numbers`: the evidence, where that was read already."""
        if self.decision is not None:
            return self.decision
        assert self.evidence is not None
        numbers = numbers or self.evidence.tolist()
        means, rest = means_of([numbers[5 * i : 5 * i + 5] for i in range(workers)]), numbers[5 * workers :]
        seen = [statistics(*means, from_products(rest[i : i + 3], self.pairs)) for i in range(0, len(rest), 3)]
        others = iter(seen[1:])
        decision = calibrator.update(seen[0]) if isinstance(calibrator, Calibrator) else observe(seen[0])
        if guarding:  # back to the objective's own ratio, if calibration weighs the winner less
            decision = replace(decision, log_alpha=max(decision.log_alpha, 0.0))
        full, exact = (next(others) if other.w else None for other in (self.full, self.exact))
        self.decision = Decision(decision, full=full, exact=exact)
        return self.decision


@dataclass(frozen=True)
class StepNumbers:
    """What is read of a step."""

    norm: float
    sums: list[float]  # as in Recorded, over the pairs of all workers
    real_tokens: float
    computed_tokens: float


def read_step(
    windows: Sequence[Window],
    norm: Tensor,
    step: int,
    decide: Callable[[Window, Sequence[float]], Decision],
    reduce: Reduce | None,
) -> StepNumbers:
    """The one wait of a step: gradient norm, sums over its pairs, tokens, and what is not decided yet.

    Raises:
        DegenerateRunError: the loss of a pair is not finite.
    """
    recorded = [part for window in windows for part in window.recorded]
    total = sum((part.sums for part in recorded[1:]), recorded[0].sums)
    tokens = [total.new_full((), sum(window.tokens[i] for window in windows)) for i in (0, 1)]
    shared = torch.cat([total, torch.stack(tokens)])
    shared = shared if reduce is None else reduce.sum(shared)
    undecided = [(w, w.evidence) for w in windows if w.decision is None and w.evidence is not None]
    losses = torch.stack([part.sums[0] for part in recorded])
    found = torch.cat([norm.detach().reshape(1).double(), shared, losses, *(e for _, e in undecided)]).tolist()
    for part, loss in zip(recorded, found[9:], strict=False):
        if not math.isfinite(loss):
            raise part.broken(step)
    at = 9 + len(recorded)
    for window, evidence in undecided:
        decide(window, found[at : at + len(evidence)])
        at += len(evidence)
    return StepNumbers(found[0], found[1:7], found[7], found[8])
