"""What `rcray report` does: choose the source of the runs, write the report, perhaps export the ledger."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rcray.aggregate.collect import CellResult, collect
from rcray.aggregate.ledger import ExperimentRuns, export_ledger, read_ledger
from rcray.aggregate.report import Report, write_published, write_report
from rcray.config import Experiment
from rcray.errors import ConfigError
from rcray.records.ledger import read_stopped
from rcray.store import Store
from rcray.sweep.grid import Cell

PUBLISHED_FOLDER = Path("rcray-published")


@dataclass(frozen=True)
class Request:
    """The options of the command."""

    experiments: Sequence[tuple[Experiment, Sequence[Cell]]] = ()
    store: Path | None = None
    published: bool = False
    ledger: Path | None = None
    from_mlflow: str | None = None
    export: Path | None = None
    out: Path | None = None
    figures: bool = True


def run_report(request: Request) -> Report:
    """Writes the report that was asked for."""
    _check(request)
    if request.published:
        return write_published(request.out or PUBLISHED_FOLDER)
    if request.ledger is not None:
        content = read_ledger(request.ledger)
        return write_report(
            request.out or request.ledger / "report", content.experiments, content.results, figures=request.figures
        )
    assert request.store is not None
    store = Store.open(request.store)
    experiments = [ExperimentRuns(e, tuple(cell.run_id for cell in cells)) for e, cells in request.experiments]
    folder = request.out or _folder(store, [runs.experiment for runs in experiments])
    results = _results(request, store, folder)
    if request.export is not None:
        export_ledger(request.export, experiments, results)
    return write_report(folder, experiments, results, figures=request.figures)


def _check(request: Request) -> None:
    sources = {
        "experiment files": bool(request.experiments),
        "--published": request.published,
        "--ledger": request.ledger is not None,
    }
    given = [name for name, there in sources.items() if there]
    if len(given) != 1:
        found = " and ".join(given) or "nothing"
        raise ConfigError(
            f"report: {found} to report on", fix="give experiment files, or --ledger DIR, or --published: one of them"
        )
    for name, value in (("--export-ledger", request.export), ("--from-mlflow", request.from_mlflow)):
        if value is not None and not request.experiments:
            raise ConfigError(f"report: {name} needs experiment files", fix=f"add them, or leave {name} out")


def _folder(store: Store, experiments: Sequence[Experiment]) -> Path:
    """One experiment's own folder; several have one of their own."""
    if len(experiments) == 1:
        return store.experiment(experiments[0].name)
    return store.root / "report"


def _results(request: Request, store: Store, folder: Path) -> list[CellResult]:
    cells = list({cell.run_id: cell for _, cells in request.experiments for cell in cells}.values())
    if request.from_mlflow is None:
        folders = [store.experiment(experiment.name) for experiment, _ in request.experiments]
        return collect(store, cells, {run: why for folder in folders for run, why in read_stopped(folder).items()})
    from rcray.aggregate.mlflow_source import fetch_runs

    names = [experiment.name for experiment, _ in request.experiments]
    fetched = fetch_runs(request.from_mlflow, names, cells, folder / "fetched")
    return collect(fetched, cells)
