"""One optimizer step: likelihoods, incentives and scores, calibration, backward, clip, update.

Legend
  window     the pairs one set of statistics is taken over: a micro-batch, or the whole step
  seed       dL/dz per pair, the start of the backward; the winner's is scaled by alpha, the loser's by 1/alpha
  branch     the gradient that flows through one side alone; chosen and rejected are forwarded apart, so the two
             branches cost one backward together, and alpha may be known only after both
  look       scores of pairs not yet trained on, every few steps: they judge the updates made and the one to come

All sums are divided by the pairs of the whole step over all workers: 8x1 = 1x8 and one worker = two. Numbers stay
on the device until they are needed, see `read_step`. How a micro-batch goes through the model, and how scores are read
off, is in micro.py; looks are in look.py, the record in record.py.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import record_function

from rcray.calibration import Calibrator, Reduce, observe
from rcray.calibration.band import calibration_of
from rcray.calibration.scores import Products, SideScores
from rcray.calibration.update import AdamPreview, Drift, Guard, Move, SgdPreview, UpdateCalibrator
from rcray.data.batch import Batch
from rcray.objectives.base import Number, PairLogps, exp, incentives
from rcray.train.extra_gradients import ExtraGradients
from rcray.train.look import Branches, Fresh, Joined, Look, Looks
from rcray.train.micro import CutPart, Policy, ReadOff, Window, add_gradients, of_both_sides, record_of
from rcray.train.parallel import Workers
from rcray.train.parts import HeadPart, Scoring, WatchedPart
from rcray.train.profile import PHASE
from rcray.train.record import Decision, StepOutcome, judge_look, not_finite
from rcray.train.scaling import OVERFLOW, LossScaling

Micro = ReadOff | ExtraGradients


@dataclass
class Update:
    """What is made of the gradient."""

    optimizer: torch.optim.Optimizer
    scheduler: Any
    batch_size: int  # pairs per step, over all workers
    clip_norm: float
    clip: Callable[[Sequence[nn.Parameter], float], Tensor] = torch.nn.utils.clip_grad_norm_
    scaling: LossScaling | None = None  # where something is computed in float16

    @cached_property
    def parameters(self) -> list[nn.Parameter]:
        """What is trained, as the optimizer holds it: between forwards a sharded model may show other tensors."""
        return [p for group in self.optimizer.param_groups for p in group["params"]]


@dataclass
class StepState:
    """What an optimizer step works on."""

    policy: Policy
    scoring: Scoring
    update: Update
    calibrator: Calibrator | UpdateCalibrator | None = None  # None: the band is recorded, nothing is rescaled
    workers: Workers = field(default_factory=Workers)
    looks: Looks | None = None
    drift: Drift = field(default_factory=Drift)  # of pairs not yet trained on, since training began
    guard: Guard | None = None

    @property
    def guarding(self) -> bool:
        """Whether the winner fell past the guard, and calibration steps back."""
        return self.guard is not None and self.guard.holds(self.drift.mean)

    def steer(self, rule: UpdateCalibrator, memory: Move | None, preview: AdamPreview | SgdPreview) -> Number:
        """log alpha by the update to come."""
        return rule.decide(memory, preview, self.drift.mean, guarding=self.guarding)

    def decide(self, window: Window, evidence: Sequence[float] | None = None) -> Decision:
        """Decides for a window, once; its evidence is read off the device unless it is given."""
        if window.decision is None:
            stats, *others = window.statistics(evidence)
            if evidence and window.decided_there:
                decision = calibration_of(stats, window.factor(evidence))
            else:
                decision = self.calibrator.update(stats) if isinstance(self.calibrator, Calibrator) else observe(stats)
            if self.guarding:  # back to the objective's own ratio, if calibration weighs the winner less
                decision = replace(decision, log_alpha=max(decision.log_alpha, 0.0))
            full = others.pop(0) if window.full.w else None
            window.decision = Decision(decision, full=full, exact=others.pop(0) if window.exact.w else None)
        return window.decision


def optimizer_step(state: StepState, batches: Sequence[Batch], step: int, fresh: Fresh | None = None) -> StepOutcome:
    """Makes one update from the micro-batches of this worker; with fresh pairs, it is judged by them."""
    started = time.perf_counter()
    update, scoring, workers = state.update, state.scoring, state.workers
    update.optimizer.zero_grad(set_to_none=True)
    look = _take_look(state, fresh)
    checks_sketch = bool(scoring.check_sketch_every) and (step - 1) % scoring.check_sketch_every == 0
    parts = [[b] for b in batches] if scoring.per_micro_batch else [list(batches)]
    windows = [Window(sum(len(b.index) for b in part) * workers.count, checks_sketch, workers.count) for part in parts]
    shown, share = look.shows([window.pairs for window in windows]) if look else (0, 0.0)
    branches: Branches = ([], [])
    for part, window in zip(parts[:shown], windows, strict=False):
        _backward(state, part, window, 0.0, branches)
    joined = _join_branches(state, look, branches, share) if look else None
    log_alpha = joined.log_alpha if joined else _factor_between_looks(state)
    for part, window in zip(parts[shown:], windows[shown:], strict=True):
        _backward(state, part, window, log_alpha, None)
    _finish_gradients(state, joined)
    between = [log_alpha.reshape(1)] if isinstance(log_alpha, Tensor) else []  # not read yet
    seen = joined.judged(update.parameters) if joined else between
    with record_function(PHASE + "clip"):
        clipped = update.clip(update.parameters, update.clip_norm)
    guarding = state.guarding
    numbers = read_step(windows, clipped, step, state.decide, workers.reduce, seen)
    decisions, norm, sums = [window.decided for window in windows], numbers.norm, numbers.sums
    judged = judge_look(joined.look, numbers.seen, decisions, shown) if joined else None
    log_alpha = numbers.seen[0] if between else log_alpha
    sound = update.scaling is None or update.scaling.settle(norm)
    if sound and not math.isfinite(norm):
        raise not_finite(step, norm, batches)
    rate = update.optimizer.param_groups[0]["lr"]
    with record_function(PHASE + "update"):
        if sound:
            update.optimizer.step()
    update.scheduler.step()
    fresh_w, fresh_l, fresh_pairs = sums[6:]
    if state.looks is not None and state.policy.reference is not None and fresh_pairs:  # the batch before its update
        state.drift.add(int(fresh_pairs), Move(fresh_w / fresh_pairs, fresh_l / fresh_pairs))
    if isinstance(state.calibrator, UpdateCalibrator):
        state.calibrator.log_alpha, state.calibrator.norm = log_alpha, norm if sound else 0.0  # both read by now
        decisions = [replace(d, calibration=state.calibrator.decided(d.calibration)) for d in decisions]
    return StepOutcome(
        decisions=decisions,
        sums=sums[:6],
        pairs=update.batch_size,
        grad_norm=norm,
        learning_rate=rate,
        padding=1 - numbers.real_tokens / numbers.computed_tokens,
        guarding=guarding,
        judged=judged,
        lost="" if sound else OVERFLOW,
        seconds=time.perf_counter() - started,
    )


def _take_look(state: StepState, fresh: Fresh | None) -> Look | None:
    """Scores of fresh pairs before anything else happens to the weights."""
    if fresh is None or state.looks is None:
        return None
    with record_function(PHASE + "look"):
        look = state.looks.take(fresh)
        if isinstance(state.calibrator, UpdateCalibrator):
            return look  # read when the branches are known
        look = state.looks.settled(look)
    state.drift.add(look.pairs, look.drift)
    return look


def _factor_between_looks(state: StepState) -> Number:
    """log alpha that is known before the batch is, not read yet; 0 where it is left to the batch's own statistics."""
    if not isinstance(state.calibrator, UpdateCalibrator) or state.looks is None:
        return 0.0
    preview = state.looks.preview()
    assert preview is not None  # refused in the configuration
    return state.steer(state.calibrator, state.looks.memory(preview), preview)


