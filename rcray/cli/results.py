"""After the cells: measure, report, look, deliver."""

import json
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from rcray.cli.alpaca_eval import app as alpaca_eval
from rcray.cli.shared import (
    JsonOption,
    NoFiguresOption,
    SetOption,
    StoreOption,
    TinyOption,
    TrackingOption,
    announce,
    app,
    cells_of,
    sweep_command,
)
from rcray.config.benchmarks import PREFERENCE_ACCURACY
from rcray.errors import RcrayError, printable
from rcray.extras import require
from rcray.secrets import redact
from rcray.store import DEFAULT_STORE, Store


@app.command(short_help="held-out preference and benchmarks of finished runs")
def evaluate(
    file: Annotated[
        Path | None, typer.Argument(help="experiment file (YAML); its `evaluation` section", show_default=False)
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    set_: SetOption = None,
    run: Annotated[
        list[str] | None,
        typer.Option("--run", metavar="DIR_OR_ID", help="a run or a directory of runs; repeatable"),
    ] = None,
    benchmark: Annotated[
        list[str] | None,
        typer.Option("--benchmark", help="published, embedded, a name, an lm-eval task or file; repeatable"),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="documents per task, for a first look")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="dataset folders OWNER/NAME, read instead of the hub")] = None,
) -> None:
    """Measure finished runs: held-out preference and benchmarks; what is measured is not measured again."""
    if file is None and not run:
        raise typer.BadParameter("Missing argument 'FILE': give an experiment file, or --run")
    experiment, cells = cells_of(file, set_) if file else (None, [])
    from rcray.config.evaluation import settings_from

    given = {"benchmarks": benchmark, "limit": limit, "data_dir": data_dir and str(data_dir)}
    settings = settings_from(experiment and experiment.evaluation, given, Path.cwd())
    require(*(["sweep", "eval"] if settings.benchmarks else ["sweep"]))
    opened = Store.open(store)
    announce(f"measuring {', '.join(run) if run else f'{len(cells)} cells of {file}'}")
    from rcray.evaluate.command import Target, find_runs
    from rcray.evaluate.command import evaluate as measure

    if run:
        targets = [target for name in run for target in find_runs(name, opened)]
    else:
        targets = [Target(cell.label, cell.config, opened) for cell in cells]
    measure(targets, settings, typer.echo, lambda line: typer.echo(line, err=True))


@app.command(short_help="a trained model as a plain directory, with a model card")
def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="run id, or its directory", show_default=False)],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="directory to write; must not be there")],
    merge: Annotated[bool, typer.Option("--merge", help="whole weights, the adapter merged into its base")] = False,
    store: StoreOption = DEFAULT_STORE,
) -> None:
    """Write a finished run as a plain peft or transformers directory: weights, tokenizer, card, chain."""
    require("sweep")
    opened = Store.open(store)
    announce(f"exporting {run} to {to}")
    from rcray.evaluate.command import find_run
    from rcray.export import export_run

    target = find_run(run, opened)
    exported = export_run(target.config, target.store, to, merge=merge)
    typer.echo(f"{target.label}: {exported.kind} in {exported.directory}")
    typer.echo(exported.loader)


app.add_typer(alpaca_eval, name="alpaca-eval", short_help="AlpacaEval: answers, a judge, win rates")


@app.command(short_help="tables, figures and report.html again; trains nothing")
def report(
    files: Annotated[list[Path] | None, typer.Argument(help="experiment files (YAML)", show_default=False)] = None,
    store: StoreOption = DEFAULT_STORE,
    set_: SetOption = None,
    published: Annotated[bool, typer.Option("--published", help="the paper's own tables, without any run")] = False,
    ledger: Annotated[
        Path | None, typer.Option("--ledger", help="read an exported ledger instead of a store", show_default=False)
    ] = None,
    export_ledger: Annotated[
        Path | None,
        typer.Option("--export-ledger", help="also write what it reads here, as a small store", show_default=False),
    ] = None,
    from_mlflow: Annotated[
        str | None, typer.Option("--from-mlflow", help="fetch the runs from this MLflow server", show_default=False)
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="directory of the report", show_default=False)] = None,
    no_figures: NoFiguresOption = False,
    json_: JsonOption = False,
) -> None:
    """Rebuild tables, figures, report.html and explore.html from finished runs; nothing is trained."""
    experiments = [cells_of(file, set_) for file in files or ()]
    require(*(["report", "track"] if from_mlflow else ["report"]))
    if not json_:
        announce(f"building the report of {', '.join(each.name for each, _ in experiments) or 'what was given'}")
    from rich.console import Console

    from rcray.aggregate.command import Request, run_report
    from rcray.aggregate.tables import to_rich

    commands = [sweep_command(file, set_) for file in files or ()]
    built = run_report(
        Request(experiments, store, published, ledger, from_mlflow, export_ledger, out, not no_figures, commands)
    )
    if json_:
        typer.echo(json.dumps(built.paths(), indent=2))
        return
    console = Console()
    console.print(to_rich(built.table, console.width))
    typer.echo(f"{len(built.tables) // 3} tables, {len(built.figures) // 3} figures in {built.html.parent}")
    typer.echo(f"report {built.html}")
    if built.results:
        typer.echo(f"explore {built.explore}")


