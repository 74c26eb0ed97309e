"""Sensitivity to the EMA momentum: a score over the momenta, ours and published, with the run without RC as a line."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from rcray.aggregate import published
from rcray.aggregate.benchmark_tables import lines_of, metrics_of
from rcray.aggregate.collect import CellResult
from rcray.aggregate.comparison import published_score
from rcray.aggregate.estimates import Estimate
from rcray.aggregate.figures.style import BLACK, BLUE, DASHED, GREY, VERMILLION, Plot, finish, style
from rcray.aggregate.frame import ACCURACY
from rcray.aggregate.groups import Comparison
from rcray.aggregate.paper import BENCHMARK_TABLES, TableSpec
from rcray.aggregate.places import Places
from rcray.aggregate.published import AVERAGE, Score
from rcray.aggregate.tables import percent

_AVERAGE = "average of benchmarks (%)"
_CAPTION = (
    "The score over EMA momenta β of RC (evenly spaced, not to scale), ± one standard error{spread}; dashed: without "
    "RC. A flat curve says that RC is not sensitive to how strongly it smooths."
)


@dataclass(frozen=True)
class Series:
    """Scores by momentum, None for the run without RC; shares, drawn in percent."""

    label: str  # ours, published
    scores: Sequence[tuple[float | None, Estimate | Score]]

    @property
    def points(self) -> list[tuple[float, Estimate | Score]]:
        """The scores with RC, in the order of the momenta."""
        return sorted(((beta, score) for beta, score in self.scores if beta is not None), key=lambda point: point[0])


def draw_sensitivities(comparisons: Sequence[Comparison], results: Sequence[CellResult]) -> Iterator[Plot]:
    """The paper's ablation from runs, and held-out accuracy over momenta wherever an objective has several."""
    places = Places.of(results)
    for spec in BENCHMARK_TABLES:
        if spec.axis == "ema" and places.covers(spec) and (ours := _of_runs(spec, places)).points:
            yield draw_sensitivity(spec.name, spec.title, _AVERAGE, [ours, _of_published(spec)])
    for comparison in comparisons:
        smoothed = [s for s in comparison.settings if not s.calibrated or s.config.calibration.averages]
        scores = [
            (setting.config.calibration.ema_beta if setting.calibrated else None, value)
            for setting in smoothed
            if (value := setting.metric(ACCURACY))
        ]
        series = Series("held-out accuracy", scores)
        if len({beta for beta, _ in series.points}) > 1:
            title = f"EMA momentum and held-out accuracy, {comparison.title} on {comparison.model}"
            name = f"ema-accuracy-{comparison.model}-{comparison.title}"
            yield draw_sensitivity(name, title, "held-out accuracy (%)", [series])


def draw_published_sensitivity() -> Iterator[Plot]:
    """The paper's ablation from its own numbers."""
    for spec in BENCHMARK_TABLES:
        if spec.axis == "ema":
            yield draw_sensitivity(spec.name, f"{spec.title} (published)", _AVERAGE, [_of_published(spec)])


def _of_published(spec: TableSpec) -> Series:
    printed = published.scores(spec.name)
    places = [row.place for row in spec.rows()]
    return Series("published", [(p.ema_beta, published_score(printed[p], AVERAGE, spec)) for p in places])


def _of_runs(spec: TableSpec, places: Places) -> Series:
    lines = lines_of(spec, places)
    average = metrics_of(spec, lines)[AVERAGE]
    values = ((line.spec.place.ema_beta, line.setting and line.setting.metric(average)) for line in lines)
    return Series("ours", [(beta, value) for beta, value in values if value])


def draw_sensitivity(name: str, title: str, score: str, series: Sequence[Series]) -> Plot:
    """One curve per series."""
    betas = sorted({beta for one in series for beta, _ in one.points})
    with style():
        figure = Figure(figsize=(7.2, 4.4), layout="constrained")
        axis = figure.subplots()
        for i, one in enumerate(series):
            colour, marker = ((VERMILLION, "o"), (BLUE, "s"))[i % 2]
            at = np.array([betas.index(beta) for beta, _ in one.points]) + 0.06 * (i - (len(series) - 1) / 2)
            values = percent(np.array([value.value for _, value in one.points]))
            errors = percent(np.nan_to_num(np.array([value.stderr for _, value in one.points], dtype=float)))
            axis.errorbar(at, values, yerr=errors, color=colour, marker=marker, markersize=6, linewidth=1.6, capsize=3,
                          label=f"{one.label}, with RC")  # fmt: skip
            for without in [value.value for beta, value in one.scores if beta is None][-1:]:
                axis.axhline(percent(without), color=BLACK if i == 0 else GREY, linestyle=DASHED, linewidth=1.2,
                             label=f"{one.label}, without RC")  # fmt: skip
        axis.set_xticks(range(len(betas)), [f"{beta:g}" for beta in betas])
        axis.set_xlabel(r"EMA momentum $\beta$")
        axis.set_ylabel(score)
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
        spread = " (of a mean of independent benchmarks)" if score == _AVERAGE else ""
        return finish(figure, name, title, _CAPTION.format(spread=spread), wide=False)
