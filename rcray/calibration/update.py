"""The band of the update that is really made, and the calibration that steers by it.

Legend
  u          the optimizer's own update of everything trained: its scaling, momentum and clipping are in it
  G_w, G_l   branch gradients of a batch, the part of the loss gradient that flows through one side: the gradient of a
             calibrated step is alpha G_w + G_l / alpha
  S_w, S_l   mean scores of a look: pairs that the batch does not contain and that were not trained on yet
  move       (dz_w, dz_l) = (<S_w, u>, <S_l, u>): how the likelihoods of such pairs move, to first order
  true band  the values of log alpha between dz_w = 0 and dz_l = 0
  q          c z_w + (1 - c) z_l with c the loser's share: while q stays where it is, a margin that grows by 1 takes c
             from the loser and gives 1 - c to the winner
  drift      how far the likelihoods of fresh pairs are from where training began

The paper's band is this one for a single pair, plain gradient descent and scores at one layer. Here all vectors are
flat and lie over the same coordinates: all that are trained, or a fixed random share of them.
"""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from rcray.calibration.band import Calibration
from rcray.calibration.preview import AdamPreview, SgdPreview
from rcray.config.calibration import LOSER_SHARE, SHORT_RUN
from rcray.objectives.base import Number, choose, larger, log, smaller, sqrt
from rcray.records.columns import Pathway, pathway_of

logger = logging.getLogger(__name__)

HORIZON = 20.0  # steps in which drift is undone: twice what Adam's momentum remembers
DRIFT_MEMORY = 64.0  # pairs
RESPONSE_WEIGHT = 0.15  # of a new look in the average
#: Bound of |log alpha|: past it one side is 400 times as heavy as the other, and no band was ever seen there.
WIDEST_LOG_ALPHA = 3.0
#: Why a factor stayed as it was.
NO_LOOK, NOT_APART = "no look yet", "the branches do not pull apart"
_EXACT = WIDEST_LOG_ALPHA / 2**14  # of an edge, to either side: 2e-4
_MOST_STEPS = 15  # until an edge is known so well
_ASIDE = 1 / 30  # of an interval's square: how far from the straight line's zero is looked, towards the middle
_CLIP_EPSILON = 1e-6  # torch's own


@dataclass(frozen=True)
class Move:
    """Change of the mean likelihoods of both sides, in nats; a number may still be on the device."""

    w: Number
    l: Number  # noqa: E741  the paper's letter

    @property
    def pathway(self) -> Pathway:
        """The pathway it follows."""
        return pathway_of(self.w, self.l)

    def of(self, loser_share: float) -> Number:
        """The change of q."""
        return loser_share * self.w + (1 - loser_share) * self.l


@dataclass(frozen=True)
class Response:
    """What each side's branch does to each likelihood in one step, in nats at alpha = 1."""

    ww: float  # to z_w by G_w
    wl: float  # to z_w by G_l
    lw: float  # to z_l by G_w
    ll: float

    def values(self) -> tuple[float, float, float, float]:
        """All four."""
        return self.ww, self.wl, self.lw, self.ll

    def of(self, loser_share: float) -> tuple[float, float]:
        """(b_w, b_l) with dq = alpha b_w - b_l / alpha."""
        c = loser_share
        return c * self.ww + (1 - c) * self.lw, -(c * self.wl + (1 - c) * self.ll)


