"""Which extras of the package a sweep or a training needs, known before anything heavy is imported."""

from collections.abc import Sequence

from rcray.config import Experiment
from rcray.extras import require
from rcray.sweep.grid import Cell


def require_extras(experiment: Experiment, cells: Sequence[Cell], *, tracked: bool, measured: bool) -> None:
    """Refuses what cannot be carried out to its end with what is installed, in one line with one command.

    Args:
        experiment: its `evaluation` may ask for benchmarks, its `search` for Optuna.
        cells: a model of theirs may come out of a package.
        tracked: whether MLflow gets the runs.
        measured: whether the cells are evaluated, too.
    """
    extras = ["sweep"]
    if tracked:
        extras.append("track")
    if measured and experiment.evaluation.benchmarks:
        extras.append("eval")
    if experiment.search is not None and experiment.search.method == "optuna":
        extras.append("search")
    if any(cell.config.model.copy_of_weights is not None for cell in cells):
        extras.append("real")
    require(*extras, otherwise="; without MLflow: --no-tracking" if tracked else "")
