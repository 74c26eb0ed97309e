"""From a store to an experiment's report: tables, figures and one page, written whole or not at all."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rcray.aggregate.collect import CellResult, collect, likelihood_unit
from rcray.aggregate.findings import find, overall
from rcray.aggregate.groups import compare
from rcray.aggregate.results import results_table
from rcray.aggregate.tables import RENDERERS, Table
from rcray.config import Experiment
from rcray.store import Store, write_atomic
from rcray.sweep.grid import Cell


@dataclass(frozen=True)
class Report:
    """What was written, and the results table for the terminal."""

    html: Path
    tables: tuple[Path, ...]
    figures: tuple[Path, ...]
    table: Table
    results: tuple[CellResult, ...]


def build_report(store: Store, experiment: Experiment, cells: Sequence[Cell]) -> Report:
    """Writes STORE/experiments/NAME/{tables, figures, report.html} from what the store holds now.

    Cells without a result are in every table by their status. Figures of an earlier report that this one does not
    draw again are removed, so that the folder never shows cells that are no longer part of the experiment.
    """
    from rcray.aggregate.figures import draw_all  # matplotlib takes a second to import
    from rcray.aggregate.html import to_html

    folder = store.experiment(experiment.name)
    results = collect(store, cells)
    comparisons = compare(results)
    unit = likelihood_unit(results)
    table = results_table(experiment.title or experiment.name, results)
    plots = draw_all(comparisons, unit)
    findings = find(comparisons, unit)

    tables = []
    for suffix, render in RENDERERS.items():
        tables.append(folder / "tables" / f"results.{suffix}")
        write_atomic(tables[-1], render(table))
    figures = []
    for plot in plots:
        for suffix, content in plot.files.items():
            figures.append(folder / "figures" / f"{plot.name}.{suffix}")
            write_atomic(figures[-1], content)
    for path in (folder / "figures").glob("*.*"):
        if path not in figures:
            path.unlink()
    page = folder / "report.html"
    write_atomic(page, to_html(experiment, results, table, findings, overall(findings, results), plots))
    return Report(page, tuple(tables), tuple(figures), table, tuple(results))
