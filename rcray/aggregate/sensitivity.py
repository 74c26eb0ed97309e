"""What the EMA momentum does to a score: series for the sensitivity figure, ours and published."""

from collections.abc import Iterator, Sequence

from rcray.aggregate import published
from rcray.aggregate.benchmark_tables import average_stderr, averages, lines_of, metric_key
from rcray.aggregate.collect import CellResult
from rcray.aggregate.figures.sensitivity import Series, draw_sensitivity
from rcray.aggregate.figures.style import Plot
from rcray.aggregate.groups import Comparison, Setting, estimate
from rcray.aggregate.paper import BENCHMARK_TABLES, TableSpec
from rcray.aggregate.places import Places
from rcray.aggregate.published import AVERAGE

_NAN = float("nan")


def draw_sensitivities(comparisons: Sequence[Comparison], results: Sequence[CellResult]) -> Iterator[Plot]:
    """The paper's ablation from runs, and held-out accuracy over momenta wherever an objective has several."""
    places = Places.of(results)
    for spec in BENCHMARK_TABLES:
        if spec.axis == "ema" and places.covers(spec):
            ours = _from_lines(spec, places)
            plot = draw_sensitivity(spec.name, spec.title, "average of benchmarks (%)", [ours, _published(spec)])
            if ours.values and plot:
                yield plot
    for comparison in comparisons:
        series = _accuracies(comparison)
        if len(set(series.betas)) > 1:
            title = f"EMA momentum and held-out accuracy, {comparison.title} on {comparison.model}"
            name = f"ema-accuracy-{comparison.model}-{comparison.title}"
            yield from filter(None, [draw_sensitivity(name, title, "held-out accuracy (%)", [series])])


def draw_published_sensitivity() -> Iterator[Plot]:
    """The paper's ablation from its own numbers."""
    for spec in BENCHMARK_TABLES:
        if spec.axis == "ema":
            title = f"{spec.title} (published)"
            yield from filter(
                None, [draw_sensitivity(spec.name, title, "average of benchmarks (%)", [_published(spec)])]
            )


def _published(spec: TableSpec) -> Series:
    found = published.scores(spec.name)
    points = []
    without = None
    for row in spec.rows():
        scores = found[row.place]
        if row.place.ema_beta is None:
            without = scores[AVERAGE].value
            continue
        error = average_stderr([scores[name].stderr for name in spec.benchmarks])
        points.append((row.place.ema_beta, scores[AVERAGE].value, _NAN if error is None else error))
    return _series("published", points, without)


def _from_lines(spec: TableSpec, places: Places) -> Series:
    lines = lines_of(spec, places)
    keys = [metric_key(name, lines) for name in spec.benchmarks]
    points = []
    without = None
    for line in lines:
        if line.setting is None or any(line.setting.problem(key) for key in keys):
            continue
        value = estimate(list(averages(line.setting, keys).values()), None)
        if value is None:
            continue
        if line.spec.place.ema_beta is None:
            without = value.value
            continue
        points.append((line.spec.place.ema_beta, value.value, _error(line.setting, keys, value.stderr)))
    return _series("ours", points, without)


def _error(setting: Setting, keys: Sequence[str], over_seeds: float | None) -> float:
    if over_seeds is not None:
        return over_seeds
    found = average_stderr([value.stderr for key in keys if (value := setting.metric(key))])
    return _NAN if found is None else 100 * found


def _accuracies(comparison: Comparison) -> Series:
    points = []
    for setting in comparison.with_rc:
        value = setting.metric("accuracy")
        if value is not None:
            error = _NAN if value.stderr is None else 100 * value.stderr
            points.append((setting.config.calibration.ema_beta, 100 * value.value, error))
    before = comparison.without.metric("accuracy") if comparison.without else None
    return _series("held-out accuracy", points, None if before is None else 100 * before.value)


def _series(label: str, points: Sequence[tuple[float, float, float]], without: float | None) -> Series:
    betas, values, errors = zip(*sorted(points), strict=True) if points else ((), (), ())
    return Series(label, betas, values, errors, without)
