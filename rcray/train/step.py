"""One optimizer step: likelihoods, incentives and scores, calibration, backward, clip, update, record.

Legend
  window     the pairs one set of statistics is taken over: a micro-batch, or the whole step
  seed       dL/dz per pair, the start of the backward; the winner's is scaled by alpha, the loser's by 1/alpha
  branch     the gradient that flows through one side alone; chosen and rejected are forwarded apart, so the two
             branches cost one backward together, and alpha may be known only after both

All sums are divided by the pairs of the whole step over all workers: 8x1 = 1x8 and one worker = two. How a micro-batch
goes through the model, and how its scores are read off, is in micro.py.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import record_function

from rcray.calibration import Calibration, Calibrator, Reduce, mean_incentives, observe, predicted_pathway
from rcray.calibration.band import from_products, statistics, summarise
from rcray.calibration.scores import Gradients, Products, SideScores
from rcray.data.batch import Batch
from rcray.errors import DegenerateRunError
from rcray.objectives.base import Incentives, PairLogps, incentives
from rcray.train.extra_gradients import ExtraGradients
from rcray.train.micro import CutPart, Policy, ReadOff, WatchedPart, add_gradients, of_both_sides
from rcray.train.parts import HeadPart, ScoreSource
from rcray.train.profile import PHASE
from rcray.train.scaling import OVERFLOW, LossScaling

Micro = ReadOff | ExtraGradients


@dataclass
class Scoring:
    """Where scores are measured, and over which pairs."""

    per_micro_batch: bool  # the window of the statistics; the same with calibration off, so that curves compare
    source: ScoreSource | None = None  # where they are read off the backward
    parameters: Sequence[Tensor] = ()  # where they are measured by extra gradients, without a source
    full_parameters: Sequence[Tensor] = ()  # for the band over all parameters, recorded beside the first where asked
    check_sketch_every: int = 0  # steps between two looks at the exact scores beside a sketch; 0: never


@dataclass
class Workers:
    """How workers share a step; by default there is one."""

    count: int = 1
    reduce: Reduce | None = None
    #: Sums the gradients over the workers; None: one worker, or a sharded model that does it itself.
    sum_gradients: Callable[[Sequence[Tensor]], None] | None = None


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
    calibrator: Calibrator | None = None  # None: the band is recorded, nothing is rescaled
    workers: Workers = field(default_factory=Workers)


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
    recorded: Tensor = field(default_factory=lambda: torch.zeros(6, dtype=torch.float64))
    tokens: Tensor = field(default_factory=lambda: torch.zeros(2, dtype=torch.float64))  # real, computed


@dataclass(frozen=True)
class Decision:
    """What was decided for a window, and how other scores see the update, where they were asked for."""

    calibration: Calibration
    full: Calibration | None = None  # over all parameters
    exact: Calibration | None = None  # by the scores that a sketch estimates


def optimizer_step(state: StepState, batches: Sequence[Batch], step: int) -> dict[str, Any]:
    """Makes one update from the micro-batches of this worker and returns its record."""
    started = time.perf_counter()
    update, scoring, workers = state.update, state.scoring, state.workers
    update.optimizer.zero_grad(set_to_none=True)
    decisions, sums = [], torch.zeros(8, dtype=torch.float64)
    checks_sketch = bool(scoring.check_sketch_every) and (step - 1) % scoring.check_sketch_every == 0
    for part in [[b] for b in batches] if scoring.per_micro_batch else [list(batches)]:
        window = Window(sum(len(batch.index) for batch in part) * workers.count, checks_sketch)
        decisions.append(_backward(state, part, window, step))
        sums += torch.cat([window.recorded, window.tokens])

    if workers.sum_gradients:
        with record_function(PHASE + "workers"):
            workers.sum_gradients([p.grad for p in update.parameters if p.grad is not None])
    with record_function(PHASE + "clip"):
        if update.scaling:
            update.scaling.unscale(update.parameters)
        norm = float(update.clip(update.parameters, update.clip_norm))
    sound = update.scaling is None or update.scaling.settle(norm)
    if sound and not math.isfinite(norm):
        pairs = [int(i) for batch in batches for i in batch.index]
        named = ", ".join(map(str, pairs[:8])) + (", …" if len(pairs) > 8 else "")
        raise DegenerateRunError(f"step {step}: the gradient is not finite (norm {norm}) on training pairs {named}")
    rate = update.optimizer.param_groups[0]["lr"]
    with record_function(PHASE + "update"):
        if sound:
            update.optimizer.step()
    update.scheduler.step()
    *recorded, real, computed = (sums if workers.reduce is None else workers.reduce.sum(sums)).tolist()
    exact = _record_beside("exact", [d.exact for d in decisions])
    return {
        **_record([d.calibration for d in decisions], recorded, update.batch_size),
        **_record_beside("full", [d.full for d in decisions]),
        "rho_exact": exact["rho_exact"],
        "log_r_star_exact": exact["log_r_star_exact"],
        "grad_norm": norm,
        **({} if sound else {"skipped": OVERFLOW}),
        "learning_rate": rate,
        "padding": 1 - real / computed,
        "seconds": time.perf_counter() - started,
    }


def _backward(state: StepState, batches: Sequence[Batch], window: Window, step: int) -> Decision:
    """Adds a window's gradient to the parameters.

    Without calibration each micro-batch goes backward at once. With it alpha must be known first: that of one
    micro-batch is, after its forward; over several, both branches are kept until the last.
    """
    calibrating, parameters = state.calibrator is not None, state.update.parameters
    apart = calibrating and len(batches) > 1
    branches: tuple[Gradients, Gradients] = ([], [])
    for batch in batches:
        micro = _forward(state, batch, window, apart=apart)
        seed_w, seed_l = _seeds(state, batch, micro.pairs, window, step)
        if calibrating or isinstance(micro, ExtraGradients):
            _add_scores(state.scoring, micro, window)
        if apart:
            with record_function(PHASE + "backward"):
                micro.branches(seed_w, seed_l, branches, parameters)
        elif not calibrating:
            with record_function(PHASE + "backward"):
                micro.backward(seed_w, seed_l)
            if isinstance(micro, ReadOff):
                _add_scores(state.scoring, micro, window)
    decision = _decide(state, window)
    alpha = decision.calibration.alpha
    if apart:
        for parameter, from_w, from_l in zip(parameters, *branches, strict=True):
            parameter.grad = from_w.mul_(alpha).add_(from_l, alpha=1 / alpha)
    elif calibrating:
        with record_function(PHASE + "backward"):
            micro.backward(seed_w * alpha, seed_l / alpha)
    return decision


def _forward(state: StepState, batch: Batch, window: Window, *, apart: bool) -> Micro:
    """Forwards a micro-batch; `apart`: each side in a graph of its own."""
    policy, source = state.policy, state.scoring.source
    alone = not apart and state.workers.count == 1 and window.pairs == len(batch.index)
    adapters = CutPart if state.calibrator else WatchedPart

    def part(layout: Any, weights: Tensor | None) -> Any:
        assert source is not None
        if source.block is not None:
            return adapters(policy.model, layout, source.block, policy.short_mlp)
        return HeadPart(policy.model, layout, source.projection, policy.short_mlp, weights, alone=alone)

    with record_function(PHASE + "forward"):
        if source is None:
            return ExtraGradients(policy, batch, state.scoring.parameters)
        return ReadOff(policy, batch, part, apart=apart)


def _seeds(state: StepState, batch: Batch, pairs: PairLogps, window: Window, step: int) -> tuple[Tensor, Tensor]:
    """The objective, differentiated once: incentives for the window, and the seeds of the backward over the step."""
    with record_function(PHASE + "incentives"):
        per_pair = incentives(state.policy.objective, pairs, double=False)
        window.recorded += _sums(state.policy, batch, pairs, per_pair.loss, step)
        window.incentives.append(per_pair)
    scaling = state.update.scaling
    size = state.update.batch_size / (scaling.scale if scaling else 1)
    return -per_pair.d_w / size, per_pair.d_l / size


def _add_scores(scoring: Scoring, micro: Micro, window: Window) -> None:
    """A micro-batch's scores join the window; those over all parameters too, by extra gradients, where asked for."""
    window.tokens += torch.tensor([micro.real_tokens, micro.computed_tokens])
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


