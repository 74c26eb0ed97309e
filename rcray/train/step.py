"""One optimizer step: likelihoods, incentives and scores, calibration, backward, clip, update, record.

Legend
  window     the pairs one set of statistics is taken over: a micro-batch, or the whole step
  seed       dL/dz per pair, the start of the backward; the winner's is scaled by alpha, the loser's by 1/alpha
  branch     the gradient that flows through one side alone; chosen and rejected are forwarded apart, so the two
             branches cost one backward together, and alpha may be known only after both

All sums are divided by the pairs of the whole step over all workers: 8x1 = 1x8 and one worker = two.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from rcray.calibration import (
    Calibration,
    Calibrator,
    Reduce,
    incentives,
    mean_incentives,
    observe,
    plain_scores,
    predicted_pathway,
    statistics,
    summarise,
)
from rcray.calibration.incentives import Incentives
from rcray.calibration.scores import branch_gradients
from rcray.data.batch import Batch
from rcray.errors import DegenerateRunError
from rcray.models.adapters import adapters_off
from rcray.models.likelihood import SideLogps, sequential_kl, side_logps
from rcray.models.reference import ReferenceLogps
from rcray.objectives import Objective, PairLogps, TokenLogps

Gradients = list[Tensor]


@dataclass
class StepState:
    """What an optimizer step works on."""

    model: Any
    objective: Objective
    likelihood: Any  # "sum" or "mean"
    calibrator: Calibrator | None  # None: the band is recorded, nothing is rescaled
    per_micro_batch: bool  # the window of the statistics; the same with calibration off, so that curves compare
    score_parameters: Sequence[Tensor]
    optimizer: torch.optim.Optimizer
    scheduler: Any
    clip_norm: float
    batch_size: int  # pairs per step, over all workers
    reduce: Reduce
    reference: ReferenceLogps | None = None  # cached sums, for objectives that need no more
    # For token-level objectives: the frozen model itself, or `model`, whose adapter is then switched off.
    live_reference: Any | None = None

    @cached_property
    def parameters(self) -> list[nn.Parameter]:
        """What is trained."""
        return [p for p in self.model.parameters() if p.requires_grad]


@dataclass
class Window:
    """Sums over the micro-batches of one window, on this worker."""

    pairs: int  # over all workers
    found: list[Incentives] = field(default_factory=list)
    scores_w: Gradients = field(default_factory=list)
    scores_l: Gradients = field(default_factory=list)
    recorded: Tensor = field(default_factory=lambda: torch.zeros(6, dtype=torch.float64))


def optimizer_step(state: StepState, batches: Sequence[Batch], workers: int, step: int) -> dict[str, Any]:
    """Makes one update from the micro-batches of this worker and returns its record."""
    started = time.perf_counter()
    state.optimizer.zero_grad(set_to_none=True)
    calibrating = state.calibrator is not None
    windows = [[b] for b in batches] if state.per_micro_batch else [list(batches)]
    decisions, sums = [], torch.zeros(6, dtype=torch.float64)
    for part in windows:
        window = Window(sum(len(batch.index) for batch in part) * workers)
        backward = _calibrate_over_many if calibrating and len(part) > 1 else _calibrate_at_once
        decisions.append(backward(state, part, window, step))
        sums += window.recorded

    for parameter in state.parameters:
        if parameter.grad is not None:
            parameter.grad = state.reduce.sum(parameter.grad)
    norm = float(torch.nn.utils.clip_grad_norm_(state.parameters, state.clip_norm))
    if not math.isfinite(norm):
        raise DegenerateRunError(f"step {step}: the gradient is not finite (norm {norm})")
    rate = state.optimizer.param_groups[0]["lr"]
    state.optimizer.step()
    state.scheduler.step()
    row = _record(decisions, state.reduce.sum(sums).tolist(), state.batch_size)
    return {**row, "grad_norm": norm, "learning_rate": rate, "seconds": time.perf_counter() - started}


def pair_logps(state: StepState, batch: Batch) -> PairLogps:
    """Branch statistics of a micro-batch, with their graph, and the reference's beside them."""
    needs_kl = state.objective.params.traits.needs_reference_distribution
    chosen = side_logps(state.model, batch.chosen, keep_distribution=needs_kl)
    rejected = side_logps(state.model, batch.rejected, keep_distribution=needs_kl)
    tokens = TokenLogps(chosen.logp, rejected.logp, chosen.mask, rejected.mask)
    if state.live_reference is not None:
        tokens = _with_live_reference(state, batch, chosen, rejected, tokens)
    pairs = state.objective.statistics(tokens, state.likelihood)
    if state.reference is None or state.live_reference is not None:
        return pairs
    index = batch.index.cpu()
    ref_w, ref_l = state.reference.sum_w[index].to(pairs.z_w), state.reference.sum_l[index].to(pairs.z_l)
    if state.likelihood == "mean":
        ref_w, ref_l = ref_w / pairs.n_w, ref_l / pairs.n_l
    return replace(pairs, ref_w=ref_w, ref_l=ref_l)


