"""From runs to a report: tables, figures and two pages, each file written whole or not at all."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rcray.aggregate.catalogue import Catalogue, catalogue_of_published, catalogue_of_runs
from rcray.aggregate.collect import CellResult, collect
from rcray.aggregate.displacement import verdict
from rcray.aggregate.estimators import estimator_pairs
from rcray.aggregate.explore.page import EXPLORE, Origin, Subject, write_explore
from rcray.aggregate.findings import check_claims, overall
from rcray.aggregate.frame import frame_csv, likelihood_unit
from rcray.aggregate.groups import compare
from rcray.aggregate.latex import to_latex
from rcray.aggregate.tables import Table, to_csv, to_markdown
from rcray.config import Experiment
from rcray.files import write_atomic
from rcray.records.ledger import read_stopped
from rcray.store import Store
from rcray.sweep.grid import Cell

if TYPE_CHECKING:
    from rcray.aggregate.figures import Plot
    from rcray.aggregate.html import Page

RENDERERS: dict[str, Callable[[Table], str]] = {"md": to_markdown, "tex": to_latex, "csv": to_csv}
_EMBEDDED = 60  # figures drawn in the page; further ones are linked
_CARDS = 60  # findings shown as cards; further ones are counted only


@dataclass(frozen=True)
class Report:
    """What was written, and the first table for the terminal."""

    html: Path
    tables: tuple[Path, ...]
    figures: tuple[Path, ...]
    table: Table
    results: tuple[CellResult, ...]

    @property
    def explore(self) -> Path:
        """The page to ask, beside the one that tells; there where there are cells."""
        return self.html.with_name(EXPLORE)

    def paths(self) -> dict[str, Any]:
        """For scripts: the files, and how every cell came out."""
        cells = {result.cell.run_id: result.status for result in self.results}
        files = {"tables": list(map(str, self.tables)), "figures": list(map(str, self.figures))}
        return {"report": str(self.html), **files, "cells": cells}


def build_report(
    store: Store, experiment: Experiment, cells: Sequence[Cell], *, figures: bool = True, command: Sequence[str] = ()
) -> Report:
    """Writes STORE/experiments/NAME/{tables, figures, report.html, explore.html} from what the store holds now.

    `command` is what was asked for, up to the choice of cells; empty: nobody knows.
    """
    folder = store.experiment(experiment.name)
    origins = origins_of([(command, experiment, cells)])
    return write_report(folder, [experiment], collect(store, cells, read_stopped(folder)), origins, figures=figures)


def origins_of(asked: Iterable[tuple[Sequence[str], Experiment, Sequence[Cell]]]) -> tuple[Origin, ...]:
    """The commands behind cells, where they are known."""
    return tuple(
        Origin(
            tuple(command),
            tuple(cell.run_id for cell in cells),
            experiment.search is not None and experiment.search.method == "optuna",
        )
        for command, experiment, cells in asked
        if command
    )


def write_report(
    folder: Path,
    experiments: Sequence[Experiment],
    results: Sequence[CellResult],
    origins: tuple[Origin, ...] = (),
    *,
    figures: bool = True,
    is_ours: bool = True,
    no_command: str = Subject.no_command,
) -> Report:
    """Writes the report of one or more experiments; a run that several of them share counts once.

    Cells without a result are in every table by their status. In a folder that is ours, files of an earlier report that
    this one does not write again are removed, so that it never shows what is no longer part of it. `no_command` is why
    the page offers no command to run cells, where it does not.
    """
    from rcray.aggregate.html import Page

    results = list({result.cell.run_id: result for result in results}.values())
    name, title, description = names_of(experiments)
    comparisons = compare(results)
    unit = likelihood_unit(result.cell.config for result in results)
    pairs = estimator_pairs(results)
    catalogue = catalogue_of_runs(title, results, comparisons, pairs)
    findings = check_claims(comparisons)
    said = [
        *overall(findings, results),
        *verdict(comparisons),
        *(
            f"{one.table.title}: {one.within} of {one.compared} differences are within one combined error."
            for one in catalogue.beside
        ),
    ]
    page = Page(folder, name, title, description, catalogue, results, findings[:_CARDS], said)
    write_explore(folder, Subject(name, title, description, origins, no_command), results)

    if not figures:
        return _write(page, (), is_ours)
    from rcray.aggregate.figures import draw_all  # matplotlib takes a second to import
    from rcray.aggregate.figures.sensitivity import draw_sensitivities

    plots = chain(draw_all(comparisons, pairs, unit), draw_sensitivities(comparisons, results))
    return _write(page, plots, is_ours)


def write_published(folder: Path, *, is_ours: bool = True) -> Report:
    """Writes the paper's own tables from the numbers in the package: no run is needed."""
    from rcray.aggregate.figures.sensitivity import draw_published_sensitivity
    from rcray.aggregate.html import Page

    title = "Towards Disentangled Preference Optimization Dynamics: the published tables"
    description = (
        "Every table of the paper, rebuilt from the numbers that rcray ships as data, in the format that your own runs "
        "will have. Nothing here was measured by this program."
    )
    page = Page(folder, "published", title, description, catalogue_of_published())
    return _write(page, draw_published_sensitivity(), is_ours)


def names_of(experiments: Sequence[Experiment]) -> tuple[str, str, str]:
    """Name, title and description of a page about these experiments."""
    if len(experiments) == 1:
        only = experiments[0]
        return only.name, only.title or only.name, only.description
    name = ", ".join(experiment.name for experiment in experiments)
    titles = "; ".join(experiment.title or experiment.name for experiment in experiments)
    return name, f"{len(experiments)} experiments", f"{titles}."


def _write(page: "Page", plots: Iterable["Plot"], is_ours: bool) -> Report:
    from rcray.aggregate.html import to_html

    folder = page.folder
    tables = _write_tables(folder, page.catalogue)
    figures: list[Path] = []
    placed: list[Plot] = []
    for plot in plots:  # drawn one at a time, and only what the page shows is kept
        for suffix, content in plot.files.items():
            figures.append(folder / "figures" / f"{plot.name}.{suffix}")
            write_atomic(figures[-1], content)
        placed.append(replace(plot, png=b"", pdf=b"", svg=plot.svg if len(placed) < _EMBEDDED else b""))
    if page.results:
        rows = (row for result in page.results if result.ok for row in result.metrics.values())
        write_atomic(folder / "measurements.csv", frame_csv(rows))
    if is_ours:
        _remove_others(folder / "tables", tables)
        _remove_others(folder / "figures", figures)
    target = folder / "report.html"
    write_atomic(target, to_html(replace(page, plots=placed)))
    return Report(target, tuple(tables), tuple(figures), page.catalogue.tables[0], tuple(page.results))


def _write_tables(folder: Path, catalogue: Catalogue) -> list[Path]:
    written = []
    for table in catalogue.tables:
        for suffix, render in RENDERERS.items():
            written.append(folder / "tables" / f"{table.name}.{suffix}")
            write_atomic(written[-1], render(table))
    return written


def _remove_others(folder: Path, kept: Iterable[Path]) -> None:
    for path in set(folder.glob("*.*")) - set(kept):
        path.unlink()