def _decide(state: StepState, window: Window) -> Decision:
    reduce = state.workers.reduce
    means = mean_incentives(window.incentives, reduce)
    if window.products is not None:
        scores = from_products(window.products, window.pairs)
    else:
        scores = summarise(window.scores.w, window.scores.l, reduce, pairs=window.pairs)
    stats = statistics(*means, scores)
    decision = state.calibrator.update(stats) if state.calibrator else observe(stats)

    def seen_by(other: SideScores) -> Calibration | None:
        """The update that is made, from other scores."""
        if not other.w:
            return None
        scores = summarise(other.w, other.l, reduce, pairs=window.pairs)
        return observe(statistics(*means, scores).scaled(decision.log_alpha))

    return Decision(decision, full=seen_by(window.full), exact=seen_by(window.exact))


def _sums(policy: Policy, batch: Batch, pairs: PairLogps, loss: Tensor, step: int) -> Tensor:
    """Sums of a micro-batch for the record; stops the run at the first non-finite value."""
    if not torch.isfinite(loss).all():
        row = int((~torch.isfinite(loss)).nonzero()[0])
        raise DegenerateRunError(
            f"step {step}: loss {loss[row].item()} on training pair {int(batch.index[row])} "
            f"(z_w {pairs.z_w[row].item():.4g}, z_l {pairs.z_l[row].item():.4g})"
        )
    has_reference = pairs.ref_w is not None
    with torch.no_grad():
        parts = [
            loss,
            pairs.z_w,
            pairs.z_l,
            pairs.zt_w if has_reference else torch.full_like(loss, math.nan),
            pairs.zt_l if has_reference else torch.full_like(loss, math.nan),
            policy.objective.guarded(pairs).to(loss.dtype),
        ]
        return torch.stack([part.sum(dtype=torch.float64) for part in parts]).cpu()


