"""Calibration by the update that is really made, for a loop of one's own: to it the optimizer is given.

    steering = UpdateSteering(optimizer)
    result = calibrate(loss_fn, z_w, z_l, calibrator=steering)
    result.loss.mean().backward()

There are no pairs to look at but the batches themselves, so each is looked at before it is trained on: its mean scores,
by two extra gradients, judge the optimizer's memory, and those of the last batch that was looked at judge what the two
branches of this one will do. No batch judges a gradient of its own. Between two looks nothing is differentiated.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rcray.calibration.preview import AdamPreview, Coordinates, SgdPreview, is_sharded, preview_of
from rcray.calibration.scores import Reduce, branch_gradients
from rcray.calibration.update import (
    Drift,
    Foreseen,
    Guard,
    Move,
    Response,
    UpdateCalibrator,
    horizon_of,
    products,
)
from rcray.config.calibration import LOOK_EVERY, LOSER_SHARE, first_looks, looks_at
from rcray.errors import ConfigError
from rcray.objectives import Objective, PairLogps
from rcray.objectives.base import PairLoss, incentives


@dataclass(frozen=True)
class Steered:
    """What was decided for a step."""

    log_alpha: float
    drift: Move  # of pairs before they are trained on, since training began
    looked: bool  # whether this batch was looked at
    guarding: bool  # whether the winner fell past the guard

    @property
    def alpha(self) -> float:
        """The factor of the winner's gradient; the loser's is its inverse."""
        return math.exp(self.log_alpha)


class UpdateSteering:
    """Keeps c z_w + (1 - c) z_l where training began, c the loser's share; see `UpdateCalibrator`.

    Args:
        optimizer: torch's AdamW or SGD over everything that is trained; may be given later, by `attach`.
        loser_share: what of the margin's growth the loser gives; 1: the winner stays where it is.
        look_every: optimizer steps between two looks, which cost two gradients each; twice as many late in a long run.
        clip_norm: the norm to which your loop clips the gradient.
        guard: nats that the winners may fall before they are all that counts, until they are back; None: any.
        steps: that the optimizer will make, where it is known: a short run undoes its drift before it ends.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        loser_share: float = LOSER_SHARE,
        look_every: int = LOOK_EVERY,
        clip_norm: float = math.inf,
        guard: float | None = None,
        steps: int | None = None,
    ):
        if look_every < 1:
            raise ConfigError(f"UpdateSteering: look_every {look_every} takes no looks", fix="use 1 or more, as 10")
        self.optimizer: torch.optim.Optimizer | None = None
        self.parameters: list[nn.Parameter] = []
        self.rule = UpdateCalibrator(loser_share, steps)
        self.look_every, self.clip_norm = look_every, clip_norm
        self.guard = None if guard is None else Guard(guard)
        self.first_looks = _first_looks(steps)
        self.steps = 0  # that the optimizer made
        self.realised = Drift()  # against reference likelihoods, where they are given
        self.foreseen = Move(0.0, 0.0)  # to first order, added up from look to look, where they are not
        self.last: dict[str, Tensor] = {}  # weights, scores and gradient of the last look
        self.last_step = 0
        self.report: Steered | None = None  # of the coming step, once it is decided
        self.micro_batches = 0  # of the coming step, so far
        self._share = 1.0  # of a step's gradient that comes from one micro-batch
        self._norm: float | Tensor = 0.0  # of the last step's, before it was clipped; 0: not told
        if optimizer is not None:
            self.attach(optimizer)

    def expect(self, steps: int) -> None:
        """Takes how many steps the optimizer will make, before it makes the first."""
        self.rule.horizon = horizon_of(steps)
        self.first_looks = _first_looks(steps)

    def attach(self, optimizer: torch.optim.Optimizer) -> None:
        """Takes the optimizer, and counts its steps from now on."""
        if optimizer is self.optimizer:
            return
        if any(is_sharded(p) for group in optimizer.param_groups for p in group["params"]):
            raise ConfigError(
                "UpdateSteering reads whole parameters, and these are sharded",
                fix="use `rcray train` with execution.parallel: fsdp, or train without FSDP, or steer by `Calibrator`",
            )
        self.optimizer = optimizer
        every = [p for group in optimizer.param_groups for p in group["params"]]
        self.parameters = [p for p in every if p.requires_grad]
        self.coordinates = Coordinates(self.parameters, 0, None)
        self._preview()  # refuses at once what cannot be read
        self._place()
        optimizer.register_step_post_hook(lambda *_: self._stepped())

    def _place(self) -> None:
        """Brings what a checkpoint held to where the model is."""
        device = self.parameters[0].device
        self.last = {name: tensor.to(device) for name, tensor in self.last.items()}

    def _stepped(self) -> None:
        self.steps += 1
        self._share = 1 / max(self.micro_batches, 1)
        self.report, self.micro_batches = None, 0

    def clipped(self, norm: float | Tensor) -> None:
        """Takes the norm of a step's gradient before your loop clipped it, as `clip_grad_norm_` returns it.

        Where gradients are accumulated a look sees the first micro-batch alone, whose gradient is longer: without this
        it is taken to be clipped by its own norm, and the branches seem to pull less than they do.
        """
        self._norm = norm

    @property
    def _step_norm(self) -> float:
        """Of the last step, where it was more than one micro-batch and its norm was told; else 0."""
        return float(self._norm) if self._share < 1 else 0.0

    @property
    def drift(self) -> Move:
        """How far pairs are from where training began, before they are trained on."""
        return self.realised.mean if self.realised.weight else self.foreseen

    def steer(self, loss: Objective | PairLoss, pairs: PairLogps, reduce: Reduce | None = None) -> Steered:
        """log alpha of the coming step, from its first micro-batch; the others get the same."""
        self.micro_batches += 1
        if self.report is not None:
            return self.report
        if self.optimizer is None:
            raise ConfigError("UpdateSteering has no optimizer to steer by", fix="UpdateSteering(optimizer)")
        looks = looks_at(self.steps, self.steps, self.first_looks, self.look_every)
        count = _count(pairs, reduce)
        asked = {"pairs": count.reshape(1)} if isinstance(count, Tensor) else {}
        if pairs.ref_w is not None and pairs.ref_l is not None:
            asked["ahead"] = _sums(pairs.zt_w.detach(), pairs.zt_l.detach(), reduce) / count
        coming = self._look(loss, pairs, count, reduce, asked) if looks else None
        preview = coming.preview if coming else self._between()
        kept, total = preview.kept(), self.coordinates.total
        asked["memory"] = products(self.last["score_w"], self.last["score_l"], kept, total)
        seen = _read(asked)
        if "ahead" in seen:
            self.realised.add(int(seen["pairs"][0]) if "pairs" in seen else len(pairs.z_w), Move(*seen["ahead"]))
        if "way" in seen and math.isfinite(sum(seen["way"])):  # as a drift that is no number is left out
            self.foreseen = Move(self.foreseen.w + seen["way"][0], self.foreseen.l + seen["way"][1])
        if coming and "response" in seen:
            self.rule.look(coming, Response(*seen["response"]))
        guarding = self.guard is not None and self.guard.holds(self.drift)
        log_alpha = self.rule.decide(Move(*seen["memory"]), preview, self.drift, guarding=guarding)
        if coming:
            self.last["gradient"], self.last_step = coming.clipped_with(log_alpha, self._step_norm)[0], self.steps
        self.report = Steered(log_alpha, self.drift, looks, guarding)
        return self.report

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run must know; numbers and tensors, for `torch.save` beside the optimizer's own."""
        return {
            "rule": self.rule.state_dict(),
            "steps": self.steps,
            "last_step": self.last_step,
            "share": self._share,
            "norm": float(self._norm),
            "realised": [self.realised.w, self.realised.l, self.realised.weight],
            "foreseen": [self.foreseen.w, self.foreseen.l],
            "last": self.last,
            "guard": self.guard.limit if self.guard else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores what `state_dict` gave."""
        self.rule.load_state_dict(state["rule"])
        self.steps, self.last_step, self._share = state["steps"], state["last_step"], state["share"]
        self._norm = state.get("norm", 0.0)
        self.realised, self.foreseen = Drift(*state["realised"]), Move(*state["foreseen"])
        self.last = dict(state["last"])
        if self.guard is None and state.get("guard") is not None:
            self.guard = Guard(state["guard"])
        self.report, self.micro_batches = None, 0
        if self.optimizer is not None:
            self._place()

    def _look(
        self,
        loss: Objective | PairLoss,
        pairs: PairLogps,
        count: float | Tensor,
        reduce: Reduce | None,
        asked: dict[str, Tensor],
    ) -> Foreseen:
        """The batch before it is trained on; the last one that was looked at judges its branches, which is `asked`."""
        score_w, score_l = (self._score(z, count, reduce) for z in (pairs.z_w, pairs.z_l))
        weights, judge = self.coordinates.flat(self.parameters), self.last
        if judge:
            asked["way"] = self._way(score_w, score_l, weights - judge["weights"])
        self.last = {"weights": weights, "score_w": score_w, "score_l": score_l}
        per_pair = incentives(loss, pairs)
        d_w, d_l = _sums(per_pair.d_w, per_pair.d_l, reduce) / count
        # In a branch all pairs weigh the same: so one gradient a side gives both scores and branches.
        coming = Foreseen(
            judge.get("score_w", score_w),
            judge.get("score_l", score_l),
            score_w * -d_w,
            score_l * d_l,
            self._preview(),
            self.clip_norm,
            self.coordinates.total,
        )
        if judge:
            asked["response"] = coming.responses(float(self.rule.log_alpha), self._step_norm)
        return coming

    def _way(self, score_w: Tensor, score_l: Tensor, way: Tensor) -> Tensor:
        """[2] the move since the last look, by the mean of both ends; each leaves out what its own batch moved."""
        own = self._preview().traces(self.last["gradient"] * self._share, self.steps - self.last_step)
        total = self.coordinates.total
        before = products(self.last["score_w"], self.last["score_l"], way - own, total)
        return (products(score_w, score_l, way, total) + before) / 2

    def _between(self) -> AdamPreview | SgdPreview:
        """The memory without the gradient of the batch that judges it, which was trained on since."""
        return self._preview().without(self.last["gradient"] * self._share, self.steps - self.last_step)

    def _score(self, z: Tensor, count: float | Tensor, reduce: Reduce | None) -> Tensor:
        """Gradient of the mean likelihood of a side, over all workers."""
        seed = torch.ones_like(z) / count
        flat = self.coordinates.flat(branch_gradients(z, self.parameters, seed, keep_graph=True))
        return flat if reduce is None else reduce.sum(flat)

    def _preview(self) -> AdamPreview | SgdPreview:
        assert self.optimizer is not None
        preview = preview_of(self.optimizer, self.parameters, self.coordinates)
        if preview is None:
            raise ConfigError(
                f"UpdateSteering cannot read the memory of {type(self.optimizer).__name__} as it is set",
                fix="use torch.optim.AdamW or SGD, plain; or steer by `Calibrator`",
            )
        return preview


def _first_looks(steps: int | None) -> int:
    """Two at least: a batch is judged by the one that was looked at before it."""
    return max(2, first_looks(steps))


def _count(pairs: PairLogps, reduce: Reduce | None) -> float | Tensor:
    """Pairs over all workers; where there are several, on the device."""
    here = float(len(pairs.z_w))
    return here if reduce is None else reduce.sum(pairs.z_w.new_full((), here, dtype=torch.float64))


def _sums(w: Tensor, l: Tensor, reduce: Reduce | None) -> Tensor:  # noqa: E741
    """[2] of both sides, over all workers."""
    here = torch.stack([w.sum(), l.sum()]).double()
    return here if reduce is None else reduce.sum(here)


def _read(asked: dict[str, Tensor]) -> dict[str, list[float]]:
    """All of it in one wait."""
    numbers = iter(torch.cat([tensor.double() for tensor in asked.values()]).tolist())
    return {name: [next(numbers) for _ in range(len(tensor))] for name, tensor in asked.items()}
