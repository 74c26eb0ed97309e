"""Running cells: one here, all of an experiment, or all of them as a job on a cluster."""

import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from rcray.cli.shared import (
    ClusterOption,
    FileArgument,
    NoFiguresOption,
    NoTrackingOption,
    OnlyOption,
    SetOption,
    StoreOption,
    TinyOption,
    TrackingOption,
    announce,
    app,
    cells_of,
    only_cell,
    say_undelivered,
    sweep_command,
    tracking,
)
from rcray.config.bundled import find_experiment
from rcray.errors import EXIT_FAILED, EXIT_INTERRUPTED, ConfigError, RcrayError
from rcray.extras import require
from rcray.records.states import UNSUCCESSFUL, State
from rcray.secrets import redact
from rcray.store import DEFAULT_STORE, Store
from rcray.sweep.needs import require_extras


@app.command(short_help="one cell")
def train(
    file: FileArgument,
    store: StoreOption = DEFAULT_STORE,
    set_: SetOption = None,
    profile: Annotated[bool, typer.Option("--profile", help="show where a step's time goes")] = False,
    tracking_uri: TrackingOption = None,
    no_tracking: NoTrackingOption = False,
) -> None:
    """Train one cell; continues from its newest checkpoint, and does nothing if it is finished."""
    experiment, cell = only_cell(file, set_)
    require_extras(experiment, [cell], tracked=not no_tracking, measured=False)
    uri = tracking(tracking_uri, no_tracking, store)
    opened = Store.open(store)
    announce(f"{cell.label}: loading")
    _say_held_out([cell])
    from rcray.pipeline import train as run
    from rcray.progress import ProgressLine
    from rcray.train.launch import is_whole

    if is_whole(opened.run(cell.run_id)):
        typer.echo(f"{cell.label}: already finished in {opened.run(cell.run_id).path}")
        return
    with ExitStack() as stack:
        if cell.config.execution.workers:
            from rcray.sweep.connection import connected
            from rcray.sweep.placement import check_before_start, check_placement, possible_nodes

            check_before_start([cell], None)
            stack.enter_context(connected(needs_dashboard=True))
            check_placement([cell], possible_nodes(None))
        line = stack.enter_context(ProgressLine(cell.label, opened.run(cell.run_id).path))
        outcome = run(experiment, cell, opened, tracking_uri=uri, on_step=line.update, profile=profile)
    record = outcome.status
    done = f", {record.step} steps in {record.seconds:.1f} s" if record.total_steps else ""
    typer.echo(f"{cell.label}: {record.status}{done}")
    typer.echo(f"  {opened.run(cell.run_id).path}")
    say_undelivered(outcome.delivered, store)
    if profile:
        from rcray.train.profile import describe

        typer.echo(describe(opened.run(cell.run_id).profile))
    if record.status is not State.OK:
        raise RcrayError(f"{cell.label}: {record.status}: {record.error}")


@app.command(short_help="every unfinished cell, then tables, figures and report")
def sweep(
    file: FileArgument,
    store: StoreOption = DEFAULT_STORE,
    set_: SetOption = None,
    only: OnlyOption = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help="cells at once; as many as fit")] = None,
    tracking_uri: TrackingOption = None,
    no_tracking: NoTrackingOption = False,
    tiny: TinyOption = False,
    cluster: ClusterOption = None,
    no_figures: NoFiguresOption = False,
) -> None:
    """Run every unfinished cell of an experiment, then write tables, figures, report.html and explore.html."""
    from rcray.sweep.grid import chosen

    experiment, cells = cells_of(file, set_, tiny)
    searches = experiment.search is not None and experiment.search.method == "optuna"
    if only and searches:
        raise ConfigError(f"--only: {file} searches, and chooses its cells by itself", fix="leave --only out")
    wanted = chosen(cells, only, file)
    require_extras(experiment, wanted, tracked=not no_tracking, measured=True)
    uri = tracking(tracking_uri, no_tracking, store)
    if "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ and not store.expanduser().is_absolute():
        raise ConfigError(
            f"--store {store}: a Ray job runs in a temporary copy of its directory, on one node",
            fix="give an absolute path on storage that every node mounts, or set RCRAY_STORE on the cluster",
        )
    opened = Store.open(store)
    some = f"{len(wanted)} of " if only else ""
    announce(f"{experiment.name}: {some}{len(cells)} cells, starting")
    _say_held_out(wanted)
    from rcray.pipeline import sweep as run
    from rcray.progress import LedgerScreen

    with LedgerScreen(experiment.title or experiment.name) as screen:

        def run_cells(cells: Any, tried: Any = ()) -> Any:
            return run(
                experiment,
                cells,
                opened,
                tracking_uri=uri,
                concurrency=concurrency,
                on_refresh=screen.refresh,
                cluster_file=cluster,
                figures=not no_figures,
                command=sweep_command(file, set_, tiny),
                tried=tried,
                chosen=wanted if only else None,
            )

        if searches:
            from rcray.sweep.search import choose_with_optuna

            def cell_at(point: Any) -> Any:
                return cells_of(file, set_, tiny, [point])[1][0]

            outcome = choose_with_optuna(experiment.search, cell_at, opened, run_cells)
        else:
            outcome = run_cells(cells)
    _print_outcome(outcome, store)
    # What was left alone is no failure of this command.
    asked = outcome.ledger.only([cell.run_id for cell in wanted]) if only else outcome.ledger
    if asked.interrupted:
        sys.exit(EXIT_INTERRUPTED)
    if not asked.complete:
        sys.exit(EXIT_FAILED)


