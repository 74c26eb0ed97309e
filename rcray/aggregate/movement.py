"""How far a run moved from its start model, where the probability went, and what it gained for the distance.

Legend: d = sqrt(KL to the start model, per token of the probe's chosen answers); gain = share of the probe pairs
whose margin grew, beyond the half that chance gives. Over-optimisation has the form gain = d (a - b log d), which
rises, turns at d* = exp(a / b - 1) and falls (Gao et al. 2023 for reward models, Rafailov et al. 2024 for DPO).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rcray.aggregate.frame import SHARE, Measurement
from rcray.aggregate.summary import read_columns
from rcray.records.columns import DYNAMICS
from rcray.store import RunDir

KL, ROOT_KL = f"{DYNAMICS}kl", f"{DYNAMICS}root_kl"
GREW_END, GREW_BEST = f"{DYNAMICS}probe_accuracy_end", f"{DYNAMICS}probe_accuracy_best"
ROOT_KL_AT_BEST = f"{DYNAMICS}root_kl_at_best"
#: Changes per token since the first probe, by the recorded column.
CHANGES = {
    "probe_entropy": f"{DYNAMICS}entropy_change",
    "probe_logp_w": f"{DYNAMICS}logp_w_change",
    "probe_logp_greedy": f"{DYNAMICS}logp_greedy_change",
    "probe_logp_other": f"{DYNAMICS}logp_other_change",
    "probe_logp_shuffled": f"{DYNAMICS}logp_shuffled_change",
}
_PER_TOKEN = "nats/token"
_LEAST_POINTS = 6  # beyond the start, for a fit of two constants
_LEAST_EXPLAINED = 0.5  # of the gains' spread; a worse fit has no turning point to speak of


def movement_rows(run: RunDir) -> Iterator[Measurement]:
    """Rows of the frame; none of a run from before these columns, or whose model does not allow them."""
    records = read_columns(run, ("step", "probe_kl", "probe_accuracy", *CHANGES))
    path = _path(records)
    if len(path.distance) < 2:
        return
    best = int(np.argmax(path.grew))  # the first: the nearest to the start
    for metric, value, unit in (
        (KL, path.distance[-1] ** 2, _PER_TOKEN),
        (ROOT_KL, path.distance[-1], ""),
        (GREW_END, path.grew[-1], SHARE),
        (GREW_BEST, path.grew[best], SHARE),
        (ROOT_KL_AT_BEST, path.distance[best], ""),
    ):
        yield Measurement(run.run_id, metric, float(value), n=len(path.distance), unit=unit)
    for column, metric in CHANGES.items():
        known = records[column][np.isfinite(records[column])]
        if len(known) > 1:
            yield Measurement(run.run_id, metric, float(known[-1] - known[0]), n=len(known), unit=_PER_TOKEN)


@dataclass(frozen=True)
class MovementPath:
    """A run at each of its probes."""

    steps: np.ndarray
    distance: np.ndarray  # d
    grew: np.ndarray  # share of the probe pairs whose margin grew since the start


def movement_path(run: RunDir) -> MovementPath:
    """Where a run was at each of its probes; empty where nothing is recorded."""
    return _path(read_columns(run, ("step", "probe_kl", "probe_accuracy")))


def _path(records: dict[str, np.ndarray]) -> MovementPath:
    known = np.isfinite(records["probe_kl"]) & np.isfinite(records["probe_accuracy"])
    distance = np.sqrt(np.maximum(records["probe_kl"][known], 0))
    return MovementPath(records["step"][known], distance, records["probe_accuracy"][known])


@dataclass(frozen=True)
class TurningPoint:
    """The fit of gain = d (a - b log d)."""

    a: float
    b: float

    @property
    def at(self) -> float:
        """d*, where the gain is largest."""
        return math.exp(self.a / self.b - 1)

    def gain(self, distance: np.ndarray) -> np.ndarray:
        """The fitted gain."""
        return distance * (self.a - self.b * np.log(distance))


def turning_point(distance: np.ndarray, gain: np.ndarray) -> TurningPoint | str:
    """The fit where it turns within the points; otherwise why there is none to name."""
    beyond = distance > 0
    d, g = distance[beyond], gain[beyond]
    if len(d) < _LEAST_POINTS:
        return "too few points"
    columns = np.column_stack([d, -d * np.log(d)])
    (a, b), *_ = np.linalg.lstsq(columns, g, rcond=None)
    spread = float(((g - g.mean()) ** 2).sum())
    left = float(((g - columns @ (a, b)) ** 2).sum())
    if spread == 0 or left > (1 - _LEAST_EXPLAINED) * spread:
        return "no clear curve"
    if b <= 0 or a / b > 50 or TurningPoint(a, b).at >= d.max():
        return "not reached"
    turn = TurningPoint(float(a), float(b))
    return turn if turn.at > d.min() else "no clear curve"
