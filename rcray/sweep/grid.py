"""From an experiment file to its cells. Pure: no torch, no ray, no disk."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rcray.config import Experiment, RunConfig, build_run, run_id
from rcray.config.load import merge, set_paths, shortened
from rcray.config.schema import open_short_forms
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
        shown = {"model", "model.name", "objective", "objective.name", "calibration", "calibration.enabled"}
        if self.config.is_start_model:  # what was not done to it says nothing
            shown |= {path for path, _ in self.varied if path.partition(".")[0] not in ("data", "likelihood")}
        named = {"model", "model.name"}
        shown -= {path for path, value in self.varied if path in named and "/" in str(value)}  # shown by its last part
        extra = [f"{path.rpartition('.')[2]}={value}" for path, value in self.varied if path not in shown]
        return " · ".join([self.config.label, *extra])

    def content(self) -> dict[str, Any]:
        """As JSON, for pipes and files."""
        varied = [[path, value] for path, value in self.varied]
        return {"run_id": self.run_id, "varied": varied, "config": self.config.model_dump(mode="json")}

    @staticmethod
    def key_of(content: Mapping[str, Any]) -> str:
        """The run id in a cell's JSON, whether or not this version understands its settings."""
        return str(content["run_id"])

    @classmethod
    def from_content(cls, content: Mapping[str, Any]) -> "Cell":
        """The cell of its JSON; ValueError where this version does not understand its settings."""
        varied = tuple((path, value) for path, value in content["varied"])
        return cls(cls.key_of(content), RunConfig.model_validate(content["config"]), varied)


def expand(
    experiment: Experiment,
    overrides: Mapping[str, Any] | None = None,
    points: Sequence[Mapping[str, Any]] | None = None,
) -> list[Cell]:
    """Every unique cell: explicit `cells` (or the bare settings) crossed with the `grid`, less `exclude`.

    `overrides` apply to every cell last, so an override of an axis collapses that axis. `points` are those of a
    search, where they are not the ones it starts with.
    """
    overrides = overrides or {}
    if points is None:
        points = experiment.search.points() if experiment.search else [{}]
    axes = list(experiment.grid)
    rules = [_nested({}, rule) for rule in experiment.exclude]
    used: set[int] = set()
    cells: dict[str, Cell] = {}
    for explicit, point in itertools.product(experiment.cells or [{}], points):
        for values in itertools.product(*experiment.grid.values()):
            chosen = {**explicit, **point, **dict(zip(axes, values, strict=True))}
            content = _nested(experiment.run, chosen)
            matching = {i for i, rule in enumerate(rules) if _covers(rule, content)}
            used |= matching
            if matching:
                continue
            settings = {**chosen, **overrides}
            named = ", ".join(shortened(" ".join(f"{path}={value}".split())) for path, value in settings.items())
            config = build_run(experiment.run, settings, f"{experiment.name} [{named}]" if named else experiment.name)
            key = run_id(config)
            varied = tuple((path, value) for path, value in chosen.items() if path not in overrides)
            cells.setdefault(key, Cell(key, config, varied))
    for i, rule in enumerate(experiment.exclude):
        if i not in used:
            raise ConfigError(
                f"{experiment.name}: exclude.{i}: {rule} matches no cell",
                fix="it reads what `run`, `cells` and `grid` say, not defaults: correct it or delete it",
            )
    if not cells:
        raise ConfigError(f"{experiment.name}: `exclude` leaves no cell", fix="loosen it")
    return list(cells.values())


def chosen(cells: Sequence[Cell], only: Sequence[str] | None, where: object) -> list[Cell]:
    """The cells of these run ids, given one by one or with commas between; all of them where none are given."""
    wanted = [key.strip() for given in only or () for key in given.split(",") if key.strip()]
    by_key = {cell.run_id: cell for cell in cells}
    for key in wanted:
        if key not in by_key:
            raise ConfigError(
                f"--only {key}: {where} has no such cell",
                fix="`rcray plan` lists the run ids; a page written with other settings or --tiny has other ones",
            )
    return [cell for key, cell in by_key.items() if key in wanted] if wanted else list(cells)


def _nested(settings: Mapping[str, Any], paths: Mapping[str, Any]) -> dict[str, Any]:
    content: dict[str, Any] = merge(settings, {})
    set_paths(content, paths)
    return open_short_forms(content)


def _covers(rule: Any, content: Any) -> bool:
    """Whether everything the rule says is so in the content."""
    if isinstance(rule, Mapping) and isinstance(content, Mapping):
        return all(key in content and _covers(value, content[key]) for key, value in rule.items())
    return bool(rule == content)