def _join_branches(state: StepState, look: Look, branches: Branches, share: float) -> Joined:
    """Decides by what a look says of the branches of so many pairs of the step, and makes one gradient of them."""
    looks, rule = state.looks, state.calibrator
    assert looks is not None
    with record_function(PHASE + "look"):
        for side in branches:
            _sum_over_workers(state, side)
        if not isinstance(rule, UpdateCalibrator):
            return looks.join(look, branches, share, 0.0, looks.foresee(look, branches, share))
        asked = looks.ask(look, branches, share, rule)
        state.drift.add(asked.look.pairs, asked.look.drift)
        rule.look(asked.foreseen, asked.response)
        log_alpha = state.steer(rule, asked.memory, asked.foreseen.preview)
        return looks.join(asked.look, branches, share, log_alpha, asked.foreseen)


def _finish_gradients(state: StepState, joined: Joined | None) -> None:
    """Sums over the workers what was walked in one go, and adds what a look joined."""
    parameters = state.update.parameters
    _sum_over_workers(state, [p.grad for p in parameters if p.grad is not None])
    if joined is not None:
        for p, gradient in zip(parameters, joined.gradients, strict=True):
            p.grad = gradient if p.grad is None else gradient.add_(p.grad)


def _sum_over_workers(state: StepState, gradients: Sequence[Tensor]) -> None:
    if state.update.scaling:
        state.update.scaling.unscale(gradients)
    if state.workers.sum_gradients:
        with record_function(PHASE + "workers"):
            state.workers.sum_gradients(gradients)


