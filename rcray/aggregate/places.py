"""Which runs fill which row: results indexed by what their configuration is, not by where it was written."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rcray.aggregate.collect import CellResult
from rcray.aggregate.groups import Setting, settings_of
from rcray.aggregate.paper import TableSpec
from rcray.aggregate.published import BASELINE, Place
from rcray.config import RunConfig
from rcray.config.calibration import CalibrationConfig
from rcray.config.model import default_scores

#: The EMA momentum of a row that does not name one.
DEFAULT_BETA: float = CalibrationConfig.model_fields["ema_beta"].default


@dataclass(frozen=True)
class Places:
    """Results by model, data, objective, RC and epochs."""

    runs: Mapping[tuple[str, str, str, bool, int], Sequence[CellResult]]

    @classmethod
    def of(cls, results: Iterable[CellResult]) -> "Places":
        """Indexes every result; one run of several experiments counts once."""
        index: dict[tuple[str, str, str, bool, int], dict[str, CellResult]] = {}
        for result in results:
            config = result.cell.config
            index.setdefault(_key(config), {}).setdefault(result.cell.run_id, result)
        return cls({key: tuple(runs.values()) for key, runs in index.items()})

    def settings(self, place: Place) -> list[Setting]:
        """The settings that are this training: usually one; several are told apart by their variants.

        A run that only records another score estimator is the same training, and stands back where the usual one is.
        """
        runs = self.runs.get((place.model, place.data, place.objective, place.rc, place.epochs), ())
        if place.rc:
            beta = DEFAULT_BETA if place.ema_beta is None else place.ema_beta
            runs = [run for run in runs if math.isclose(momentum(run.cell.config), beta)]
        usual = [run for run in runs if _usual_scores(run.cell.config)]
        return settings_of(usual or runs)

    def covers(self, spec: TableSpec) -> bool:
        """Whether any row of the table has runs; an ablation needs one of the rows that make it one."""
        rows = spec.rows()
        if spec.axis == "ema":
            rows = [row for row in rows if row.place.ema_beta not in (None, DEFAULT_BETA)]
        elif spec.axis == "epochs":
            rows = [row for row in rows if row.place.epochs > 1]
        return any(self.settings(row.place) for row in rows)


def momentum(config: RunConfig) -> float:
    """The EMA momentum of a run; the usual one where nothing reads it."""
    return config.calibration.ema_beta if config.calibration.averages else DEFAULT_BETA


def _key(config: RunConfig) -> tuple[str, str, str, bool, int]:
    if config.is_start_model:
        return config.model.name, config.data.name, BASELINE, False, 0
    return (
        config.model.name,
        config.data.name,
        config.objective.name,
        config.calibration.enabled,
        config.train.epochs,
    )


def _usual_scores(config: RunConfig) -> bool:
    """Whether the band was estimated as it is by default for this way of training."""
    return config.calibration.scores == default_scores(config.model.model_dump())
