"""The cells of a page: settings with their seeds, the fields that tell them apart, their numbers and differences."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from rcray.aggregate.collect import CellResult
from rcray.aggregate.estimates import t_quantile
from rcray.aggregate.explore.curves import pack
from rcray.aggregate.frame import ACCURACY, DRIFT_L, DRIFT_W, MARGIN, SHARE, is_benchmark
from rcray.aggregate.groups import (
    Comparison,
    Setting,
    compare,
    difference,
    has_seeds,
    setting_key,
    varying_paths,
    with_kind,
)
from rcray.aggregate.movement import ROOT_KL
from rcray.aggregate.summary import IN_TRUE_BAND, REALISED
from rcray.config import flatten

_BENCHMARKS = 8  # columns of the table at most
_DIFFERENCES = 320_000  # that a page holds: 5 MB, at 0.3 ms each; 15 columns of 200 settings, or 7 of 300
#: What the title of an objective or a calibration says already.
_SAID = ("objective.name", "calibration.enabled", "calibration.kind", "model.name", "semantics")


@dataclass(frozen=True)
class Number:
    """A column of the table, and an axis of the parallel coordinates."""

    key: str
    title: str
    unit: str = ""
    percent: bool = False
    digits: int = 2
    sign: bool = False
    help: str = ""
    likelihood: bool = False  # a sum of log-probabilities, or a mean: each setting has it in its own unit


@dataclass(frozen=True)
class Row:
    """One setting and how it is called."""

    key: str
    setting: Setting
    objective: str
    calibration: str  # its kind
    variant: str  # what else tells it from its neighbours


def rows_of(results: Sequence[CellResult]) -> list[Row]:
    """Every setting, objectives together and without calibration first."""
    return [
        Row(setting_key(setting.config), setting, comparison.objective, kind, _variant(setting, comparison))
        for comparison in compare(results)
        for setting in comparison.settings
        for kind in [_kind(setting)]
    ]


def _kind(setting: Setting) -> str:
    if setting.config.is_start_model:
        return "–"
    return setting.config.calibration.kind if setting.calibrated else "none"


def _variant(setting: Setting, comparison: Comparison) -> str:
    parts = [*comparison.variant.split(", "), *setting.variant.split(", ")]
    return ", ".join(part for part in dict.fromkeys(parts) if part and part != _kind(setting))


def numbers_of(results: Sequence[CellResult], unit: str) -> list[Number]:
    """What there is to compare, in the order of the columns."""
    there = {metric: row for result in results for metric, row in result.metrics.items()}

    def likelihood(key: str, title: str, said: str) -> Number:
        return Number(key, title, unit, digits=2 if unit == "nats" else 3, sign=True, help=said, likelihood=True)

    always = (
        Number(ACCURACY, "Accuracy", "%", True, 1, help="held-out pairs whose margin grew against the start model"),
        likelihood(DRIFT_W, "Δz_w", "held-out drift of the chosen answers"),
        likelihood(DRIFT_L, "Δz_l", "held-out drift of the rejected answers"),
        likelihood(MARGIN, "Margin", "Δz_w - Δz_l, held-out pairs"),
        Number(ROOT_KL, "√KL", "√nats", digits=3, help="root of the KL to the start model per token, probe set"),
        Number(IN_TRUE_BAND, "In true band", "%", True, 1, help="steps inside the band of the update that is made"),
        Number(REALISED["iii"], "On iii", "%", True, 1, help="probe intervals: winner preserved, loser suppressed"),
    )
    benchmarks = [
        Number(key, key.replace("/", " "), "%" if row.unit == SHARE else row.unit, row.unit == SHARE, 1, help=key)
        for key, row in there.items()
        if is_benchmark(key)
    ]
    return [*(number for number in always if number.key in there), *benchmarks[:_BENCHMARKS]]


def notes_of(results: Sequence[CellResult]) -> list[str]:
    """What a reader of the table would else not know: what is left out of it, and what must not be compared."""
    notes = []
    there = {metric for result in results for metric in result.metrics if is_benchmark(metric)}
    if len(there) > _BENCHMARKS:
        left = len(there) - _BENCHMARKS
        notes.append(f"{left} of {len(there)} benchmarks have no column here; the report has all of them.")
    if len({result.cell.config.likelihood for result in results}) > 1:
        notes.append(
            "Some cells have sums of log-probabilities (likelihood: sum, in nats), others means (likelihood: mean, in "
            "nats/token): no difference of Δz_w, Δz_l or margin is taken between the two."
        )
    return notes


def fields_of(rows: Sequence[Row]) -> tuple[list[dict[str, Any]], dict[str, list[Any]]]:
    """The fields in which settings differ, and each setting's values of them.

    Objective and calibration come first. What follows from either of them, or from the model, is left out: an
    objective's own constants are no axis where every cell of the objective has the same.
    """
    flat = {row.key: flatten(with_kind(row.setting.config)) for row in rows}
    named = {
        "objective": {row.key: row.objective for row in rows},
        "calibration": {row.key: row.calibration for row in rows},
        "model": {row.key: row.setting.config.model.label for row in rows},
    }
    columns = {name: values for name, values in named.items() if len(set(values.values())) > 1}
    for path in sorted(varying_paths(list(flat.values()))):
        values = {key: _plain(own.get(path)) for key, own in flat.items()}
        follows = any(_follows(values, leading) for leading in named.values())
        if path not in _SAID and len(set(map(repr, values.values()))) > 1 and not follows:
            columns[path] = values
    fields = []
    for path, values in columns.items():
        known = [value for value in values.values() if value is not None]
        numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in known)
        sizes = [float(value) for value in known] if numeric else [0.0]
        logarithmic = min(sizes) > 0 and max(sizes) / min(sizes) > 50
        fields.append({"path": path, "title": path.rpartition(".")[2], "numeric": numeric, "log": logarithmic})
    return fields, {row.key: [columns[path][row.key] for path in columns] for row in rows}


def _follows(values: Mapping[str, Any], leading: Mapping[str, Any]) -> bool:
    """Whether the leading field's value tells the other's."""
    told: dict[Any, str] = {}
    return all(told.setdefault(leading[key], repr(value)) == repr(value) for key, value in values.items())


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, int | float | str) else str(value)


def table_of(results: Sequence[CellResult], unit: str) -> dict[str, Any]:
    """Settings, fields and numbers, as the page reads them."""
    rows, numbers = rows_of(results), numbers_of(results, unit)
    fields, values = fields_of(rows)
    several = has_seeds(row.setting for row in rows)
    most = max((len(row.setting.results) for row in rows), default=1)
    return {
        "numbers": [asdict(number) for number in numbers],
        "notes": notes_of(results),
        "fields": fields,
        "several": several,
        "t95": [t_quantile(seeds - 1) for seeds in range(2, most + 1)],  # of a mean over 2 seeds, 3, ...
        "groups": [
            {
                "key": row.key,
                "objective": row.objective,
                "calibration": row.calibration,
                "kind": "none" if row.calibration == "–" else row.calibration,
                "label": _label(row, several=len({r.setting.config.model.name for r in rows}) > 1),
                "values": values[row.key],
                "numbers": [_number(row.setting, number.key, several) for number in numbers],
                "runs": list(row.setting.run_ids),
            }
            for row in rows
        ],
    }


def _label(row: Row, several: bool) -> str:
    model = [row.setting.config.model.label] if several else []
    calibration = "no RC" if row.calibration == "none" else row.calibration
    return " · ".join(filter(None, [*model, row.objective, calibration, row.variant]))


def _number(setting: Setting, metric: str, several: bool) -> list[float | None] | str:
    value = setting.metric(metric)
    if value is None or not math.isfinite(value.value):
        return setting.problem(metric) or "–"
    return [value.value, finite(value.spread(several)), finite(value.half_width)]


def values_of(result: CellResult) -> dict[str, float]:
    """The numbers of one run, by metric."""
    wanted = (ACCURACY, DRIFT_W, DRIFT_L, MARGIN, ROOT_KL, IN_TRUE_BAND, REALISED["iii"])
    rows = {key: row for key, row in result.metrics.items() if key in wanted or is_benchmark(key)}
    return {key: row.value for key, row in rows.items() if row.ok} if result.ok else {}


def finite(value: float | None) -> float | None:
    """As JSON: it has no other numbers."""
    return value if value is not None and math.isfinite(value) else None


def differences_from(
    base: Setting, settings: Iterable[Setting], metrics: Sequence[str]
) -> list[list[tuple[float, ...]]]:
    """Of every setting minus the base, by metric: value, half of the 95% interval, whether it was paired by item."""
    return [[_difference(base, setting, metric) for metric in metrics] for setting in settings]


def _difference(base: Setting, setting: Setting, metric: str) -> tuple[float, ...]:
    estimate = difference(base, setting, metric) if base is not setting else None
    return (math.nan,) * 3 if estimate is None else (estimate.value, estimate.half_width, float(estimate.paired))


def all_differences(results: Sequence[CellResult], numbers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of every two settings, second minus first, packed: pair after pair, metric after metric, three numbers each.

    Where they are more than a page holds, benchmarks have none; where they still are, no metric has any, and `note`
    says so (`rcray watch` computes those from the baseline that is pinned).
    """
    settings = [row.setting for row in rows_of(results)]
    metrics, note = [number["key"] for number in numbers], ""
    pairs = len(settings) * (len(settings) - 1) // 2
    if pairs * len(metrics) > _DIFFERENCES:
        metrics = [metric for metric in metrics if not is_benchmark(metric)]
        note = f"Differences of benchmarks between {len(settings)} settings are more than a file holds"
    if pairs * len(metrics) > _DIFFERENCES:
        note, metrics, pairs = f"Differences between {len(settings)} settings are more than a file holds", [], 0
    # Metric by metric: each reads the items of every run again and again, and those of one metric stay in memory.
    columns = [
        [_difference(base, other, metric) for i, base in enumerate(settings) for other in settings[i + 1 :]]
        for metric in metrics
    ]
    values = np.array(columns, float).reshape(len(metrics), pairs, 3).swapaxes(0, 1)
    return {"metrics": metrics, "values": pack(values), "note": f"{note}; rcray watch has them." if note else ""}