def _backward(
    state: StepState, batches: Sequence[Batch], window: Window, log_alpha: Number, branches: Branches | None
) -> None:
    """Adds a window's gradient to the parameters, or its parts to the branches of the step where those are given.

    Where alpha is known beforehand each micro-batch goes backward at once. With the published calibration it is known
    after the forward of a window's only micro-batch; over several, both branches are kept until the last.
    """
    published, parameters = isinstance(state.calibrator, Calibrator), state.update.parameters
    several = published and len(batches) > 1
    kept: Branches = ([], [])

    def go(micro: Micro, seed_w: Tensor, seed_l: Tensor) -> None:
        with record_function(PHASE + "backward"):
            if several or branches is not None:
                micro.branches(seed_w, seed_l, kept if branches is None else branches, parameters)
            else:
                micro.backward(seed_w, seed_l)

    up, down = exp(log_alpha), exp(-log_alpha)
    for batch in batches:
        micro = _forward(state, batch, window, apart=several or branches is not None)
        seed_w, seed_l = _seeds(state, batch, micro.pairs, window)
        if published or isinstance(micro, ExtraGradients):
            _add_scores(state.scoring, micro, window)
        if several or not published:
            go(micro, seed_w * up, seed_l * down)
        if not published and isinstance(micro, ReadOff):
            _add_scores(state.scoring, micro, window)
    window.close(state.workers.reduce)
    if not isinstance(state.calibrator, Calibrator):
        return
    there = not state.policy.on_cpu  # the factor stays on the device until the step is read
    alpha = window.alpha(state.calibrator, state.guarding) if there else state.decide(window).calibration.alpha
    if several and branches is None:
        for parameter, from_w, from_l in zip(parameters, *kept, strict=True):
            from_l = from_l.mul_(1 / alpha) if there else from_l  # as the argument of `add_` it would be read
            parameter.grad = from_w.mul_(alpha).add_(from_l, alpha=1 if there else 1 / alpha)
    elif several and branches is not None:
        for side, factor in zip(branches, (alpha, 1 / alpha), strict=True):
            for gradient in side:
                gradient.mul_(factor)
    else:
        go(micro, seed_w * alpha, seed_l / alpha)


