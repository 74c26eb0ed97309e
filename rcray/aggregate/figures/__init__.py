"""Figures: every picture of the paper, drawn from step records and results, one at a time."""

from collections.abc import Iterator, Sequence

from rcray.aggregate.displacement import cures
from rcray.aggregate.estimators import EstimatorPair
from rcray.aggregate.groups import Comparison
from rcray.extras import explained_imports

with explained_imports():
    from rcray.aggregate.figures.curves import (
        draw_batch_likelihoods,
        draw_cosines,
        draw_distributions,
        draw_likelihoods,
        draw_misplaced,
    )
    from rcray.aggregate.figures.displacement import draw_displacement
    from rcray.aggregate.figures.dynamics import draw_dynamics
    from rcray.aggregate.figures.estimators import draw_head_full
    from rcray.aggregate.figures.frontier import draw_frontier
    from rcray.aggregate.figures.overview import draw_overview
    from rcray.aggregate.figures.plane import draw_plane
    from rcray.aggregate.figures.schematic import draw_schematic
    from rcray.aggregate.figures.style import Plot


def draw_all(comparisons: Sequence[Comparison], pairs: Sequence[EstimatorPair], unit: str) -> Iterator[Plot]:
    """Every figure that the records allow, drawn as it is asked for: no more than a few runs are in memory at once."""
    yield from filter(None, _draw_all(comparisons, pairs, unit))


def _draw_all(comparisons: Sequence[Comparison], pairs: Sequence[EstimatorPair], unit: str) -> Iterator[Plot | None]:
    yield draw_overview(comparisons, unit)
    yield draw_plane(comparisons, unit)
    for model, rows in cures(comparisons).items():
        yield draw_displacement(model, rows)
    for model in dict.fromkeys(comparison.model for comparison in comparisons):
        own = [comparison for comparison in comparisons if comparison.model == model]
        yield draw_schematic(model, own, unit)
        yield draw_cosines(model, own)
        yield draw_likelihoods(model, own, unit)
        yield draw_batch_likelihoods(model, own, unit)
        yield draw_distributions(model, own)
        yield draw_misplaced(model, own)
        yield draw_frontier(model, own)
    for comparison in comparisons:
        for with_rc in comparison.with_rc or (None,):
            yield draw_dynamics(comparison, with_rc)
    for pair in pairs:
        yield draw_head_full(pair)
