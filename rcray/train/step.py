"""One optimizer step: likelihoods, incentives and scores, calibration, backward, clip, update, record.

Legend
  window     the pairs one set of statistics is taken over: a micro-batch, or the whole step
  seed       dL/dz per pair, the start of the backward; the winner's is scaled by alpha, the loser's by 1/alpha
  branch     the gradient that flows through one side alone; chosen and rejected are forwarded apart, so the two
             branches cost one backward together, and alpha may be known only after both

All sums are divided by the pairs of the whole step over all workers: 8x1 = 1x8 and one worker = two. How a micro-batch
goes through the model, and where its scores come from, is in micro.py and parts.py.
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rcray.calibration import (
    Calibration,
    Calibrator,
    Reduce,
    incentives,
    mean_incentives,
    observe,
    predicted_pathway,
    statistics,
    summarise,
)
from rcray.calibration.incentives import Incentives
from rcray.calibration.scores import Gradients, Products, Scores, from_products, plain_scores
from rcray.data.batch import Batch
from rcray.errors import DegenerateRunError
from rcray.models.load import CPU
from rcray.models.reference import ReferenceLogps
from rcray.objectives import Objective, PairLogps
from rcray.train.micro import Micro, Plain, ReadOff, add_up, take_in
from rcray.train.parts import ScoreSource, SideScores
from rcray.train.profile import phase


@dataclass
class StepState:
    """What an optimizer step works on."""

    model: Any
    objective: Objective
    likelihood: Any  # "sum" or "mean"
    calibrator: Calibrator | None  # None: the band is recorded, nothing is rescaled
    per_micro_batch: bool  # the window of the statistics; the same with calibration off, so that curves compare
    score_parameters: Sequence[Tensor]  # where scores are measured by extra gradients
    optimizer: torch.optim.Optimizer
    scheduler: Any
    clip_norm: float
    batch_size: int  # pairs per step, over all workers
    reduce: Reduce
    workers: int = 1
    source: ScoreSource | None = None  # where scores are read off the backward; None: by extra gradients
    full_parameters: Sequence[Tensor] = ()  # for the band over all parameters, recorded beside the first where asked
    check_sketch_every: int = 0  # steps between two looks at the exact scores beside a sketch; 0: never
    share_prompts: Literal["auto", "on", "off"] = "off"
    window: int | None = None  # rows longer than this are not packed: the model reads no further back
    reference: ReferenceLogps | None = None  # cached sums, for objectives that need no more
    # For token-level objectives: the frozen model itself, or `model`, whose adapter is then switched off.
    live_reference: Any | None = None
    precision: Callable[[], AbstractContextManager[Any]] = nullcontext  # autocast, where asked for
    device: torch.device = CPU
    #: Sums the gradients over the workers; None: one worker, or a sharded model that does it itself.
    reduce_gradients: Callable[[Sequence[Tensor]], None] | None = None
    clip: Callable[[Sequence[nn.Parameter], float], Tensor] = torch.nn.utils.clip_grad_norm_

    @cached_property
    def parameters(self) -> list[nn.Parameter]:
        """What is trained, as the optimizer holds it: between forwards a sharded model may show other tensors."""
        return [p for group in self.optimizer.param_groups for p in group["params"]]


@dataclass
class Window:
    """Sums over the micro-batches of one window, on this worker."""

    pairs: int  # over all workers
    checks_sketch: bool = False
    found: list[Incentives] = field(default_factory=list)
    scores_w: Gradients = field(default_factory=list)
    scores_l: Gradients = field(default_factory=list)
    full_w: Gradients = field(default_factory=list)
    full_l: Gradients = field(default_factory=list)
    exact_w: Gradients = field(default_factory=list)
    exact_l: Gradients = field(default_factory=list)
    products: Products | None = None  # in place of the sums, where this worker's one micro-batch is the window
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
    state.optimizer.zero_grad(set_to_none=True)
    windows = [[b] for b in batches] if state.per_micro_batch else [list(batches)]
    decisions, sums = [], torch.zeros(8, dtype=torch.float64)
    checks_sketch = bool(state.check_sketch_every) and (step - 1) % state.check_sketch_every == 0
    for part in windows:
        window = Window(sum(len(batch.index) for batch in part) * state.workers, checks_sketch)
        backward = _calibrate_over_many if state.calibrator and len(part) > 1 else _calibrate_at_once
        decisions.append(backward(state, part, window, step))
        sums += torch.cat([window.recorded, window.tokens])

    if state.reduce_gradients:
        with phase("workers"):
            state.reduce_gradients([p.grad for p in state.parameters if p.grad is not None])
    with phase("clip"):
        norm = float(state.clip(state.parameters, state.clip_norm))
    if not math.isfinite(norm):
        pairs = [int(i) for batch in batches for i in batch.index]
        named = ", ".join(map(str, pairs[:8])) + (", …" if len(pairs) > 8 else "")
        raise DegenerateRunError(f"step {step}: the gradient is not finite (norm {norm}) on training pairs {named}")
    rate = state.optimizer.param_groups[0]["lr"]
    with phase("update"):
        state.optimizer.step()
    state.scheduler.step()
    *recorded, real, computed = state.reduce.sum(sums).tolist()
    row = _record([d.calibration for d in decisions], recorded, state.batch_size)
    exact = _record_beside("exact", [d.exact for d in decisions])
    return {
        **row,
        **_record_beside("full", [d.full for d in decisions]),
        "rho_exact": exact["rho_exact"],
        "log_r_star_exact": exact["log_r_star_exact"],
        "grad_norm": norm,
        "learning_rate": rate,
        "padding": 1 - real / computed,
        "seconds": time.perf_counter() - started,
    }


def loss_and_seeds(objective: Objective, pairs: PairLogps) -> tuple[Tensor, Tensor, Tensor]:
    """Loss per pair, and dL/dz_w, dL/dz_l per pair: autograd on leaves, so any objective will do."""
    z_w, z_l = pairs.z_w.detach().requires_grad_(), pairs.z_l.detach().requires_grad_()
    loss = objective.loss(pairs.with_z(z_w, z_l))
    seed_w, seed_l = torch.autograd.grad(loss.sum(), (z_w, z_l), allow_unused=True)
    zero = torch.zeros_like(z_w)
    return loss.detach(), zero if seed_w is None else seed_w, zero if seed_l is None else seed_l


def _take_in(state: StepState, batch: Batch, window: Window, step: int, *, apart: bool) -> tuple[Micro, Tensor, Tensor]:
    """A micro-batch's likelihoods and the seeds of its backward, over the pairs of the step."""
    alone = not apart and state.workers == 1 and window.pairs == len(batch.index)
    with phase("forward"):
        micro = take_in(state, batch, apart=apart, alone=alone)
    with phase("incentives"):
        loss, seed_w, seed_l = loss_and_seeds(state.objective, micro.pairs)
        window.recorded += _sums(state, batch, micro.pairs, loss, step)
        window.tokens += torch.tensor([micro.real_tokens, micro.computed_tokens])
        window.found.append(incentives(state.objective, micro.pairs))
    return micro, seed_w / state.batch_size, seed_l / state.batch_size


def _join(state: StepState, micro: Micro, window: Window) -> None:
    """A micro-batch's scores join the window; those over all parameters too, by extra gradients, where asked for."""
    if state.full_parameters:
        assert isinstance(micro, Plain)
        found = SideScores(*plain_scores(micro.pairs.z_w, micro.pairs.z_l, state.full_parameters))
        add_up(window.full_w, found.w)
        add_up(window.full_l, found.l)
    if window.checks_sketch:
        assert isinstance(micro, ReadOff)
        found = micro.exact_scores()
        add_up(window.exact_w, found.w)
        add_up(window.exact_l, found.l)
    with phase("scores"):
        scores = micro.scores()
    if isinstance(scores, Products):
        window.products = scores
    else:
        add_up(window.scores_w, scores.w)
        add_up(window.scores_l, scores.l)


def _decide(state: StepState, window: Window) -> Decision:
    joined = Incentives(*(torch.cat([getattr(f, name) for f in window.found]) for name in vars(window.found[0])))
    means = mean_incentives(joined, state.reduce)

    def summary(w: Gradients, l: Gradients) -> Scores:  # noqa: E741
        return summarise(w, l, state.reduce, pairs=window.pairs)

    if window.products is not None:
        scores = from_products(window.products, window.pairs)
    else:
        scores = summary(window.scores_w, window.scores_l)
    stats = statistics(*means, scores)
    decision = state.calibrator.update(stats) if state.calibrator else observe(stats)

    def seen_by(w: Gradients, l: Gradients) -> Calibration | None:  # noqa: E741
        """The update that is made, from other scores."""
        return observe(statistics(*means, summary(w, l)).scaled(decision.log_alpha)) if w else None

    return Decision(decision, full=seen_by(window.full_w, window.full_l), exact=seen_by(window.exact_w, window.exact_l))


def _calibrate_at_once(state: StepState, batches: Sequence[Batch], window: Window, step: int) -> Decision:
    """A window whose alpha is known before its backward: one micro-batch, or no calibration at all."""
    if state.calibrator is None:
        for batch in batches:
            micro, seed_w, seed_l = _take_in(state, batch, window, step, apart=False)
            if micro.scores_need_graph:
                _join(state, micro, window)
            with phase("backward"):
                micro.backward(seed_w, seed_l)
            if not micro.scores_need_graph:
                _join(state, micro, window)
        return _decide(state, window)
    (batch,) = batches
    micro, seed_w, seed_l = _take_in(state, batch, window, step, apart=False)
    _join(state, micro, window)
    decision = _decide(state, window)
    alpha = decision.calibration.alpha
    with phase("backward"):
        micro.backward(seed_w * alpha, seed_l / alpha)
    return decision


def _calibrate_over_many(state: StepState, batches: Sequence[Batch], window: Window, step: int) -> Decision:
    """A window of several micro-batches: both branches are kept until alpha is known."""
    branches: tuple[Gradients, Gradients] = ([], [])
    for batch in batches:
        micro, seed_w, seed_l = _take_in(state, batch, window, step, apart=True)
        _join(state, micro, window)
        with phase("backward"):
            micro.branches(seed_w, seed_l, branches)
    decision = _decide(state, window)
    alpha = decision.calibration.alpha
    for parameter, from_w, from_l in zip(state.parameters, *branches, strict=True):
        parameter.grad = from_w.mul_(alpha).add_(from_l, alpha=1 / alpha)
    return decision


def _sums(state: StepState, batch: Batch, pairs: PairLogps, loss: Tensor, step: int) -> Tensor:
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
            state.objective.guarded(pairs).to(loss.dtype),
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