def _forward(state: StepState, batch: Batch, window: Window, *, apart: bool) -> Micro:
    """Forwards a micro-batch; `apart`: each side in a graph of its own."""
    policy, source = state.policy, state.scoring.source
    alone = not apart and state.workers.count == 1 and window.pairs == len(batch.index)
    # Watching asks how small a seed is: off the CPU that is a wait, and rows that weigh nothing have one of 0.
    watched = batch.weights is None and policy.on_cpu and not isinstance(state.calibrator, Calibrator)
    adapters = WatchedPart if watched else CutPart

    def part(layout: Any, weights: Tensor | None) -> Any:
        assert source is not None
        if source.block is not None:
            return adapters(policy.model, layout, source.block, policy.short_mlp)
        return HeadPart(policy.model, layout, source.projection, policy.short_mlp, weights, alone=alone)

    with record_function(PHASE + "forward"):
        if source is None:
            return ExtraGradients(policy, batch, state.scoring.parameters)
        return ReadOff(policy, batch, part, apart=apart)


def _seeds(state: StepState, batch: Batch, pairs: PairLogps, window: Window) -> tuple[Tensor, Tensor]:
    """The objective, differentiated once: incentives for the window, and the seeds of the backward over the step."""
    with record_function(PHASE + "incentives"):
        per_pair = incentives(state.policy.objective, pairs, double=False)
        window.recorded.append(record_of(state.policy.objective, batch, pairs, per_pair.loss))
        window.incentives.append(per_pair)
    scaling = state.update.scaling
    size = state.update.batch_size / (scaling.scale if scaling else 1)
    return -per_pair.d_w / size, per_pair.d_l / size


def _add_scores(scoring: Scoring, micro: Micro, window: Window) -> None:
    """A micro-batch's scores join the window; those over all parameters too, by extra gradients, where asked for."""
    window.tokens = [window.tokens[0] + micro.real_tokens, window.tokens[1] + micro.computed_tokens]
    if scoring.full_parameters:
        assert isinstance(micro, ExtraGradients)
        _add(window.full, micro.scores_at(scoring.full_parameters))
    if window.checks_sketch:
        assert isinstance(micro, ReadOff)
        exact = of_both_sides([part.exact_scores() for part in micro.parts if isinstance(part, HeadPart)])
        assert isinstance(exact, SideScores)
        _add(window.exact, exact)
    with record_function(PHASE + "scores"):
        scores = micro.scores()
    if isinstance(scores, Products):
        window.products = scores
    else:
        _add(window.scores, scores)


def _add(total: SideScores, part: SideScores) -> None:
    add_gradients(total.w, part.w)
    add_gradients(total.l, part.l)


@dataclass(frozen=True)
class StepNumbers:
    """What is read of a step."""

    norm: float
    sums: list[float]  # as in Recorded, over the pairs of all workers
    real_tokens: float
    computed_tokens: float
    seen: list[float]  # what a look says of the update


def read_step(
    windows: Sequence[Window],
    norm: Tensor,
    step: int,
    decide: Callable[[Window, Sequence[float]], Decision],
    reduce: Reduce | None,
    seen: Sequence[Tensor] = (),
) -> StepNumbers:
    """The one wait of a step: gradient norm, sums over its pairs, tokens, what is not decided yet, what a look saw.

    Raises what is wrong with a pair whose loss is not finite.
    """
    recorded = [part for window in windows for part in window.recorded]
    total = sum((part.sums for part in recorded[1:]), recorded[0].sums)
    tokens = [total.new_full((), sum(window.tokens[i] for window in windows)) for i in (0, 1)]
    shared = torch.cat([total, torch.stack(tokens)])
    shared = shared if reduce is None else reduce.sum(shared)
    undecided = [(w, w.evidence) for w in windows if w.decision is None and w.evidence is not None]
    losses = torch.stack([part.sums[0] for part in recorded])
    known = [norm.detach().reshape(1).double(), shared, losses, *(evidence for _, evidence in undecided), *seen]
    numbers = torch.cat(known).tolist()
    at = 1 + len(shared)
    for part, loss in zip(recorded, numbers[at:], strict=False):
        if not math.isfinite(loss):
            raise part.broken(step)
    at += len(recorded)
    for window, evidence in undecided:
        decide(window, numbers[at : at + len(evidence)])
        at += len(evidence)
    end = 1 + len(total)
    return StepNumbers(numbers[0], numbers[1:end], numbers[end], numbers[end + 1], numbers[at:])
