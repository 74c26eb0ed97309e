"""Two score estimators on the same training: in the columns of one run, or in two runs that differ in nothing else.

Without RC the estimator does not touch training, so two such runs made the same steps and only recorded another band.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rcray.aggregate.collect import CellResult
from rcray.aggregate.frame import Measurement, by_metric
from rcray.aggregate.groups import setting_key
from rcray.aggregate.summary import FULL, FULL_COLUMNS, SAME_SIDE, full_rows
from rcray.config import RunConfig

_COLUMNS = ("step", "log_r", *FULL_COLUMNS)


@dataclass(frozen=True)
class EstimatorPair:
    """A training with a band of its output side and a band of all parameters."""

    model: str
    title: str
    rc: str
    head: CellResult
    full: CellResult  # the same run, where it recorded both
    metrics: Mapping[str, Measurement]  # the rows that compare the bands; none where there is nothing to compare
    word: str = ""  # why there is nothing

    @property
    def runs(self) -> tuple[str, ...]:
        """The one or two runs."""
        return tuple(dict.fromkeys((self.head.cell.run_id, self.full.cell.run_id)))

    def records(self) -> dict[str, np.ndarray]:
        """Both bands at the steps that both have, the second with the suffix `_full`."""
        if self.head is self.full:
            return self.head.dynamics([*_COLUMNS, *(f"{name}{FULL}" for name in FULL_COLUMNS)])
        return joined(self.head, self.full)


def joined(head: CellResult, full: CellResult) -> dict[str, np.ndarray]:
    """The records of two runs at their common steps."""
    own, other = head.dynamics(_COLUMNS), full.dynamics(["step", *FULL_COLUMNS])
    _, left, right = np.intersect1d(own["step"], other["step"], return_indices=True)
    own = {name: values[left] for name, values in own.items()}
    return own | {f"{name}{FULL}": other[name][right] for name in FULL_COLUMNS}


def estimator_pairs(results: Sequence[CellResult]) -> list[EstimatorPair]:
    """Every training that has both bands, in order of appearance."""
    pairs = []
    full_runs: dict[tuple[str, int], CellResult] = {}
    for result in results:
        if result.cell.config.calibration.scores == "full" and not result.cell.config.calibration.enabled:
            full_runs[_without_scores(result.cell.config), result.seed] = result
    for result in results:
        config = result.cell.config
        if SAME_SIDE in result.metrics:
            pairs.append(_pair(result, result, result.metrics))
        elif config.calibration.record_full:
            pairs.append(_pair(result, result, {}, "not recorded" if result.ok else result.status))
        elif not config.calibration.enabled and config.calibration.scores != "full":
            other = full_runs.get((_without_scores(config), result.seed))
            if other is not None:
                both = result.recorded and other.recorded
                rows = by_metric(full_rows(result.cell.run_id, joined(result, other))) if both else {}
                words: list[str] = [r.status for r in (result, other) if not r.ok] or ["not recorded"]
                pairs.append(_pair(result, other, rows, words[0]))
    return pairs


def _pair(head: CellResult, full: CellResult, metrics: Mapping[str, Measurement], word: str = "") -> EstimatorPair:
    config = head.cell.config
    rc = "w/" if config.calibration.enabled else "w/o"
    return EstimatorPair(config.model.name, config.objective_title, rc, head, full, metrics, word)


def _without_scores(config: RunConfig) -> str:
    calibration = config.calibration.model_copy(update={"scores": "full"})
    return setting_key(config.model_copy(update={"calibration": calibration}))
