"""Win rates from judgements: raw, and length-controlled as in AlpacaEval 2 (Dubois et al. 2024).

Legend, per instruction x: p in [0, 1] how far the candidate is preferred (mean over orders); dl = candidate's length -
reference's, in characters; theta quality, phi length bias, psi weight of the instruction's difficulty g.

    P(candidate preferred | x) = sigmoid( theta + phi tanh(dl / std(dl)) + psi g )
    LC win rate                = mean over x of sigmoid( theta + psi g ): as if both answers were equally long

The fit is cross-entropy on soft p; phi and psi carry a weak quadratic penalty so that a separable sample has an answer,
theta none, so that with equal lengths the LC win rate is the raw one exactly. Difficulties are AlpacaEval's to give
(they come from many models' results): without them the term is left out, and the row says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rcray.config.alpaca_eval import JudgingMode
from rcray.config.benchmarks import ALPACA_EVAL
from rcray.errors import DataError, RcrayError
from rcray.evaluate.alpaca_eval.judge import Judgement
from rcray.evaluate.alpaca_eval.outputs import Match
from rcray.evaluate.bootstrap import bootstrapped_row
from rcray.records.evaluation import MetricRow

PENALTY = 0.1  # of phi and psi, against the sum over instructions: a tenth of a pseudo-observation
_STEPS = 60
_LARGEST = 20.0  # |theta|: sigmoid is 1 to nine digits, as in a sample of wins only


@dataclass(frozen=True)
class Annotations:
    """What the judge said, per instruction, [instructions]."""

    preference: np.ndarray  # of the candidate; failures are left out or 1/2, as the mode says
    length_difference: np.ndarray
    difficulty: np.ndarray | None
    failures: int
    position_bias: float  # mean preference for the answer shown first, less 1/2


def annotations(
    matches: Sequence[Match],
    judgements: Sequence[Judgement],
    mode: JudgingMode,
    difficulty: Sequence[float] | None = None,
) -> Annotations:
    """Judgements of both orders averaged per instruction.

    Where failures are excluded, an instruction with a failed order is left out whole: the other order alone would
    carry the judge's liking for a position.
    """
    if difficulty is not None and len(difficulty) != len(matches):
        raise DataError(f"{len(difficulty)} difficulties for {len(matches)} instructions")
    votes: list[list[float]] = [[] for _ in matches]
    failures, first = 0, []
    for judgement in judgements:
        if judgement.preference is None:
            failures += 1
            votes[judgement.match].append(0.5 if mode.failures == "half" else np.nan)
            continue
        votes[judgement.match].append(judgement.preference)
        first.append(judgement.preference if judgement.candidate_first else 1 - judgement.preference)
    kept = [i for i, vote in enumerate(votes) if vote and not np.isnan(vote).any()]
    if not kept:
        first_error = next((judgement.error for judgement in judgements if judgement.error), "")
        raise RcrayError(f"no instruction was judged; {failures} of {len(judgements)} calls failed: {first_error}")
    return Annotations(
        preference=np.array([np.mean(votes[i]) for i in kept]),
        length_difference=np.array([len(matches[i].candidate) - len(matches[i].reference) for i in kept], dtype=float),
        difficulty=None if difficulty is None else np.array([difficulty[i] for i in kept], dtype=float),
        failures=failures,
        position_bias=float(np.mean(first) - 0.5) if first else 0.0,
    )


def win_rate_rows(annotated: Annotations, opponent: str, judge: str, mode: str) -> list[MetricRow]:
    """Raw and length-controlled win rate, in [0, 1], with bootstrap intervals over instructions."""
    size = len(annotated.preference)
    note = f"against {opponent}; judge {judge}, mode {mode}; {annotated.failures} judgements failed; position bias "
    note += f"{annotated.position_bias:+.3f}"
    controlled = note + ("; without instruction difficulty" if annotated.difficulty is None else "")
    return [
        bootstrapped_row(ALPACA_EVAL, name, size, statistic, said)
        for name, statistic, said in (
            ("win_rate", lambda draws: annotated.preference[draws].mean(axis=1), note),
            ("lc_win_rate", lambda draws: _controlled(annotated, draws), controlled),
        )
    ]


def _controlled(annotated: Annotations, draws: np.ndarray) -> np.ndarray:
    """LC win rate of each draw, [draws]."""
    theta, _, psi = _fit(annotated, draws).T
    logits = np.repeat(theta[:, None], draws.shape[1], axis=1)
    if annotated.difficulty is not None:
        logits = logits + psi[:, None] * annotated.difficulty[draws]
    return _sigmoid(logits).mean(axis=1)


def _fit(annotated: Annotations, draws: np.ndarray) -> np.ndarray:
    """(theta, phi, psi) of every draw by Newton's method, [draws, 3]."""
    target = annotated.preference[draws]
    longer = annotated.length_difference[draws]
    spread = longer.std(axis=1, keepdims=True)
    bias = np.tanh(np.divide(longer, spread, out=np.zeros_like(longer), where=spread > 0))
    columns = [np.ones_like(target), bias]
    if annotated.difficulty is not None:
        columns.append(annotated.difficulty[draws])
    design = np.stack(columns, axis=-1)  # [draws, instructions, parameters]
    transposed = np.ascontiguousarray(design.swapaxes(1, 2))
    penalty = np.array([0.0, PENALTY, PENALTY])[: len(columns)]
    weights = np.zeros((len(draws), len(columns)))
    for _ in range(_STEPS):
        predicted = _sigmoid((design @ weights[..., None])[..., 0])
        gradient = (transposed @ (target - predicted)[..., None])[..., 0] - penalty * weights
        curvature = transposed @ (design * (predicted * (1 - predicted))[..., None]) + np.diag(penalty + 1e-9)
        step = np.linalg.solve(curvature, gradient[..., None])[..., 0]
        step = np.clip(step, -2.0, 2.0)  # far from the optimum Newton overshoots
        weights = np.clip(weights + step, -_LARGEST, _LARGEST)
        if np.abs(step).max() < 1e-10:
            break
    return np.pad(weights, ((0, 0), (0, 3 - len(columns))))


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-np.clip(x, -500, 500)))
