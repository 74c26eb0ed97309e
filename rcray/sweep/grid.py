"""From an experiment file to its cells. Pure: no torch, no ray, no disk."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rcray.config import Experiment, RunConfig, build_run, run_id
from rcray.config.load import merge, set_path
from rcray.errors import ConfigError


@dataclass(frozen=True)
class Cell:
    """One run of an experiment, with the settings that distinguish it there."""

    run_id: str
    config: RunConfig
    varied: tuple[tuple[str, Any], ...]

    @property
    def label(self) -> str:
        """Human name; settings that the label does not already show are appended."""
        shown = ("model", "model.name", "objective", "objective.name", "calibration", "calibration.enabled")
        extra = [f"{path.rpartition('.')[2]}={value}" for path, value in self.varied if path not in shown]
        return " · ".join([self.config.label, *extra])


def expand(experiment: Experiment, overrides: Mapping[str, Any] | None = None) -> list[Cell]:
    """Every unique cell: explicit `cells` (or the bare settings) crossed with the `grid`, less `exclude`.

    `overrides` apply to every cell last, so an override of an axis collapses that axis.
    """
    overrides = overrides or {}
    axes = list(experiment.grid)
    found: dict[str, Cell] = {}
    for explicit in experiment.cells or [{}]:
        for values in itertools.product(*experiment.grid.values()):
            chosen = {**explicit, **dict(zip(axes, values, strict=True))}
            if any(_matches(experiment.run, chosen, rule) for rule in experiment.exclude):
                continue
            settings = {**chosen, **overrides}
            named = ", ".join(f"{path}={value}" for path, value in settings.items())
            config = build_run(experiment.run, settings, f"{experiment.name} [{named}]" if named else experiment.name)
            key = run_id(config)
            varied = tuple((path, value) for path, value in chosen.items() if path not in overrides)
            found.setdefault(key, Cell(key, config, varied))
    if not found:
        raise ConfigError(f"{experiment.name}: `exclude` leaves no cell", fix="loosen it")
    return list(found.values())


def _matches(run: Mapping[str, Any], chosen: Mapping[str, Any], rule: Mapping[str, Any]) -> bool:
    content: dict[str, Any] = merge(run, {})
    for path, value in chosen.items():
        set_path(content, path, value)
    return all(_get(content, path) == value for path, value in rule.items())


def _get(content: Any, path: str) -> Any:
    for part in path.split("."):
        if isinstance(content, str) and part == "name":
            return content  # the short form `objective: dpo`
        if not isinstance(content, Mapping):
            return None
        content = content.get(part)
    return content