@dataclass(frozen=True)
class Foreseen:
    """The coming update as a function of alpha, seen by the scores of a look."""

    score_w: Tensor
    score_l: Tensor
    branch_w: Tensor
    branch_l: Tensor
    preview: AdamPreview | SgdPreview
    clip_norm: float
    total: Callable[[Tensor], Tensor]  # sums over workers that hold parts, and makes up for coordinates left out
    rest: Tensor | None = None  # of the gradient: what the branches, if they are those of some pairs, do not explain

    def completed(self, gradient: Tensor, log_alpha: float) -> "Foreseen":
        """With the gradient that all pairs made at this factor, the branches being an estimate from some of them."""
        return replace(self, rest=gradient.sub(self._joined(log_alpha)))

    def _joined(self, log_alpha: float | Tensor) -> Tensor:
        if isinstance(log_alpha, Tensor):
            gradient = self.branch_w * log_alpha.exp() + self.branch_l * (-log_alpha).exp()
        else:
            gradient = self.branch_w.mul(math.exp(log_alpha)).add_(self.branch_l, alpha=math.exp(-log_alpha))
        return gradient if self.rest is None else gradient.add_(self.rest)

    def gradient(self, log_alpha: float | Tensor) -> tuple[Tensor, Tensor]:
        """The clipped gradient and what clipping multiplied it with; like all that ends in tensors, waits for none."""
        gradient = self._joined(log_alpha)
        norm = self.total(torch.dot(gradient, gradient).double()).sqrt()
        clipped = self._clipping(norm)
        return gradient.mul_(clipped), clipped

    def clipped_with(self, log_alpha: float, norm: float) -> tuple[Tensor, Tensor]:
        """`gradient`, clipped by the norm of a whole step's, where the branches are those of a few of its pairs.

        Theirs is longer and would be clipped more than the step is. 0: the norm is not known.
        """
        gradient, clipped = self.gradient(log_alpha)
        if not norm:
            return gradient, clipped
        by_all = self._clipping(torch.full_like(clipped, norm))
        return gradient.mul_(by_all / clipped), by_all

    def _clipping(self, norm: Tensor) -> Tensor:
        """What a gradient of this norm is multiplied with."""
        return (self.clip_norm / (norm + _CLIP_EPSILON)).clamp(max=1.0)

    def moves(self, log_alpha: float | Tensor) -> Tensor:
        """[2] of the look's likelihoods, under the update made with this factor."""
        update = self.preview.update(self.gradient(log_alpha)[0])
        return products(self.score_w, self.score_l, update, self.total)

    def judged(self, log_alpha: float) -> Tensor:
        """[6] for the record: the move, the batch's own products with the update, and the edges of the true band."""
        update = self.preview.update(self.gradient(log_alpha)[0])
        move = products(self.score_w, self.score_l, update, self.total)
        own = products(self.branch_w, self.branch_l, update, self.total)
        return torch.cat([move, own, self.edges()])

    def responses(self, log_alpha: float, norm: float = 0.0) -> Tensor:
        """[4] of the look's likelihoods to each branch, clipped and scaled as at this factor; see `Response`.

        `norm`: see `clipped_with`.
        """
        gradient, clipped = self.clipped_with(log_alpha, norm)
        scale = self.preview.per_gradient(gradient).mul_(clipped)
        by_w, by_l = scale * self.branch_w, scale * self.branch_l
        seen = [s @ b for s in (self.score_w, self.score_l) for b in (by_w, by_l)]
        return self.total(torch.stack(seen).double())

    def response(self, log_alpha: float) -> Response:
        """The same, read."""
        return Response(*self.responses(log_alpha).tolist())

    def edges(self) -> Tensor:
        """[2] the true band in log alpha: below it the winner falls, above it the loser rises; +-inf: that is open.

        Interpolated, but so near to the middle that halving would save one step at most (Oliveira and Takahashi 2020).
        """
        high = torch.full((2,), WIDEST_LOG_ALPHA, dtype=torch.float64, device=self.score_w.device)
        low, at_low, at_high = -high, self.moves(-WIDEST_LOG_ALPHA), self.moves(WIDEST_LOG_ALPHA)
        falls_nowhere, rises_nowhere = at_low > 0, at_high < 0
        for left in reversed(range(_MOST_STEPS)):
            middle, half = (low + high) / 2, (high - low) / 2
            if high.device.type == "cpu" and bool((half <= _EXACT).all()):
                break
            straight = low - at_low * (high - low) / (at_high - at_low)
            straight = torch.where(straight.isfinite(), straight.clamp(low, high), middle)
            aside = (straight - middle).abs() - _ASIDE * (high - low) ** 2  # on the middle's side of it
            room = (_EXACT * 2.0 ** (left + 1) - half).clamp(min=0)
            tried = middle + torch.sign(straight - middle) * aside.clamp(min=0).minimum(room)
            seen = torch.stack([self.moves(at)[side] for side, at in enumerate(tried)])
            above = seen > 0
            low, at_low = torch.where(above, low, tried), torch.where(above, at_low, seen)
            high, at_high = torch.where(above, tried, high), torch.where(above, seen, at_high)
        edges = torch.where(rises_nowhere, math.inf, (low + high) / 2)
        return torch.where(falls_nowhere, -math.inf, edges)


