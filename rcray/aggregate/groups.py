"""Which cells belong together: the seeds of one setting, and a setting without RC beside the same with it.

Grouping goes by a run's identity, not by its label, so a setting that has no effect (the EMA momentum of a run
without calibration) does not part what belongs together, and one that has is named in the row.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from rcray.aggregate.collect import STATUSES, CellResult
from rcray.aggregate.summary import DynamicsSummary
from rcray.config import RunConfig, content_key, identity


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
        return self.config.calibration.enabled

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
        return "/".join(status for status in STATUSES if status in found)

    @property
    def rc(self) -> str:
        """The RC column: `w/o` or `w/`, and the variant."""
        return " ".join(filter(None, ["w/" if self.calibrated else "w/o", self.variant and f"({self.variant})"]))

    def drawn(self) -> CellResult | None:
        """The seed that stands for the setting in a figure: the first that recorded anything, finished or not."""
        recorded = [result for result in self.results if result.summary is not None]
        return next((result for result in recorded if result.ok), recorded[0] if recorded else None)

    def metric(self, name: str) -> Estimate | None:
        """A metric over the finished seeds; None where none of them was evaluated."""
        found = [result.metrics[name] for result in self.finished if name in result.metrics]
        return _estimate([m.value for m in found], found[0].stderr if found else None)

    def summary(self, read: Callable[[DynamicsSummary], float]) -> Estimate | None:
        """A number of the dynamics summary over the finished seeds."""
        return _estimate([read(result.summary) for result in self.finished if result.summary is not None], None)


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
        by_pair.setdefault(_pair_key(config), {}).setdefault(_setting_key(config), []).append(result)
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
    if len(without.results) == len(with_rc.results) == 1:
        a, b = without.metric(name), with_rc.metric(name)
        if a is None or b is None:
            return None
        stderr = math.hypot(a.stderr, b.stderr) if a.stderr is not None and b.stderr is not None else None
        return Estimate(b.value - a.value, 1, stderr, None)
    before = {r.seed: r.metrics[name].value for r in without.finished if name in r.metrics}
    after = {r.seed: r.metrics[name].value for r in with_rc.finished if name in r.metrics}
    return _estimate([after[seed] - before[seed] for seed in sorted(before.keys() & after.keys())], None)


def _seeds(results: Iterable[CellResult]) -> Setting:
    return Setting(tuple(sorted(results, key=lambda result: result.seed)))


def _estimate(values: Sequence[float], stderr: float | None) -> Estimate | None:
    if not values:
        return None
    if len(values) == 1:
        return Estimate(values[0], 1, stderr, None)
    std = stdev(values) if all(map(math.isfinite, values)) else math.nan
    return Estimate(fmean(values), len(values), std / math.sqrt(len(values)), std)


def _without_rc(config: RunConfig) -> RunConfig:
    return config.model_copy(update={"calibration": config.calibration.model_copy(update={"enabled": False})})


def _pair_key(config: RunConfig) -> str:
    return _setting_key(_without_rc(config))


def _setting_key(config: RunConfig) -> str:
    content = identity(config)
    del content["train"]["seed"]
    return content_key(content)


def _variants(configs: Sequence[RunConfig]) -> list[str]:
    """For each config, the settings in which it differs from the others of the same model and objective."""
    flat = [_flatten(identity(config)) for config in configs]
    names = []
    for config, own in zip(configs, flat, strict=True):
        peers = [
            other
            for peer, other in zip(configs, flat, strict=True)
            if (peer.model.name, peer.objective_title) == (config.model.name, config.objective_title)
        ]
        paths = [
            path
            for path in own
            if path != "train.seed" and any(peer.get(path) != own[path] for peer in peers)
        ]  # fmt: skip
        names.append(", ".join(f"{path.rpartition('.')[2]}={own[path]}" for path in paths))
    return names


def _flatten(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, Mapping) and value:
            flat.update(_flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat
