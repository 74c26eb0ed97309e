"""Which cells belong together: the seeds of one setting, and a setting without RC beside the same with it.

Grouping goes by a run's identity, not by its label, so a setting that has no effect (the EMA momentum of a run
without calibration) does not part what belongs together, and one that has is named in the row.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rcray.aggregate.collect import CellResult, Metric
from rcray.aggregate.estimates import Estimate, estimate
from rcray.aggregate.frame import Measurement
from rcray.aggregate.paired import paired_error
from rcray.aggregate.tables import Column, Entry, Row, Table
from rcray.config import RunConfig, content_key, flatten, identity
from rcray.config.models import table_name
from rcray.records.columns import DYNAMICS
from rcray.records.states import State

NOT_EVALUATED = "not evaluated"  # the run is finished, its evaluation.json has no such row
NO_RECORDS = "no records"  # the same of step records
NOT_PLANNED = "not planned"  # no experiment given contains this training
_KIND = "calibration.kind"  # said by its value alone
MIXED = "mixed protocols"  # seeds measured with different task versions, shots or templates are not averaged


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
            return State.OK
        states = {result.status for result in self.results}
        return "/".join(state for state in State if state in states)

    @property
    def rc(self) -> str:
        """The RC column: `w/o` or `w/`, and the variant."""
        if self.config.is_start_model:
            return "–"
        return " ".join(filter(None, ["w/" if self.calibrated else "w/o", self.variant and f"({self.variant})"]))

    def drawn(self) -> CellResult | None:
        """The seed that stands for the setting in a figure: the first that recorded anything, finished or not."""
        recorded = [result for result in self.results if result.recorded]
        return next((result for result in recorded if result.ok), recorded[0] if recorded else None)

    @property
    def run_ids(self) -> tuple[str, ...]:
        """The runs, in the order of the seeds."""
        return tuple(result.cell.run_id for result in self.results)

    @property
    def seeds(self) -> str:
        """The seeds with a result, of those planned."""
        finished, planned = len(self.finished), len(self.results)
        return f"{finished} of {planned}" if finished < planned else str(planned)

    def metric(self, metric: Metric) -> Estimate | None:
        """A metric over the finished seeds; None where there is no number to print, and `problem` says why."""
        rows = list(self.measured(metric).values())
        if not rows or self.problem(metric):
            return None
        return estimate([row.value for row in rows], rows[0].error)

    def measured(self, metric: Metric) -> dict[int, Measurement]:
        """A metric by the seeds that have it."""
        return {result.seed: row for result in self.finished if (row := result.measurement(metric))}

    def problem(self, metric: Metric) -> str:
        """Why a metric is no number: the status, `not evaluated`, a degenerate seed, measurements of two kinds."""
        if not self.finished:
            return self.word
        if not isinstance(metric, str):
            words = {word for key in metric if (word := self.problem(key))}
            return words.pop() if len(words) == 1 else "incomplete" if words or not self.measured(metric) else ""
        rows = list(self.measured(metric).values())
        if not rows:
            return NO_RECORDS if metric.startswith(DYNAMICS) else NOT_EVALUATED
        bad = [row for row in rows if not row.ok]
        if bad:
            word = bad[0].status if bad[0].status != State.OK else State.DEGENERATE
            return word if len(bad) == len(rows) else f"{len(bad)} of {len(rows)} {word}"
        return MIXED if len({row.protocol for row in rows}) > 1 else ""

    def entry(self, metric: Metric, several: bool, mark: str = "", tip: str = "") -> Entry:
        """A metric as a table shows it; `several`: the table has seeds, and their spread."""
        value = self.metric(metric)
        if value is None:
            keys = (metric,) if isinstance(metric, str) else metric
            reasons = {row.reason for key in keys for row in self.measured(key).values() if row.reason}
            return Entry(self.problem(metric), tone="status", tip="; ".join(sorted(reasons)), runs=self.run_ids)
        return Entry(value=value.value, spread=value.spread(several), mark=mark, tip=tip, runs=self.run_ids)


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

    def title_of(self, setting: Setting) -> str:
        """The same with the variant of one of its settings."""
        return f"{self.title} ({setting.variant})" if setting.variant else self.title

    @property
    def settings(self) -> tuple[Setting, ...]:
        """Every row of the comparison, without RC first."""
        return (self.without, *self.with_rc) if self.without else self.with_rc


#: The first columns of a table with a row for each setting, and its rows.
HEADS = (Column("objective", "Objective", align="left"), Column("rc", "RC", align="left"))


def setting_rows(comparisons: Iterable[Comparison], entries: Callable[[Setting], Iterable[Entry]]) -> tuple[Row, ...]:
    """A row for each setting: under HEADS what it is, then what `entries` says of it."""
    return tuple(
        Row(table_name(c.model), (Entry(c.title), Entry(setting.rc), *entries(setting)))
        for c in comparisons
        for setting in c.settings
    )


#: Under every table whose rows are several seeds.
OVER_SEEDS = "Mean ± sample standard deviation over seeds."


def settings_table(
    name: str,
    title: str,
    note: str,
    comparisons: Sequence[Comparison],
    columns: Sequence[Column],
    other: Callable[[Setting, Column], Entry | None] = lambda setting, column: None,
) -> Table:
    """A row for each setting, with what the frame has for each column; `other` says what stands there instead."""
    several = has_seeds(setting for c in comparisons for setting in c.settings)

    def entries(setting: Setting) -> list[Entry]:
        return [other(setting, column) or setting.entry(column.metric, several) for column in columns]

    notes = (note, OVER_SEEDS) if several else (note,)
    rows = setting_rows(comparisons, entries)
    return Table(title, notes, (*HEADS, *columns), rows, "std" if several else "stderr", name)


def compare(results: Sequence[CellResult]) -> list[Comparison]:
    """Groups results into comparisons, in the order in which they first appear; models stay together."""
    pairs: dict[str, list[Setting]] = {}
    for setting in _by_setting(results):
        pairs.setdefault(pair_key(setting.config), []).append(setting)
    models = list(dict.fromkeys(result.cell.config.model.name for result in results))
    ordered = sorted(pairs.values(), key=lambda pair: models.index(pair[0].config.model.name))  # stable
    return [
        Comparison(
            model=pair[0].config.model.name,
            objective=pair[0].config.objective_title,
            variant=variant,
            without=next((setting for setting in pair if not setting.calibrated), None),
            with_rc=tuple(_named([setting for setting in pair if setting.calibrated])),
        )
        for pair, variant in zip(ordered, _variants([pair[0].config.without_rc for pair in ordered]), strict=True)
    ]


def difference(without: Setting, with_rc: Setting, metric: Metric) -> Estimate | None:
    """A metric with RC minus the same without it.

    Runs that kept what was measured on each pair or document are compared item by item. Otherwise several seeds are
    paired by seed, and of one seed the standard errors of the two rows are added as if independent, which overstates
    the error where the same held-out pairs move together.
    """
    before, after = without.metric(metric), with_rc.metric(metric)
    if before is None or after is None or not comparable(without, with_rc, metric):
        return None
    one_seed = len(without.results) == len(with_rc.results) == 1
    by_seed = {result.seed: result for result in without.finished}
    pairs = [(by_seed[result.seed], result) for result in with_rc.finished if result.seed in by_seed]
    values = [after.value - before.value] if one_seed else paired_differences(without, with_rc, metric)
    if values and len(values) == len(pairs) and (error := paired_error(pairs, metric)):
        plain = estimate(values)
        assert plain is not None
        return replace(plain, stderr=error.stderr, paired=True, degrees=error.degrees, p=error.p)
    if one_seed:
        known = before.stderr is not None and after.stderr is not None
        stderr = math.hypot(before.stderr or 0.0, after.stderr or 0.0) if known else None
        return Estimate(after.value - before.value, 1, stderr, None)
    return estimate(values)


def paired_differences(without: Setting | None, with_rc: Setting | None, metric: Metric) -> list[float]:
    """With minus without, for every seed that has both."""
    if without is None or with_rc is None:
        return []
    before, after = without.measured(metric), with_rc.measured(metric)
    return [after[seed].value - before[seed].value for seed in sorted(before.keys() & after.keys())]


def comparable(one: Setting, other: Setting, metric: Metric) -> bool:
    """Whether a metric was measured in the same way on both: a benchmark's protocol, sums or means of likelihoods."""
    keys = (metric,) if isinstance(metric, str) else metric
    return all(
        len({(row.protocol, row.unit) for setting in (one, other) for row in setting.measured(key).values()}) <= 1
        for key in keys
    )


def has_seeds(settings: Iterable[Setting | None]) -> bool:
    """Whether any setting was planned with more than one seed: tables then show the spread over seeds."""
    return any(setting is not None and len(setting.results) > 1 for setting in settings)


def pair_key(config: RunConfig) -> str:
    """Equal for settings that differ in RC and seed alone."""
    return setting_key(config.without_rc)


def setting_key(config: RunConfig) -> str:
    """Equal for runs that differ in their seed alone."""
    content = identity(config)
    content["train"].pop("seed", None)
    return content_key(content)


def settings_of(results: Iterable[CellResult]) -> list[Setting]:
    """Results gathered by setting, in order of appearance; each named by what distinguishes it from the others."""
    return _named(_by_setting(results))


def _by_setting(results: Iterable[CellResult]) -> list[Setting]:
    groups: dict[str, list[CellResult]] = {}
    for result in results:
        groups.setdefault(setting_key(result.cell.config), []).append(result)
    return [Setting(tuple(sorted(group, key=lambda result: result.seed))) for group in groups.values()]


def _named(settings: Sequence[Setting]) -> list[Setting]:
    names = _variants([setting.config for setting in settings])
    return [Setting(setting.results, name) for setting, name in zip(settings, names, strict=True)]


def _variants(configs: Sequence[RunConfig]) -> list[str]:
    """For each config, the settings in which it differs from the others of the same model and objective."""
    flat = [flatten(with_kind(config)) for config in configs]
    peers: dict[tuple[str, str], list[dict[str, Any]]] = {}
    keys = [(config.model.name, config.objective_title) for config in configs]
    for key, own in zip(keys, flat, strict=True):
        peers.setdefault(key, []).append(own)
    varying = {key: varying_paths(group) for key, group in peers.items()}
    return [
        ", ".join(
            str(own[path]) if path == _KIND else f"{path.rpartition('.')[2]}={own[path]}"
            for path in own
            if path in varying[key]
        )
        for key, own in zip(keys, flat, strict=True)
    ]


def with_kind(config: RunConfig) -> dict[str, Any]:
    """A run's identity with the kind of its calibration spelled out, from which other fields follow."""
    content = identity(config)
    if config.calibration.enabled:
        content["calibration"] = {"kind": config.calibration.kind, **content["calibration"]}
    return content


def varying_paths(group: Sequence[Mapping[str, Any]]) -> set[str]:
    """Paths that have more than one value in the group; being absent is a value. The seed does not count.

    Nor does what follows from another: where runs with adapters all have the same ones, `method` says it.
    """
    values: dict[str, set[str]] = {}
    for own in group:
        for path, value in own.items():
            values.setdefault(path, set()).add(repr(value))
    counts = Counter(path for own in group for path in own)
    values.pop("train.seed", None)
    everywhere = [path for path, own in values.items() if counts[path] == len(group) and len(own) > 1]

    def follows(path: str) -> bool:
        """Whether having it at all is told by a value that every run has."""
        return any(
            {repr(own[other]) for own in group if path in own}.isdisjoint(
                repr(own[other]) for own in group if path not in own
            )
            for other in everywhere
        )

    return {path for path, own in values.items() if len(own) > 1 or (counts[path] < len(group) and not follows(path))}