def own_move(seen: Sequence[float], weight_w: float, weight_l: float) -> Move:
    """Of the batch itself from its products with the update: each pair weighs what its incentive weighs.

    `weight` is the mean incentive of a side.
    """
    by_w, by_l = seen
    return Move(-by_w / weight_w if weight_w else math.nan, by_l / weight_l if weight_l else math.nan)


def products(score_w: Tensor, score_l: Tensor, update: Tensor, total: Callable[[Tensor], Tensor]) -> Tensor:
    """[2] the move under an update, to first order, where it was computed."""
    return total(torch.stack([score_w @ update, score_l @ update]).double())


@dataclass
class Drift:
    """How far fresh pairs are from where training began: an average that forgets pairs, not steps."""

    w: float = 0.0
    l: float = 0.0  # noqa: E741
    weight: float = 0.0

    def add(self, pairs: int, mean: Move) -> None:
        """Takes in the mean drift of pairs that were not trained on yet; what is no number would never leave it."""
        if not math.isfinite(mean.w + mean.l):
            return
        keep = math.exp(-pairs / DRIFT_MEMORY)
        self.w, self.l, self.weight = (
            keep * old + (1 - keep) * new for old, new in ((self.w, mean.w), (self.l, mean.l), (self.weight, 1.0))
        )

    @property
    def mean(self) -> Move:
        """The average; zero before the first pair."""
        return Move(self.w / self.weight, self.l / self.weight) if self.weight else Move(0.0, 0.0)


def horizon_of(steps: int | None) -> float:
    """Steps in which drift is undone, in a run of so many; None: it is not known how many."""
    return HORIZON if steps is None else min(HORIZON, max(1.0, SHORT_RUN * steps))


@dataclass
class Guard:
    """Watches how far the winners of fresh pairs fall: calibration steps back, or it is only said."""

    limit: float  # nats, in the unit of the run's likelihoods
    acts: bool = True
    says: bool = True  # once; on one worker

    def holds(self, drift: Move) -> bool:
        """Whether calibration steps back for the winners, who fell this far."""
        passed = drift.w < -self.limit
        if passed and self.says and not self.acts:
            self.says = False
            logger.warning(
                "the chosen answers of pairs not yet trained on fell by %.1f nats, past %.1f: the winner is being lost "
                "(calibration.kind update keeps it; calibration.guard steps back from there)",
                -drift.w,
                self.limit,
            )
        return passed and self.acts


class UpdateCalibrator:
    """Holds q where training began, by the update that is really made.

    At every step the drift of q is to be undone within `horizon` steps, by momentum and gradient together:

        f + alpha b_w - b_l / alpha = -drift(q) / horizon

    f is what the optimizer's memory does to q whatever the gradient, b_w and b_l what the two branches do to it,
    averaged over looks. The horizon is HORIZON, or a quarter of a run (`steps`) that is shorter than four of them.
    All of it goes with the learning rate: b_w and b_l are kept as they are at the highest one so far, and at a lower
    one the horizon is longer in proportion.
    """

    def __init__(self, loser_share: float = LOSER_SHARE, steps: int | None = None):
        self.loser_share = loser_share
        self.horizon = horizon_of(steps)
        self.log_alpha: Number = 0.0
        self.looks = 0
        self.response: Response | None = None  # averaged, of a gradient that lasts, at the highest rate
        self.highest_rate = 0.0
        self.norm = 0.0  # of the last step's whole gradient, before it was clipped; 0: there was none
        self.stays = ""  # why the last factor stayed, where no other was to be had

    def look(self, foreseen: Foreseen, seen: Response | None = None) -> None:
        """Takes in what a look showed; a gradient that overflowed shows no response.

        `seen`: its response at the factor of the last step, where that was read already.
        """
        seen = seen or foreseen.response(self.log_alpha)
        pace = self._pace(foreseen.preview.rate)
        if not pace or not all(map(math.isfinite, seen.values())):
            return
        self.looks += 1
        weight = max(1 / self.looks, RESPONSE_WEIGHT)
        settles = foreseen.preview.settles / pace
        old = self.response or Response(0.0, 0.0, 0.0, 0.0)
        self.response = Response(
            *(
                (1 - weight) * before + weight * settles * now
                for before, now in zip(old.values(), seen.values(), strict=True)
            )
        )

    def decide(
        self, memory: Move | None, preview: AdamPreview | SgdPreview, drift: Move, *, guarding: bool = False
    ) -> Number:
        """log alpha of the coming step; the last one where the branches do not pull q apart, or nothing is known yet.

        `memory` is the move that the optimizer's memory alone will make, of which `preview` is; where it is on the
        device, so is what is decided. `guarding`: the winner fell too far; q is the winner alone until it is back.
        """
        pace = self._pace(preview.rate)
        if self.response is None or memory is None:
            self.stays = NO_LOOK
            return self.log_alpha
        share = 1.0 if guarding else self.loser_share
        wanted = memory.of(share) + drift.of(share) / self.horizon * pace
        b_w, b_l = (b / preview.settles * pace for b in self.response.of(share))
        self.stays = "" if b_w > 0 and b_l > 0 else NOT_APART
        if not self.stays:
            self.log_alpha = choose(abs(wanted) < math.inf, _bounded(_solution(wanted, b_w, b_l)), self.log_alpha)
        return self.log_alpha

    def decided(self, observed: Calibration) -> Calibration:
        """A batch's record with the factor that it was given, once that is read."""
        log_alpha = float(self.log_alpha)
        held_back = abs(log_alpha) >= WIDEST_LOG_ALPHA
        return replace(observed, log_alpha=log_alpha, skipped=self.stays or None, clipped=held_back)

    def _pace(self, rate: float) -> float:
        """A learning rate as a share of the highest so far; a higher one moves what is kept along."""
        if rate > self.highest_rate:
            if self.response is not None and self.highest_rate:
                self.response = Response(*(rate / self.highest_rate * b for b in self.response.values()))
            self.highest_rate = rate
        return rate / self.highest_rate if self.highest_rate else 0.0

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run must know, exact in JSON."""
        return {
            "log_alpha": float(self.log_alpha),
            "looks": self.looks,
            "response": list(self.response.values()) if self.response else None,
            "highest_rate": self.highest_rate,
            "norm": self.norm,
        }

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Restores what `state_dict` gave."""
        if state is None:
            return
        self.log_alpha, self.looks = float(state["log_alpha"]), int(state["looks"])
        self.response = Response(*state["response"]) if state["response"] else None
        # Not in checkpoints of before: the next ones are taken.
        self.highest_rate, self.norm = float(state.get("highest_rate", 0.0)), float(state.get("norm", 0.0))


def _solution(wanted: Number, b_w: float, b_l: float) -> Number:
    """log alpha with wanted + alpha b_w - b_l / alpha = 0; of both forms of the root the one that does not cancel."""
    far = sqrt(wanted**2 + 4 * b_w * b_l) + abs(wanted)
    return log(choose(wanted > 0, 2 * b_l / far, far / (2 * b_w)))


def _bounded(log_alpha: Number) -> Number:
    return smaller(larger(log_alpha, -WIDEST_LOG_ALPHA), WIDEST_LOG_ALPHA)