def _with_live_reference(
    state: StepState, batch: Batch, chosen: SideLogps, rejected: SideLogps, tokens: TokenLogps
) -> TokenLogps:
    needs_kl = chosen.log_probs is not None
    with torch.no_grad(), adapters_off(state.live_reference):
        ref_w = side_logps(state.live_reference, batch.chosen, keep_distribution=needs_kl)
        ref_l = side_logps(state.live_reference, batch.rejected, keep_distribution=needs_kl)
    tokens = replace(tokens, ref_logp_w=ref_w.logp, ref_logp_l=ref_l.logp)
    if needs_kl:
        tokens = replace(tokens, kl_w=sequential_kl(ref_w, chosen), kl_l=sequential_kl(ref_l, rejected))
    return tokens


def loss_and_seeds(objective: Objective, pairs: PairLogps) -> tuple[Tensor, Tensor, Tensor]:
    """Loss per pair, and dL/dz_w, dL/dz_l per pair: autograd on leaves, so any objective will do."""
    z_w, z_l = pairs.z_w.detach().requires_grad_(), pairs.z_l.detach().requires_grad_()
    loss = objective.loss(pairs.with_z(z_w, z_l))
    seed_w, seed_l = torch.autograd.grad(loss.sum(), (z_w, z_l), allow_unused=True)
    zero = torch.zeros_like(z_w)
    return loss.detach(), zero if seed_w is None else seed_w, zero if seed_l is None else seed_l


def _take_in(state: StepState, batch: Batch, window: Window, step: int) -> tuple[PairLogps, Tensor, Tensor]:
    """A micro-batch's likelihoods and the seeds of its backward; its incentives and scores join the window."""
    pairs = pair_logps(state, batch)
    loss, seed_w, seed_l = loss_and_seeds(state.objective, pairs)
    window.recorded += _sums(state, batch, pairs, loss, step)
    window.found.append(incentives(state.objective, pairs))
    scores_w, scores_l = plain_scores(pairs.z_w, pairs.z_l, state.score_parameters)
    _add(window.scores_w, scores_w)
    _add(window.scores_l, scores_l)
    return pairs, seed_w, seed_l


def _decide(state: StepState, window: Window) -> Calibration:
    joined = Incentives(*(torch.cat([getattr(f, name) for f in window.found]) for name in vars(window.found[0])))
    scores = summarise(window.scores_w, window.scores_l, state.reduce, pairs=window.pairs)
    stats = statistics(*mean_incentives(joined, state.reduce), scores)
    return state.calibrator.update(stats) if state.calibrator else observe(stats)


def _calibrate_at_once(state: StepState, batches: Sequence[Batch], window: Window, step: int) -> Calibration:
    """A window whose alpha is known before its backward: one micro-batch, or no calibration at all."""
    decision = None
    for batch in batches:
        pairs, seed_w, seed_l = _take_in(state, batch, window, step)
        alpha = 1.0
        if state.calibrator is not None:
            decision = _decide(state, window)
            alpha = decision.alpha
        scale = 1 / state.batch_size
        torch.autograd.backward([pairs.z_w, pairs.z_l], [seed_w * (alpha * scale), seed_l * (scale / alpha)])
    return decision or _decide(state, window)


def _calibrate_over_many(state: StepState, batches: Sequence[Batch], window: Window, step: int) -> Calibration:
    """A window of several micro-batches: both branches are kept until alpha is known."""
    branch_w: Gradients = []
    branch_l: Gradients = []
    for batch in batches:
        pairs, seed_w, seed_l = _take_in(state, batch, window, step)
        for branch, z, seed in ((branch_w, pairs.z_w, seed_w), (branch_l, pairs.z_l, seed_l)):
            _add(branch, branch_gradients(z, state.parameters, seed / state.batch_size))
    decision = _decide(state, window)
    for parameter, from_w, from_l in zip(state.parameters, branch_w, branch_l, strict=True):
        parameter.grad = decision.alpha * from_w + from_l / decision.alpha
    return decision


def _add(total: Gradients, part: Gradients) -> None:
    if total:
        for kept, new in zip(total, part, strict=True):
            kept += new
    else:
        total.extend(part)


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
