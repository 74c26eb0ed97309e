"""Which cells belong together: the seeds of one setting, and a setting without RC beside the same with it.

Grouping goes by a run's identity, not by its label, so a setting that has no effect (the EMA momentum of a run
without calibration) does not part what belongs together, and one that has is named in the row.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from rcray.aggregate.collect import CellResult, MetricValue
from rcray.aggregate.summary import DynamicsSummary
from rcray.config import RunConfig, content_key, identity
from rcray.records.states import State

NOT_EVALUATED = "not evaluated"  # the run is finished, its evaluation.json has no such row
MIXED = "mixed protocols"  # seeds measured with different task versions, shots or templates are not averaged


@dataclass(frozen=True)
class Estimate:
    """A number over the finished seeds of one setting."""

    value: float
    seeds: int
    stderr: float | None  # of `value`: the metric's own for one seed, std / sqrt(seeds) for several
    std: float | None  # sample standard deviation over seeds; None for one

    def shown_spread(self, several: bool) -> float | None:
        """What a table prints after ±: the spread over seeds where there are several, else the standard error."""
        return self.std if several else self.stderr


@dataclass(frozen=True)
class Setting:
    """Cells equal but for their training seed, in the order of the seeds."""

    results: tuple[CellResult, ...]
    variant: str = ""  # what distinguishes it from its neighbours with the same RC

    @property
    def config(self) -> RunConfig:
        """The configuration they share, with the first seed."""
        return self.results[0].cell.config

    @property
    def calibrated(self) -> bool:
        """With RC or without."""
        return self.config.calibration.enabled and not self.config.is_start_model

    @property
    def finished(self) -> tuple[CellResult, ...]:
        """The seeds that have a result."""
        return tuple(result for result in self.results if result.ok)

    @property
    def word(self) -> str:
        """What to print in place of numbers: `ok` as soon as one seed has a result."""
        if self.finished:
            return "ok"
        found = {result.status for result in self.results}
        return "/".join(status for status in State if status in found)

    @property
    def rc(self) -> str:
        """The RC column: `w/o` or `w/`, and the variant."""
        if self.config.is_start_model:
            return "–"
        return " ".join(filter(None, ["w/" if self.calibrated else "w/o", self.variant and f"({self.variant})"]))

    def drawn(self) -> CellResult | None:
        """The seed that stands for the setting in a figure: the first that recorded anything, finished or not."""
        recorded = [result for result in self.results if result.summary is not None]
        return next((result for result in recorded if result.ok), recorded[0] if recorded else None)

    @property
    def run_ids(self) -> tuple[str, ...]:
        """The runs, in the order of the seeds."""
        return tuple(result.cell.run_id for result in self.results)

    def metric(self, name: str) -> Estimate | None:
        """A metric over the finished seeds; None where there is no number to print, and `problem` says why."""
        found = self.measured(name)
        if not found or self.problem(name):
            return None
        return estimate([m.value for m in found.values()], next(iter(found.values())).stderr)

    def measured(self, name: str) -> dict[int, MetricValue]:
        """A metric by the seeds that have it."""
        return {result.seed: result.metrics[name] for result in self.finished if name in result.metrics}

    def problem(self, name: str) -> str:
        """Why a metric is no number: the status, `not evaluated`, a degenerate seed, measurements of two kinds."""
        if not self.finished:
            return self.word
        found = list(self.measured(name).values())
        if not found:
            return NOT_EVALUATED
        bad = [m for m in found if not m.ok]
        if bad:
            word = bad[0].status if bad[0].status != "ok" else "degenerate"
            return word if len(bad) == len(found) else f"{len(bad)} of {len(found)} {word}"
        if len({m.protocol for m in found}) > 1:
            return MIXED
        return ""

    def summary(self, read: Callable[[DynamicsSummary], float]) -> Estimate | None:
        """A number of the dynamics summary over the finished seeds."""
        return estimate([read(result.summary) for result in self.finished if result.summary is not None], None)


@dataclass(frozen=True)
class Comparison:
    """One model and objective: without RC, and with RC in one or more variants."""

    model: str
    objective: str
    variant: str  # what distinguishes it from other comparisons of the same model and objective
    without: Setting | None
    with_rc: tuple[Setting, ...]

    @property
    def title(self) -> str:
        """The objective, and its variant where there are several."""
        return f"{self.objective} ({self.variant})" if self.variant else self.objective

    @property
    def settings(self) -> tuple[Setting, ...]:
        """Every row of the comparison, without RC first."""
        return (self.without, *self.with_rc) if self.without else self.with_rc


def compare(results: Sequence[CellResult]) -> list[Comparison]:
    """Groups results into comparisons, in the order in which they first appear; models stay together."""
    by_pair: dict[str, dict[str, list[CellResult]]] = {}
    for result in results:
        config = result.cell.config
        by_pair.setdefault(pair_key(config), {}).setdefault(setting_key(config), []).append(result)
    pairs = [[_seeds(group) for group in settings.values()] for settings in by_pair.values()]
    models = list(dict.fromkeys(pair[0].config.model.name for pair in pairs))
    pairs.sort(key=lambda pair: models.index(pair[0].config.model.name))  # stable
    variants = _variants([_without_rc(pair[0].config) for pair in pairs])
    comparisons = []
    for pair, variant in zip(pairs, variants, strict=True):
        calibrated = [setting for setting in pair if setting.calibrated]
        named = zip(calibrated, _variants([setting.config for setting in calibrated]), strict=True)
        comparisons.append(
            Comparison(
                model=pair[0].config.model.name,
                objective=pair[0].config.objective_title,
                variant=variant,
                without=next((setting for setting in pair if not setting.calibrated), None),
                with_rc=tuple(Setting(setting.results, name) for setting, name in named),
            )
        )
    return comparisons


def difference(without: Setting, with_rc: Setting, name: str) -> Estimate | None:
    """A metric with RC minus the same without it.

    Several seeds are paired by seed. One seed has no spread over seeds: the standard errors of the two rows are
    added as if independent, which overstates the error where the same held-out pairs move together.
    """
    a, b = without.metric(name), with_rc.metric(name)
    if a is None or b is None or not comparable(without, with_rc, name):
        return None
    if len(without.results) == len(with_rc.results) == 1:
        stderr = math.hypot(a.stderr, b.stderr) if a.stderr is not None and b.stderr is not None else None
        return Estimate(b.value - a.value, 1, stderr, None)
    return estimate(paired_differences(without, with_rc, name), None)


def paired_differences(without: Setting, with_rc: Setting, name: str) -> list[float]:
    """With minus without, for every seed that has both."""
    before, after = without.measured(name), with_rc.measured(name)
    return [after[seed].value - before[seed].value for seed in sorted(before.keys() & after.keys())]


def comparable(one: Setting, other: Setting, name: str) -> bool:
    """Whether a benchmark was measured in the same way on both."""
    protocols = {m.protocol for setting in (one, other) for m in setting.measured(name).values()}
    return len(protocols) <= 1


def _seeds(results: Iterable[CellResult]) -> Setting:
    return Setting(tuple(sorted(results, key=lambda result: result.seed)))


def estimate(values: Sequence[float], stderr: float | None) -> Estimate | None:
    """The mean of values over seeds; `stderr` is that of a single one."""
    if not values:
        return None
    if len(values) == 1:
        return Estimate(values[0], 1, stderr, None)
    mean = fmean(values)
    # statistics.stdev is exact and takes most of the time of a large report; two passes lose nothing that is printed
    std = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
    return Estimate(mean, len(values), std / math.sqrt(len(values)), std)


def _without_rc(config: RunConfig) -> RunConfig:
    return config.model_copy(update={"calibration": config.calibration.model_copy(update={"enabled": False})})


def pair_key(config: RunConfig) -> str:
    """Equal for settings that differ in RC and seed alone."""
    return setting_key(_without_rc(config))


def setting_key(config: RunConfig) -> str:
    """Equal for runs that differ in their seed alone."""
    content = identity(config)
    content["train"].pop("seed", None)
    return content_key(content)


def settings_of(results: Iterable[CellResult]) -> list[Setting]:
    """Results gathered by setting, in order of appearance; each named by what distinguishes it from the others."""
    by_setting: dict[str, list[CellResult]] = {}
    for result in results:
        by_setting.setdefault(setting_key(result.cell.config), []).append(result)
    found = [_seeds(group) for group in by_setting.values()]
    names = _variants([setting.config for setting in found])
    return [Setting(setting.results, name) for setting, name in zip(found, names, strict=True)]


def _variants(configs: Sequence[RunConfig]) -> list[str]:
    """For each config, the settings in which it differs from the others of the same model and objective."""
    flat = [_flatten(identity(config)) for config in configs]
    peers: dict[tuple[str, str], list[dict[str, Any]]] = {}
    keys = [(config.model.name, config.objective_title) for config in configs]
    for key, own in zip(keys, flat, strict=True):
        peers.setdefault(key, []).append(own)
    varying = {key: _varying(group) for key, group in peers.items()}
    return [
        ", ".join(f"{path.rpartition('.')[2]}={own[path]}" for path in own if path in varying[key])
        for key, own in zip(keys, flat, strict=True)
    ]


def _varying(group: Sequence[Mapping[str, Any]]) -> set[str]:
    """Paths that have more than one value in the group; being absent is a value. The seed does not count.

    Nor does what follows from another: where runs with adapters all have the same ones, `method` says it.
    """
    values: dict[str, set[str]] = {}
    for own in group:
        for path, value in own.items():
            values.setdefault(path, set()).add(repr(value))
    counts = Counter(path for own in group for path in own)
    values.pop("train.seed", None)
    everywhere = [path for path, found in values.items() if counts[path] == len(group) and len(found) > 1]

    def follows(path: str) -> bool:
        """Whether having it at all is told by a value that every run has."""
        return any(
            {repr(own[other]) for own in group if path in own}.isdisjoint(
                repr(own[other]) for own in group if path not in own
            )
            for other in everywhere
        )

    return {
        path for path, found in values.items() if len(found) > 1 or (counts[path] < len(group) and not follows(path))
    }


def _flatten(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, Mapping) and value:
            flat.update(_flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat
