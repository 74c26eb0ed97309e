"""What `rcray report` does: choose the source of the runs, write the report, perhaps export the ledger."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rcray.aggregate.collect import collect
from rcray.aggregate.explore.command import with_chosen
from rcray.aggregate.exported import Planned, export_ledger, exported_experiments
from rcray.aggregate.report import Report, origins_of, write_published, write_report
from rcray.config import Experiment
from rcray.errors import ConfigError
from rcray.records.ledger import read_stopped
from rcray.store import Store

PUBLISHED_FOLDER = Path("rcray-published")


@dataclass(frozen=True)
class Request:
    """The options of the command."""

    experiments: Sequence[Planned] = ()
    store: Path | None = None
    published: bool = False
    ledger: Path | None = None
    from_mlflow: str | None = None
    export: Path | None = None
    out: Path | None = None
    figures: bool = True
    commands: Sequence[Sequence[str]] = ()  # that the experiments would be run by, one each


def run_report(request: Request) -> Report:
    """Writes the report that was asked for; a ledger and fetched runs are read as the store that they are."""
    _check(request)
    if request.published:
        return write_published(request.out or PUBLISHED_FOLDER, is_ours=request.out is None)
    planned = request.experiments
    if request.ledger is not None:
        store = Store.at(request.ledger)
        planned = exported_experiments(store)
        folder = request.out or request.ledger / "report"
    else:
        assert request.store is not None
        store = Store.open(request.store)
        planned = [(experiment, with_chosen(store, experiment, cells)) for experiment, cells in planned]
        folder = request.out or _folder(store, [experiment for experiment, _ in planned])
    cells = list({cell.run_id: cell for _, cells in planned for cell in cells}.values())
    names = [experiment.name for experiment, _ in planned]
    if request.from_mlflow is not None:
        from rcray.aggregate.mlflow_source import fetch_runs

        store = fetch_runs(request.from_mlflow, names, cells, folder / "fetched")
    stopped = {run: why for name in names for run, why in read_stopped(store.experiment(name)).items()}
    results = collect(store, cells, stopped)
    if request.export is not None:
        export_ledger(request.export, planned, results)
    asked = [(command, *each) for command, each in zip(request.commands, planned, strict=False)]
    experiments = [experiment for experiment, _ in planned]
    is_ours = request.out is None  # else others may keep their files there, too
    return write_report(
        folder,
        experiments,
        results,
        origins_of(asked),
        figures=request.figures,
        is_ours=is_ours,
        no_command="An exported ledger has results, not the experiment file that `rcray sweep` would run.",
    )


def _check(request: Request) -> None:
    sources = {
        "experiment files": bool(request.experiments),
        "--published": request.published,
        "--ledger": request.ledger is not None,
    }
    given = [name for name, there in sources.items() if there]
    if len(given) != 1:
        raise ConfigError(
            f"report: {' and '.join(given) or 'nothing'} to report on",
            fix="give experiment files, or --ledger DIR, or --published: one of them",
        )
    for name, value in (("--export-ledger", request.export), ("--from-mlflow", request.from_mlflow)):
        if value is not None and not request.experiments:
            raise ConfigError(f"report: {name} needs experiment files", fix=f"add them, or leave {name} out")


def _folder(store: Store, experiments: Sequence[Experiment]) -> Path:
    """One experiment's own folder; several have one of their own."""
    if len(experiments) == 1:
        return store.experiment(experiments[0].name)
    return store.root / "report"
