"""Preference metrics on held-out pairs: what training did to the chosen and the rejected answers.

Legend: z~ = z of the trained model minus z of the model it started from, per held-out pair, in the run's reduction;
m~ = z~_w - z~_l. p = sigmoid(beta m~) is the probability the trained policy implies for "chosen is better", with the
objective's own beta (1 where it has none). `accuracy` counts margins that grew, m~ > 0; `ranking` counts pairs whose
chosen answer is the likelier one, z_w > z_l, as sums and per token, whatever the start model said of them. Intervals
are 95% percentile bootstrap over pairs, seeded.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from rcray.config.benchmarks import PREFERENCE
from rcray.evaluate.bootstrap import bootstrapped_row
from rcray.records.evaluation import MetricRow
from rcray.records.items import Items
from rcray.records.states import State

CALIBRATION_BINS = 10  # of the confidence, equally wide between 0.5 and 1


@dataclass(frozen=True)
class Shifts:
    """Likelihoods of held-out pairs under the start model and under the trained one, and both lengths, [pairs]."""

    start_w: np.ndarray  # sums of log-probabilities
    start_l: np.ndarray
    trained_w: np.ndarray
    trained_l: np.ndarray
    n_w: np.ndarray
    n_l: np.ndarray
    rows: tuple[str, ...]  # the pairs' names in their data
    per_token: bool = False  # the run's reduction: means instead of sums
    beta: float = 1.0

    @property
    def shift_w(self) -> np.ndarray:
        """z~_w per pair."""
        return (self.trained_w - self.start_w) / (self.n_w if self.per_token else 1)

    @property
    def shift_l(self) -> np.ndarray:
        """z~_l per pair."""
        return (self.trained_l - self.start_l) / (self.n_l if self.per_token else 1)

    @property
    def margin(self) -> np.ndarray:
        """m~ per pair."""
        return self.shift_w - self.shift_l

    def per_pair(self) -> dict[str, np.ndarray]:
        """The metrics that are means over pairs."""
        return {
            "accuracy": (self.margin > 0).astype(float),
            "margin": self.margin,
            "drift_w": self.shift_w,
            "drift_l": self.shift_l,
            "ranking": (self.trained_w > self.trained_l).astype(float),
            "ranking_per_token": (self.trained_w / self.n_w > self.trained_l / self.n_l).astype(float),
        }

    def items(self) -> Items:
        """What is kept of every pair."""
        names = ("start_w", "start_l", "trained_w", "trained_l", "n_w", "n_l")
        return Items(self.rows, ("",) * len(self.rows), {name: getattr(self, name) for name in names} | self.per_pair())


def most_displaced(shift_w: np.ndarray, count: int) -> list[int]:
    """Positions of the pairs whose chosen answers fell most, the worst first."""
    return [int(i) for i in np.argsort(shift_w, kind="stable")[:count]]


def preference_rows(shifts: Shifts, *, is_reference: bool = False) -> list[MetricRow]:
    """One row per metric; a model with a non-finite likelihood has no score.

    `is_reference`: the start model itself, whose margins against the reference are zero and say nothing of its ranking.
    """
    margin = shifts.margin
    bad = int((~np.isfinite(margin)).sum())
    if bad:
        reason = f"{bad} of {len(margin)} held-out pairs have a non-finite likelihood"
        names = (*shifts.per_pair(), "brier", "ece", "length_correlation")
        return [MetricRow(PREFERENCE, name, None, None, len(margin), State.DEGENERATE, reason) for name in names]
    means = {name: _mean_row(name, values) for name, values in shifts.per_pair().items()}
    if is_reference:
        reason = "the start model is its own reference"
        of_margins = ("accuracy", "brier", "ece", "length_correlation")
        undefined = {
            name: MetricRow(PREFERENCE, name, None, None, len(margin), State.UNDEFINED, reason) for name in of_margins
        }
        return list((means | undefined).values())
    probability = 1 / (1 + np.exp(-shifts.beta * np.clip(margin, -700 / shifts.beta, 700 / shifts.beta)))
    note = f"implied probability sigmoid({shifts.beta:g} m~)"
    return [
        *means.values(),
        _mean_row("brier", (1 - probability) ** 2, note),
        bootstrapped_row(PREFERENCE, "ece", len(margin), lambda draws: _calibration_error(probability[draws]), note),
        _length_row(margin, (shifts.n_w - shifts.n_l).astype(float)),
    ]


def _mean_row(name: str, values: np.ndarray, note: str | None = None) -> MetricRow:
    """A mean over pairs: its standard error is known without resampling."""
    row = bootstrapped_row(PREFERENCE, name, len(values), lambda draws: values[draws].mean(axis=1), note)
    return replace(row, value=float(values.mean()), stderr=float(values.std(ddof=1) / math.sqrt(len(values))))


def _calibration_error(probability: np.ndarray) -> np.ndarray:
    """Expected calibration error, [draws], of [draws, pairs]: |share right - mean confidence|, bin by bin.

    The better answer is the chosen one by definition, so a probability p of it is a prediction with confidence
    max(p, 1 - p), and right where p > 1/2.
    """
    confidence = np.maximum(probability, 1 - probability)
    right = (probability > 0.5).astype(float)
    bins = np.minimum(((confidence - 0.5) * 2 * CALIBRATION_BINS).astype(int), CALIBRATION_BINS - 1)
    error = np.zeros(len(probability))
    for i in range(CALIBRATION_BINS):
        error += np.abs(((right - confidence) * (bins == i)).sum(axis=1))
    return error / probability.shape[1]


def _length_row(margin: np.ndarray, longer: np.ndarray) -> MetricRow:
    """Correlation of the margin with how many tokens longer the chosen answer is."""
    if longer.std() == 0 or margin.std() == 0:
        reason = "all length differences are equal" if longer.std() == 0 else "all margins are equal"
        return MetricRow(PREFERENCE, "length_correlation", None, None, len(margin), State.UNDEFINED, reason)
    return bootstrapped_row(
        PREFERENCE, "length_correlation", len(margin), lambda draws: _correlation(margin[draws], longer[draws])
    )


def _correlation(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    a, b = a - a.mean(axis=1, keepdims=True), b - b.mean(axis=1, keepdims=True)
    scale = np.sqrt((a**2).sum(axis=1) * (b**2).sum(axis=1))
    with np.errstate(invalid="ignore", divide="ignore"):
        return (a * b).sum(axis=1) / scale
