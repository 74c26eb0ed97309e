"""From what happened in a step to its row in the records; every column is explained in records/columns.py."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rcray.calibration import Calibration, observe, predicted_pathway
from rcray.calibration.band import Statistics
from rcray.calibration.update import Move, own_move
from rcray.data.batch import Batch
from rcray.errors import DegenerateRunError
from rcray.train.look import Look
from rcray.train.micro import Decision

_LOGS = ("log_d_w", "log_d_l", "log_s_w", "log_s_l", "rho")


@dataclass(frozen=True)
class Judged:
    """What a look showed: of the updates since the last one, and of the one that is made now."""

    look: Look
    own: Move | None = None  # the batch's own move under this update, pairs weighing what their incentives weigh
    move: Move | None = None  # that of the look's pairs
    band: tuple[float, float] | None = None  # the true band, in log r


@dataclass(frozen=True)
class StepOutcome:
    """What happened in a step."""

    decisions: Sequence[Decision]
    sums: Sequence[float]  # loss, z_w, z_l, zt_w, zt_l, guarded: over the pairs of the step
    pairs: int
    grad_norm: float
    learning_rate: float
    padding: float
    guarding: bool
    judged: Judged | None
    seconds: float
    lost: str = ""  # why no update was made, if none was


def judge_look(look: Look, seen: Sequence[float], decisions: Sequence[Decision], shown: int) -> Judged:
    """What a look says of the update that is made; `seen` as in `Foreseen.judged`, empty where nothing is foreseen.

    `shown`: the windows whose branches it saw.
    """
    if not seen or not math.isfinite(seen[0] + seen[1]):  # a gradient that overflowed
        return Judged(look)
    scaled = [d.calibration.calibrated for d in decisions]
    weight_w = _mean([s.sign_w * math.exp(s.log_d_w) for s in scaled[:shown]])
    weight_l = _mean([s.sign_l * math.exp(s.log_d_l) for s in scaled[:shown]])
    here = _mean([s.log_r for s in scaled])
    lower, upper = (here + 2 * edge for edge in seen[4:])
    return Judged(look, own_move(seen[2:4], weight_w, weight_l), Move(*seen[:2]), (lower, upper))


def not_finite(step: int, norm: float, batches: Sequence[Batch]) -> DegenerateRunError:
    """A step whose gradient cannot be used, by its first pairs."""
    pairs = [int(i) for batch in batches for i in batch.index]
    named = ", ".join(map(str, pairs[:8])) + (", …" if len(pairs) > 8 else "")
    return DegenerateRunError(f"step {step}: the gradient is not finite (norm {norm}) on training pairs {named}")


def row_of(outcome: StepOutcome) -> dict[str, Any]:
    """The columns that a step fills in."""
    decisions = [d.calibration for d in outcome.decisions]
    exact = _beside("exact", outcome.decisions, [d.exact for d in outcome.decisions])
    return {
        **_band_at_scores(decisions),
        **_likelihoods(outcome),
        **_beside("full", outcome.decisions, [d.full for d in outcome.decisions]),
        "rho_exact": exact["rho_exact"],
        "log_r_star_exact": exact["log_r_star_exact"],
        **_judged(outcome.judged),
        "guarding": outcome.guarding,
        **({"skipped": outcome.lost} if outcome.lost else {}),
        "grad_norm": outcome.grad_norm,
        "learning_rate": outcome.learning_rate,
        "padding": outcome.padding,
        "seconds": outcome.seconds,
    }


def _likelihoods(outcome: StepOutcome) -> dict[str, float]:
    loss, z_w, z_l, zt_w, zt_l, guarded = (value / outcome.pairs for value in outcome.sums)
    return {
        "loss": loss,
        "z_w": z_w,
        "z_l": z_l,
        "zt_w": zt_w,
        "zt_l": zt_l,
        "margin": z_w - z_l,
        "guarded": guarded,
    }


def _band_at_scores(decisions: Sequence[Calibration]) -> dict[str, Any]:
    """The paper's band, averaged over the windows of a step; a step is inside when all its windows are."""
    slacks = [d.slack for d in decisions]
    logs = {name: _mean([getattr(d.stats, name) for d in decisions]) for name in _LOGS}
    return {
        "d_w": _mean([d.stats.sign_w * math.exp(d.stats.log_d_w) for d in decisions]),
        "d_l": _mean([d.stats.sign_l * math.exp(d.stats.log_d_l) for d in decisions]),
        **logs,
        "log_r_base": _mean([d.stats.log_r for d in decisions]),
        "log_r": _mean([d.calibrated.log_r for d in decisions]),
        "log_r_star": _mean([d.band.log_r_star for d in decisions]),
        "band_lower": _mean([d.band.lower for d in decisions]),
        "band_upper": _mean([d.band.upper for d in decisions]),
        "slack": math.nan if any(map(math.isnan, slacks)) else min(slacks),
        "in_band": all(bool(d.in_band) for d in decisions),
        "log_alpha": _mean([d.log_alpha for d in decisions]),
        "clipped": _mean([float(d.clipped) for d in decisions]),
        "skipped": next((d.skipped for d in decisions if d.skipped), None) or "",
        "reversed": any(d.stats.reversed for d in decisions),
        "pathway_head": _pathway_at_scores(decisions),
    }


def _pathway_at_scores(decisions: Sequence[Calibration]) -> str:
    """What the theorem says at the scores: the pathway of most windows, the later one of two that are as many."""
    said = [predicted_pathway(d.calibrated) for d in decisions]
    return max(reversed(said), key=said.count)


def _judged(judged: Judged | None) -> dict[str, Any]:
    """What a look showed; NaN and "" at steps without one."""
    nothing = math.nan, math.nan
    predicted = own = move = drift = band = nothing
    pathway = ""
    if judged is not None:
        look = judged.look
        drift = look.drift.w, look.drift.l
        if look.predicted is not None:
            predicted, pathway = (look.predicted.w, look.predicted.l), look.predicted.pathway
        own = (judged.own.w, judged.own.l) if judged.own else nothing
        move = (judged.move.w, judged.move.l) if judged.move else nothing
        band = judged.band or nothing
    named = {
        "predicted_dz": predicted,
        "batch_dz": own,
        "next_dz": move,
        "fresh_drift": drift,
    }
    columns = {f"{name}_{side}": v for name, pair in named.items() for side, v in zip("wl", pair, strict=True)}
    return {
        **columns,
        "true_band_lower": band[0],
        "true_band_upper": band[1],
        "pathway_predicted": pathway,
    }


def _beside(kind: str, decisions: Sequence[Decision], others: Sequence[Statistics | None]) -> dict[str, float]:
    """The band by other scores, averaged over the windows; NaN where it was not asked for."""
    names = [f"{name}_{kind}" for name in ("log_s_w", "log_s_l", "rho", "log_r_star", "band_lower", "band_upper")]
    seen = [
        observe(stats.scaled(d.calibration.log_alpha))
        for d, stats in zip(decisions, others, strict=True)
        if stats is not None
    ]
    if not seen:
        return dict.fromkeys((*names, f"in_band_{kind}"), math.nan)
    rows = [
        (d.stats.log_s_w, d.stats.log_s_l, d.stats.rho, d.band.log_r_star, d.band.lower, d.band.upper) for d in seen
    ]
    means = [_mean(list(values)) for values in zip(*rows, strict=True)]
    return {**dict(zip(names, means, strict=True)), f"in_band_{kind}": float(all(bool(d.in_band) for d in seen))}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
