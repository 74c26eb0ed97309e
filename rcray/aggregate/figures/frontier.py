"""The frontier: what was gained over how far the model moved, at every probe and at the end of every cell."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rcray.aggregate.collect import CellResult
from rcray.aggregate.figures.plane import legend_of_settings
from rcray.aggregate.figures.style import DASHED, Plot, colour_and_marker, finish, style
from rcray.aggregate.frame import ACCURACY, is_benchmark
from rcray.aggregate.groups import Comparison, Setting
from rcray.aggregate.movement import ROOT_KL, TurningPoint, movement_path
from rcray.aggregate.movement_tables import turn_of
from rcray.aggregate.tables import percent
from rcray.config.benchmarks import ALPACA_EVAL, is_share

_END_PANELS = 3  # scores at the end that fit beside the paths
_CAPTION = (
    "Across: the root of the KL to the start model, per token of the probe's chosen answers: how far a model moved. "
    "Left: the share of probe pairs whose margin grew, at every probe, a path per cell, and a ring where the fit "
    "d (a − b log d) turns, if it does. Then scores of the finished models with their standard errors. Up and to the "
    "left is better. Dashed and open: without RC; solid and filled: with RC."
)
Lines = list[tuple[Comparison, Setting]]


def draw_frontier(model: str, comparisons: Sequence[Comparison]) -> Plot | None:
    """Paths by probe, and the ends by every score that was measured; None where distances were not."""
    lines = [(c, setting) for c in comparisons for setting in c.settings if setting.metric(ROOT_KL)]
    if not lines:
        return None
    titles = list(dict.fromkeys(c.title for c in comparisons))
    scores = [score for score in _scores(lines) if any(setting.metric(score) for _, setting in lines)]
    with style():
        figure = Figure(figsize=(4.6 + 3.6 * len(scores), 4.0), layout="constrained")
        first, *others = figure.subplots(1, 1 + len(scores), squeeze=False)[0]
        _paths(first, lines, titles)
        for axis, score in zip(others, scores, strict=True):
            _ends(axis, lines, titles, score)
        for axis in (first, *others):
            axis.set_xlabel(r"$\sqrt{\mathrm{KL}}$ to the start model")
            axis.set_xlim(left=0)
        legend_of_settings(figure, lines, titles)
        return finish(figure, f"frontier-{model}", f"Gain over distance on {model}", _CAPTION)


def _scores(lines: Lines) -> list[str]:
    measured = {key: None for _, s in lines for r in s.finished for key, row in r.metrics.items() if row.ok}
    benchmarks = [key for key in measured if is_benchmark(key) and is_share(key) and not key.startswith(ALPACA_EVAL)]
    return [ACCURACY, *benchmarks][:_END_PANELS]


def _paths(axis: Axes, lines: Lines, titles: Sequence[str]) -> None:
    for comparison, setting in lines:
        colour, marker = colour_and_marker(titles.index(comparison.title))
        drawn: CellResult | None = setting.drawn()
        assert drawn is not None  # it has a distance
        path = movement_path(drawn.run)
        axis.plot(path.distance, percent(path.grew), color=colour, linewidth=1.4, marker=marker, markersize=4,
                  linestyle="-" if setting.calibrated else DASHED,
                  markerfacecolor=colour if setting.calibrated else "white")  # fmt: skip
        turn = turn_of(setting)
        if isinstance(turn, TurningPoint):
            top = path.grew[0] + turn.gain(np.array([turn.at]))[0]
            axis.plot(turn.at, percent(top), marker="o", markersize=13, markerfacecolor="none", color=colour)
    axis.set_title("At every probe", loc="left")
    axis.set_ylabel("probe pairs whose margin grew (%)")


def _ends(axis: Axes, lines: Lines, titles: Sequence[str], score: str) -> None:
    for comparison, setting in lines:
        distance, value = setting.metric(ROOT_KL), setting.metric(score)
        if distance is None or value is None:
            continue
        colour, marker = colour_and_marker(titles.index(comparison.title))
        error = value.spread(len(setting.results) > 1)
        axis.errorbar(distance.value, percent(value.value), yerr=None if error is None else percent(error), fmt=marker,
                      color=colour, markersize=7, elinewidth=1,
                      markerfacecolor=colour if setting.calibrated else "white")  # fmt: skip
    axis.set_title("At the end", loc="left")
    name = "held-out accuracy" if score == ACCURACY else score.replace("_", " ")
    axis.set_ylabel(f"{name} (%)")