def _record_beside(kind: str, decisions: Sequence[Calibration | None]) -> dict[str, float]:
    """The band by other scores, averaged over the windows; NaN where it was not asked for."""
    names = [f"{name}_{kind}" for name in ("log_s_w", "log_s_l", "rho", "log_r_star", "band_lower", "band_upper")]
    seen = [d for d in decisions if d is not None]
    if not seen:
        return dict.fromkeys((*names, f"in_band_{kind}"), math.nan)
    rows = [
        (d.stats.log_s_w, d.stats.log_s_l, d.stats.rho, d.band.log_r_star, d.band.lower, d.band.upper) for d in seen
    ]
    means = (sum(column) / len(rows) for column in zip(*rows, strict=True))
    return {**dict(zip(names, means, strict=True)), f"in_band_{kind}": float(all(bool(d.in_band) for d in seen))}


def _record(decisions: Sequence[Calibration], sums: Sequence[float], pairs: int) -> dict[str, Any]:
    """Means over the step; with several windows, logs and incentives are averaged over them."""
    loss, z_w, z_l, zt_w, zt_l, guarded = (value / pairs for value in sums)

    def mean(values: list[float]) -> float:
        return sum(values) / len(values)

    last = decisions[-1]
    logs = {
        name: mean([getattr(d.stats, name) for d in decisions])
        for name in ("log_d_w", "log_d_l", "log_s_w", "log_s_l", "rho")
    }
    slacks = [d.slack for d in decisions]  # the step is in the band when all its windows are
    skipped = next((d.skipped for d in decisions if d.skipped), None)
    return {
        "loss": loss,
        "z_w": z_w,
        "z_l": z_l,
        "zt_w": zt_w,
        "zt_l": zt_l,
        "margin": z_w - z_l,
        "d_w": mean([d.stats.sign_w * math.exp(d.stats.log_d_w) for d in decisions]),
        "d_l": mean([d.stats.sign_l * math.exp(d.stats.log_d_l) for d in decisions]),
        **logs,
        "log_r_base": mean([d.stats.log_r for d in decisions]),
        "log_r": mean([d.calibrated.log_r for d in decisions]),
        "log_r_star": mean([d.band.log_r_star for d in decisions]),
        "band_lower": mean([d.band.lower for d in decisions]),
        "band_upper": mean([d.band.upper for d in decisions]),
        "slack": math.nan if any(map(math.isnan, slacks)) else min(slacks),
        "in_band": all(bool(d.in_band) for d in decisions),
        "log_alpha": mean([d.log_alpha for d in decisions]),
        "clipped": mean([float(d.clipped) for d in decisions]),
        "skipped": skipped or "",
        "reversed": any(d.stats.reversed for d in decisions),
        "guarded": guarded,
        "pathway_predicted": predicted_pathway(last.calibrated),
    }
