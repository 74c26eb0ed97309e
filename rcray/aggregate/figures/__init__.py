"""Figures: every picture of the paper, drawn from step records and results, one at a time."""

from collections.abc import Iterator, Sequence

from rcray.aggregate.estimators import EstimatorPair
from rcray.aggregate.figures.curves import draw_batch_likelihoods, draw_cosines, draw_likelihoods
from rcray.aggregate.figures.dynamics import draw_dynamics, draw_run, run_figure
from rcray.aggregate.figures.estimators import draw_head_full
from rcray.aggregate.figures.overview import draw_overview
from rcray.aggregate.figures.plane import draw_plane
from rcray.aggregate.figures.schematic import draw_schematic
from rcray.aggregate.figures.sensitivity import Series, draw_sensitivity
from rcray.aggregate.figures.style import Plot
from rcray.aggregate.groups import Comparison

__all__ = [
    "Plot",
    "Series",
    "draw_all",
    "draw_batch_likelihoods",
    "draw_cosines",
    "draw_dynamics",
    "draw_head_full",
    "draw_likelihoods",
    "draw_overview",
    "draw_plane",
    "draw_run",
    "draw_schematic",
    "draw_sensitivity",
    "run_figure",
]


def draw_all(comparisons: Sequence[Comparison], pairs: Sequence[EstimatorPair], unit: str) -> Iterator[Plot]:
    """Every figure that the records allow, drawn as it is asked for: no more than a few runs are in memory at once."""
    yield from filter(None, [draw_overview(comparisons, unit)])
    yield from filter(None, [draw_plane(comparisons, unit)])
    for model in dict.fromkeys(comparison.model for comparison in comparisons):
        own = [comparison for comparison in comparisons if comparison.model == model]
        yield from filter(None, [draw_schematic(model, own, unit)])
        yield from filter(None, [draw_cosines(model, own)])
        yield from filter(None, [draw_likelihoods(model, own, unit)])
        yield from filter(None, [draw_batch_likelihoods(model, own, unit)])
    for comparison in comparisons:
        for with_rc in comparison.with_rc or (None,):
            yield from filter(None, [draw_dynamics(comparison, with_rc, unit)])
    for pair in pairs:
        yield from filter(None, [draw_head_full(pair)])
