"""Figures: every picture of the paper, drawn from step records and results."""

from rcray.aggregate.figures.dynamics import draw_dynamics, draw_run, run_figure
from rcray.aggregate.figures.plane import draw_plane
from rcray.aggregate.figures.style import Plot

__all__ = ["Plot", "draw_dynamics", "draw_plane", "draw_run", "run_figure"]


def draw_all(comparisons, unit):
    """Every figure that the records allow; none for cells without records. `unit` is that of likelihoods."""
    plots = [] if (plane := draw_plane(comparisons, unit)) is None else [plane]
    for comparison in comparisons:
        for with_rc in comparison.with_rc or (None,):
            if (drawn := draw_dynamics(comparison, with_rc, unit)) is not None:
                plots.append(drawn)
    return plots