@app.command(short_help="a page on the cells, live while they are trained")
def watch(
    files: Annotated[list[Path] | None, typer.Argument(help="experiment files (YAML)", show_default=False)] = None,
    store: StoreOption = DEFAULT_STORE,
    set_: SetOption = None,
    tiny: TinyOption = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="on 127.0.0.1; 0: any that is free")] = 8050,
) -> None:
    """Serve explore.html on 127.0.0.1 from the store, live: curves move as steps are made. It changes nothing.

    Without files: every experiment that was swept into the store, less cells that were never started.
    """
    place = [] if store == DEFAULT_STORE else ["--store", str(store)]  # for the command that the page offers
    planned = [([*sweep_command(file, set_, tiny), *place], *cells_of(file, set_, tiny)) for file in files or ()]
    require("report")
    announce(f"reading {Store.at(store).root}")
    from rcray.aggregate.explore.command import watch_experiments, watch_store
    from rcray.aggregate.explore.server import serve as serve_page

    opened = Store.at(store)
    serve_page(watch_experiments(opened, planned) if planned else watch_store(opened), port, typer.echo)


@app.command(short_help="MLflow's pages on the store's runs")
def ui(
    store: StoreOption = DEFAULT_STORE,
    tracking_uri: TrackingOption = None,
    host: Annotated[str, typer.Option(help="address to listen on; loopback unless you say otherwise")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 5000,
) -> None:
    """Start the MLflow UI on the store's runs; a tracking server has its own."""
    require("track")
    from rcray.track.address import Address, tracking_address
    from rcray.track.ui import serve_runs

    given = tracking_address(tracking_uri) if tracking_uri else None
    opened = Store.open(store)
    address = given or Address(opened.default_tracking_uri)
    if not address.is_server:
        announce(f"starting MLflow's server for {address.shown}, which takes up to a minute on a busy machine")
    sys.exit(serve_runs(address, opened, host, port, typer.echo))


@app.command(short_help="deliver to MLflow what it does not have yet")
def sync(
    experiments: Annotated[
        list[str] | None, typer.Argument(help="names or files of experiments; all tracked ones", show_default=False)
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    set_: SetOption = None,
    tracking_uri: TrackingOption = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="go on while one experiment is trained; ends when all is delivered")
    ] = False,
    session: Annotated[str | None, typer.Option("--session", hidden=True)] = None,
    log_models: Annotated[
        Literal["none", "best", "all"], typer.Option(help="also log trained models, with their weights")
    ] = "none",
    register: Annotated[
        str | None, typer.Option(metavar="NAME", help="register the best cell's model", show_default=False)
    ] = None,
    best_by: Annotated[str, typer.Option(metavar="METRIC", help="what makes a cell the best")] = PREFERENCE_ACCURACY,
) -> None:
    """Deliver to MLflow what it does not have yet: after a server was away, or a run was not tracked.

    A sweep or a training runs this with --follow by itself. By hand it is for one whose delivery was killed, or to
    deliver to a second server; two of them at once send nothing twice.
    """
    require("report", "track")
    announce(f"looking for what {store} has not delivered")
    from rcray import sync as delivering
    from rcray.follow import follow as follow_training
    from rcray.follow import one_to_follow
    from rcray.progress import DeliveryLine, Interruptible
    from rcray.track.address import tracking_address
    from rcray.track.book import Book

    models = delivering.Models(log_models, register, best_by)
    uri = tracking_address(tracking_uri).uri if tracking_uri else None
    opened = Store.open(store)

    names = []
    for given in experiments or []:
        if given.endswith((".yaml", ".yml")):  # an untracked experiment is tracked from now on
            experiment, cells = cells_of(Path(given), set_)
            Book(opened, experiment.name).enter(cells, experiment.title, uri)
            given = experiment.name
        names.append(given)
    books = delivering.tracked_experiments(opened, names)
    if not books:
        typer.echo(f"{opened.root}: nothing was tracked here yet")
        return

    def deliver(book: Book) -> None:
        address = delivering.address_for(book, uri, opened)
        with Interruptible() as interruptible, DeliveryLine(book.name, address.shown) as line:
            if follow:
                shown = interruptible.checked(line.update)
                synced = follow_training(book, opened, address, session=session, on_progress=shown)
            else:
                synced = delivering.sync(book, opened, address)
        typer.echo(f"{book.name}: {len(synced.cells)} cells, {synced.sent} -> {synced.address.shown}")
        for text in delivering.sync_models(synced, opened, models):
            typer.echo(f"  {text}")
        if synced.problems:
            raise RcrayError("\n".join(synced.problems), fix="mend or delete these run directories, then sync again")

    if follow or len(books) == 1:
        deliver(one_to_follow(books) if follow else books[0])
        return
    undelivered = []
    for book in books:
        try:
            deliver(book)
        except RcrayError as error:  # of this experiment; the others may have another address, and have their own runs
            typer.echo(printable(redact(str(error))), err=True)
            undelivered.append(book.name)
    if undelivered:
        raise RcrayError(f"not delivered: {', '.join(undelivered)}", fix="see above, then sync again")