@app.command(short_help="a sweep as a job on a Ray cluster, followed from here")
def submit(
    file: FileArgument,
    address: Annotated[
        str, typer.Option(envvar="RAY_API_SERVER_ADDRESS", help="the cluster's dashboard")
    ] = "http://127.0.0.1:8265",
    store: Annotated[
        Path | None, typer.Option("--store", help="on the cluster, absolute; its RCRAY_STORE unless given")
    ] = None,
    set_: SetOption = None,
    tiny: TinyOption = False,
    env: Annotated[
        list[str] | None, typer.Option("--env", metavar="NAME=VALUE", help="for the job; no secrets; repeatable")
    ] = None,
    working_dir: Annotated[Path, typer.Option(help="what is uploaded")] = Path(),
    no_follow: Annotated[bool, typer.Option("--no-follow", help="return as soon as it is submitted")] = False,
) -> None:
    """Run a sweep as a job on a Ray cluster and follow its log; the job outlives this command."""
    experiment, _ = cells_of(file, set_, tiny)  # refused here, not on the cluster
    require("sweep")
    from rcray.sweep.submit import Submission, file_in_job, parse_env
    from rcray.sweep.submit import submit as run

    if store is not None and not store.is_absolute():
        raise ConfigError(f"--store {store}: not absolute", fix="give the path as the cluster's nodes see it")
    announce(f"submitting {experiment.name} to {address}")
    # One that ships with the package is there under its name, in the version that the cluster has.
    place = str(file) if find_experiment(file) != file else file_in_job(file, working_dir)
    command = [*sweep_command(place, set_, tiny)[1:], *(["--store", str(store)] if store else [])]
    submission = Submission(experiment.name, command, working_dir.resolve(), parse_env(env or ()))
    sys.exit(run(submission, address, follow_log=not no_follow, write=_write_through))


def _say_held_out(cells: Any) -> None:
    from rcray.sweep.planning import held_out_notes

    for note in held_out_notes(cells):
        typer.echo(note, err=True)


def _write_through(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _print_outcome(outcome: Any, store: Path) -> None:
    from rich.console import Console

    from rcray.aggregate.tables import to_rich

    console = Console()
    for entry in outcome.ledger.cells:
        if entry.status in UNSUCCESSFUL:
            console.print(f"{entry.status}: {entry.label}: {entry.error}", style="red", markup=False, highlight=False)
    console.print(to_rich(outcome.report.table, console.width))
    if outcome.best:
        typer.echo(outcome.best)
    typer.echo("\nWhere to look")
    typer.echo(f"  report   {outcome.report.html}")
    typer.echo(f"  explore  {outcome.report.explore}")
    typer.echo(f"  tables   {outcome.report.html.parent / 'tables'}")
    if outcome.report.figures:
        typer.echo(f"  figures  {outcome.report.html.parent / 'figures'}")
    if outcome.tracking_uri is not None:
        local = outcome.tracking_uri == Store.at(store).default_tracking_uri
        typer.echo(f"  MLflow   {f'rcray ui --store {store}' if local else redact(outcome.tracking_uri)}")
    say_undelivered(outcome.delivered, store)
    typer.echo("\nWhat to try next")
    typer.echo("  another setting   the same command with --set objective.beta=0.5 or --set calibration.scores=full")
    typer.echo("  a published grid  rcray plan main; then rcray sweep main --tiny")
    typer.echo("  a cluster         rcray submit; deploy/README.md of the repository has the steps")
