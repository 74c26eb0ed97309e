"""The command line. Heavy libraries are imported inside the commands that need them."""

import json
import logging
import os
import shlex
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from rcray import __version__
from rcray.errors import EXIT_FAILED, EXIT_INTERRUPTED, ConfigError, RcrayError, printable
from rcray.evaluate.arena.cli import app as arena
from rcray.secrets import redact, redact_logs
from rcray.store import DEFAULT_STORE, Store

app = typer.Typer(
    name="rcray",
    help="Sweeps over preference objectives: incentives, the disentanglement band, and reward calibration.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

FileArgument = Annotated[Path, typer.Argument(help="experiment file (YAML)", show_default=False)]
FilesArgument = Annotated[list[Path], typer.Argument(help="experiment files (YAML)", show_default=False)]
StoreOption = Annotated[
    Path, typer.Option("--store", envvar="RCRAY_STORE", help="directory of runs, caches and reports")
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="override a field of every cell; repeatable")
]
TinyOption = Annotated[
    bool, typer.Option("--tiny", help="scaled down to seconds on a CPU: embedded models, synthetic pairs")
]
ClusterOption = Annotated[
    Path | None,
    typer.Option("--cluster", metavar="FILE", help="cluster.yaml: what an autoscaler may bring up", show_default=False),
]
JsonOption = Annotated[bool, typer.Option("--json", help="machine-readable output")]
TrackingOption = Annotated[
    str | None,
    typer.Option(
        "--tracking-uri",
        envvar="MLFLOW_TRACKING_URI",
        help="MLflow server or database; the default is a SQLite file in the store",
        show_default=False,
    ),
]
NoTrackingOption = Annotated[bool, typer.Option("--no-tracking", help="do not write to MLflow")]


def main() -> None:
    """Entry point: errors raised on purpose become one screen and an exit code, without a traceback."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    redact_logs()
    try:
        app(standalone_mode=True)
    except RcrayError as error:
        typer.echo(printable(redact(f"error: {error}")), err=True)
        sys.exit(error.exit_code)
    except SystemExit as end:
        if end.code == EXIT_INTERRUPTED:  # typer makes this of Ctrl-C, without a word
            typer.echo("interrupted; the same command continues", err=True)
        raise


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rcray {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="print it")] = False,
) -> None:
    pass


def _cells(file: Path, overrides: list[str] | None, tiny: bool = False, points: Any = None) -> tuple[Any, Any]:
    from rcray.config import load_experiment, parse_overrides
    from rcray.sweep.grid import expand
    from rcray.sweep.tiny import tiny_cells, tiny_experiment

    experiment, changes = load_experiment(file), parse_overrides(overrides or ())
    cells = expand(experiment, changes, points)
    return (tiny_experiment(experiment), tiny_cells(cells, changes)) if tiny else (experiment, cells)


def _only_cell(file: Path, overrides: list[str] | None) -> tuple[Any, Any]:
    experiment, cells = _cells(file, overrides)
    if len(cells) > 1:
        raise ConfigError(
            f"{file}: has {len(cells)} cells, and this command takes one",
            fix="choose with --set, for example --set objective=dpo --set calibration.enabled=true; or `rcray sweep`",
        )
    return experiment, cells[0]


def _tracking(uri: str | None, unwanted: bool, store: Path) -> str | None:
    """Where to track to, checked before anything starts; a server that is away is no reason not to start."""
    if unwanted:
        return None
    from rcray.track.address import Address, knock, tracking_address

    address = tracking_address(uri) if uri else Address(Store.at(store).default_tracking_uri)
    if reason := knock(address):
        typer.echo(f"MLflow at {address.shown} does not answer ({reason}); records are kept for `rcray sync`", err=True)
    return address.uri


def _undelivered(delivered: Any, store: Path) -> None:
    """Says what MLflow did not get, if anything, and how to send it."""
    if delivered is None or delivered.complete:
        return
    for line in filter(None, [delivered.problem, *delivered.cells]):
        typer.echo(redact(f"MLflow: {line}"), err=True)
    typer.echo(f"not everything reached MLflow; nothing is lost: rcray sync --store {store}", err=True)


@app.command("show-config")
def show_config(file: FileArgument, set_: SetOption = None, json_: JsonOption = False) -> None:
    """Print the resolved configuration of every cell, with its run id."""
    import yaml

    _, cells = _cells(file, set_)
    resolved = [{"run_id": c.run_id, "label": c.label, **c.config.model_dump(mode="json")} for c in cells]
    if json_:
        typer.echo(json.dumps(resolved, indent=2))
    else:
        typer.echo(yaml.safe_dump_all(resolved, sort_keys=False, allow_unicode=True).rstrip())


@app.command()
def plan(
    files: FilesArgument,
    store: StoreOption = DEFAULT_STORE,
    set_: SetOption = None,
    tiny: TinyOption = False,
    cluster: ClusterOption = None,
    json_: JsonOption = False,
) -> None:
    """Show the unique cells of all files, which are done, what they take and what contradicts; nothing is run."""
    from rcray.sweep.placement import read_cluster_file
    from rcray.sweep.planning import make_plan, plan_table, summary

    nodes = read_cluster_file(cluster) if cluster else None
    made = make_plan([(file, *_cells(file, set_, tiny)) for file in files], store, nodes)
    if json_:
        typer.echo(json.dumps(made.rows(), indent=2))
    else:
        from rich.console import Console

        console = Console()
        console.print(plan_table(made, console.width))
        console.print(summary(made), markup=False, highlight=False)
    for conflict in made.conflicts:
        typer.echo(f"conflict: {conflict}", err=True)


@app.command()
def objectives(json_: JsonOption = False) -> None:
    """Print the objective zoo: family, reference, incentives, defaults."""
    from rcray.config.objectives import BUILT_IN

    rows = []
    for params in BUILT_IN:
        traits = params.traits
        fields = {name: field for name, field in params.model_fields.items() if name != "name"}
        rows.append(
            {
                "name": params.model_fields["name"].default,
                "title": traits.title,
                "family": traits.family,
                "needs_reference": traits.needs_reference,
                "token_level": traits.token_level,
                "loss": traits.loss,
                "d_w": traits.d_w,
                "d_l": traits.d_l,
                "defaults": {name: field.default for name, field in fields.items()},
                "parameters": {name: field.description for name, field in fields.items()},
                "source": traits.source,
                "caveats": traits.caveats,
            }
        )
    if json_:
        typer.echo(json.dumps(rows, indent=2))
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=f"{len(rows)} objectives (b, lam, g, a: hyperparameters; s: sigmoid)", title_justify="left")
    for name in ("name", "family", "reference", "tokens", "d_w", "d_l", "defaults"):
        table.add_column(name)
    for row in rows:
        defaults = ", ".join(f"{key}={value}" for key, value in row["defaults"].items())
        table.add_row(
            row["name"],
            row["family"],
            "yes" if row["needs_reference"] else "no",
            "yes" if row["token_level"] else "no",
            escape(row["d_w"]),
            escape(row["d_l"]),
            escape(defaults) or "-",
        )
    Console().print(table)


@app.command()
def init(
    file: Annotated[Path, typer.Argument(help="experiment file to write; never overwritten")] = Path("experiment.yaml"),
    model: Annotated[str, typer.Option(help="embedded model, preset, hub id, or directory")] = "tiny-neox",
    data: Annotated[str, typer.Option(help="synthetic, ultrafeedback, hh, a file, directory or hub id")] = "synthetic",
    method: Annotated[
        Literal["full", "lora", "qlora"] | None, typer.Option(help="what is trained; as the model's preset says")
    ] = None,
    prompt: Annotated[str, typer.Option(help="column of the prompts in your data")] = "prompt",
    chosen: Annotated[str, typer.Option(help="column of the chosen answers")] = "chosen",
    rejected: Annotated[str, typer.Option(help="column of the rejected answers")] = "rejected",
) -> None:
    """Write a commented starter experiment for your model and data."""
    from rcray.starter import Wanted, write_starter

    columns = {"prompt": prompt, "chosen": chosen, "rejected": rejected}
    experiment, cells = write_starter(file, Wanted(model, data, method, columns))
    typer.echo(f"{file}: experiment {experiment.name!r} with {cells} cells")
    typer.echo(f"  rcray plan {shlex.quote(str(file))}")
    typer.echo(f"  rcray sweep {shlex.quote(str(file))}")


@app.command()
def doctor(store: StoreOption = DEFAULT_STORE, tracking_uri: TrackingOption = None, json_: JsonOption = False) -> None:
    """Look at versions, devices, disk, store, Ray, MLflow and the hub; say what is wrong and how to fix it."""
    from rcray.doctor import describe, examine, is_broken

    findings = examine(store, tracking_uri)
    if json_:
        typer.echo(json.dumps([vars(finding) for finding in findings], indent=2))
    else:
        typer.echo(describe(findings))
    if is_broken(findings):
        sys.exit(EXIT_FAILED)


@app.command()
def train(
    file: FileArgument,
    store: StoreOption = DEFAULT_STORE,
    set_: SetOption = None,
    profile: Annotated[bool, typer.Option("--profile", help="show where a step's time goes")] = False,
    tracking_uri: TrackingOption = None,
    no_tracking: NoTrackingOption = False,
) -> None:
    """Train one cell; continues from its newest checkpoint, and does nothing if it is finished."""
    experiment, cell = _only_cell(file, set_)
    uri = _tracking(tracking_uri, no_tracking, store)
    opened = Store.open(store)
    from rcray.pipeline import train as run
    from rcray.progress import ProgressLine
    from rcray.train.launch import is_finished

    if is_finished(opened.run(cell.run_id)):
        typer.echo(f"{cell.label}: already finished in {opened.run(cell.run_id).path}")
        return
    with ExitStack() as stack:
        if cell.config.execution.workers:
            from rcray.sweep.connection import connected
            from rcray.sweep.placement import check_placement, possible_nodes

            stack.enter_context(connected(needs_dashboard=True))
            check_placement([cell], possible_nodes(None))
        line = stack.enter_context(ProgressLine(cell.label))
        outcome = run(experiment, cell, opened, tracking_uri=uri, on_step=line.update, profile=profile)
    status = outcome.status
    done = f", {status['step']} steps in {status['seconds']:.1f} s" if "step" in status else ""
    typer.echo(f"{cell.label}: {status['status']}{done}")
    typer.echo(f"  {opened.run(cell.run_id).path}")
    _undelivered(outcome.delivered, store)
    if profile:
        from rcray.train.profile import describe

        typer.echo(describe(opened.run(cell.run_id).profile))
    if status["status"] != "ok":
        raise RcrayError(f"{cell.label}: {status['status']}: {status['error']}")


@app.command()
def sweep(
    file: FileArgument,
    store: StoreOption = DEFAULT_STORE,
    set_: SetOption = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help="cells at once; as many as fit")] = None,
    tracking_uri: TrackingOption = None,
    no_tracking: NoTrackingOption = False,
    tiny: TinyOption = False,
    cluster: ClusterOption = None,
) -> None:
    """Run every unfinished cell of an experiment, then write tables, figures and report.html."""
    experiment, cells = _cells(file, set_, tiny)
    uri = _tracking(tracking_uri, no_tracking, store)
    if "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ and not store.expanduser().is_absolute():
        raise ConfigError(
            f"--store {store}: a Ray job runs in a temporary copy of its directory, on one node",
            fix="give an absolute path on storage that every node mounts, or set RCRAY_STORE on the cluster",
        )
    opened = Store.open(store)
    from rcray.pipeline import sweep as run
    from rcray.progress import LedgerScreen

    with LedgerScreen(experiment.title or experiment.name) as screen:

        def run_cells(wanted: Any) -> Any:
            return run(
                experiment,
                wanted,
                opened,
                tracking_uri=uri,
                concurrency=concurrency,
                on_refresh=screen.refresh,
                cluster_file=cluster,
            )

        if experiment.search is not None and experiment.search.method == "optuna":
            from rcray.sweep.search import choose_with_optuna

            def cell_at(point: Any) -> Any:
                return _cells(file, set_, tiny, [point])[1][0]

            outcome = choose_with_optuna(experiment.search, cell_at, opened, run_cells)
        else:
            outcome = run_cells(cells)
    _print_outcome(outcome, store)
    if outcome.ledger.tally().get("pending"):
        sys.exit(EXIT_INTERRUPTED)
    if not outcome.ledger.complete:
        sys.exit(EXIT_FAILED)


@app.command()
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
    experiment, _ = _cells(file, set_, tiny)  # refused here, not on the cluster
    from rcray.sweep.submit import Submission, file_in_job, parse_env
    from rcray.sweep.submit import submit as run

    if store is not None and not store.is_absolute():
        raise ConfigError(f"--store {store}: not absolute", fix="give the path as the cluster's nodes see it")
    options = [part for item in set_ or () for part in ("--set", item)]
    options += ["--tiny"] if tiny else []
    options += ["--store", str(store)] if store else []
    command = ["sweep", file_in_job(file, working_dir), *options]
    submission = Submission(experiment.name, command, working_dir.resolve(), parse_env(env or ()))
    sys.exit(run(submission, address, follow_log=not no_follow, write=_write_through))


def _write_through(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _print_outcome(outcome: Any, store: Path) -> None:
    from rich.console import Console

    from rcray.aggregate.tables import to_rich
    from rcray.sweep.ledger import UNSUCCESSFUL

    console = Console()
    for entry in outcome.ledger.entries.values():
        if entry.status in UNSUCCESSFUL:
            console.print(f"{entry.status}: {entry.label}: {entry.error}", style="red", markup=False, highlight=False)
    console.print(to_rich(outcome.report.table, console.width))
    if outcome.best:
        typer.echo(outcome.best)
    typer.echo("\nWhere to look")
    typer.echo(f"  report   {outcome.report.html}")
    typer.echo(f"  tables   {outcome.report.html.parent / 'tables'}")
    typer.echo(f"  figures  {outcome.report.html.parent / 'figures'}")
    if outcome.tracking_uri is not None:
        local = outcome.tracking_uri == Store.at(store).default_tracking_uri
        typer.echo(f"  MLflow   {f'rcray ui --store {store}' if local else redact(outcome.tracking_uri)}")
    _undelivered(outcome.delivered, store)
    typer.echo("\nWhat to try next")
    typer.echo("  another setting   the same command with --set objective.beta=0.5 or --set calibration.scores=full")
    typer.echo("  a published grid  rcray plan experiments/main.yaml; then rcray sweep experiments/main.yaml --tiny")
    typer.echo("  a cluster         deploy/README.md")


@app.command()
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
    experiment, cells = _cells(file, set_) if file else (None, [])
    from rcray.config.evaluation import settings_from

    given = {"benchmarks": benchmark, "limit": limit, "data_dir": data_dir and str(data_dir)}
    settings = settings_from(experiment and experiment.evaluation, given, Path.cwd())
    opened = Store.open(store)
    from rcray.evaluate.command import Target, find_runs
    from rcray.evaluate.command import evaluate as measure

    if run:
        targets = [target for name in run for target in find_runs(name, opened)]
    else:
        targets = [Target(cell.label, cell.config, opened) for cell in cells]
    measure(targets, settings, typer.echo, lambda line: typer.echo(line, err=True))


app.add_typer(arena, name="arena")


@app.command()
def report(
    files: Annotated[list[Path] | None, typer.Argument(help="experiment files (YAML)", show_default=False)] = None,
    store: StoreOption = DEFAULT_STORE,
    set_: SetOption = None,
    published: Annotated[bool, typer.Option("--published", help="the paper's own tables, without any run")] = False,
    ledger: Annotated[
        Path | None, typer.Option("--ledger", help="read an exported ledger instead of a store", show_default=False)
    ] = None,
    export_ledger: Annotated[
        Path | None, typer.Option("--export-ledger", help="also write the runs' ledger here", show_default=False)
    ] = None,
    from_mlflow: Annotated[
        str | None, typer.Option("--from-mlflow", help="fetch the runs from this MLflow server", show_default=False)
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="directory of the report", show_default=False)] = None,
    no_figures: Annotated[bool, typer.Option("--no-figures", help="tables and page only")] = False,
    json_: JsonOption = False,
) -> None:
    """Rebuild tables, figures and report.html from finished runs; nothing is trained."""
    experiments = [_cells(file, set_) for file in files or ()]
    from rich.console import Console

    from rcray.aggregate.command import Request, run_report
    from rcray.aggregate.tables import to_rich

    built = run_report(Request(experiments, store, published, ledger, from_mlflow, export_ledger, out, not no_figures))
    if json_:
        typer.echo(json.dumps(built.paths(), indent=2))
        return
    console = Console()
    console.print(to_rich(built.table, console.width))
    typer.echo(f"{len(built.tables) // 3} tables, {len(built.figures) // 3} figures in {built.html.parent}")
    typer.echo(f"report {built.html}")


@app.command()
def ui(
    store: StoreOption = DEFAULT_STORE,
    tracking_uri: TrackingOption = None,
    host: Annotated[str, typer.Option(help="address to listen on; loopback unless you say otherwise")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535)] = 5000,
) -> None:
    """Start the MLflow UI on the store's runs; a tracking server has its own."""
    from rcray.track.address import Address, tracking_address
    from rcray.track.ui import serve

    given = tracking_address(tracking_uri) if tracking_uri else None
    opened = Store.open(store)

    def say(line: str) -> None:
        typer.echo(line)
        sys.stdout.flush()

    sys.exit(serve(given or Address(opened.default_tracking_uri), opened, host, port, say))


@app.command()
def sync(
    experiments: Annotated[
        list[str] | None, typer.Argument(help="names or files of experiments; all tracked ones", show_default=False)
    ] = None,
    store: StoreOption = DEFAULT_STORE,
    set_: SetOption = None,
    tracking_uri: TrackingOption = None,
    log_models: Annotated[
        Literal["none", "best", "all"], typer.Option(help="also log trained models, with their weights")
    ] = "none",
    register: Annotated[
        str | None, typer.Option(metavar="NAME", help="register the best cell's model", show_default=False)
    ] = None,
    best_by: Annotated[str, typer.Option(metavar="METRIC", help="what makes a cell the best")] = "preference/accuracy",
) -> None:
    """Deliver to MLflow what the store has and MLflow has not: after a server was away, or a run untracked."""
    from rcray.sync import Models, address_for, sync_models, tracked_experiments
    from rcray.sync import sync as deliver
    from rcray.track.address import tracking_address

    models = Models(log_models, register, best_by)
    uri = tracking_address(tracking_uri).uri if tracking_uri else None
    opened = Store.open(store)

    names = []
    for given in experiments or []:
        if given.endswith((".yaml", ".yml")):  # an untracked experiment is tracked from now on
            from rcray.track.book import Book

            experiment, cells = _cells(Path(given), set_)
            Book(opened, experiment.name).enter(cells, experiment.title, uri)
            given = experiment.name
        names.append(given)
    books = tracked_experiments(opened, names)
    if not books:
        typer.echo(f"{opened.root}: nothing was tracked here yet")
    for book in books:
        synced = deliver(book, opened, address_for(book, uri, opened))
        sent = synced.sent
        what = "nothing new" if sent.nothing else f"{sent.runs} new runs, {sent.points} points, {sent.files} files"
        typer.echo(f"{book.name}: {len(synced.cells)} cells, {what} -> {synced.address.shown}")
        for line in sync_models(synced, opened, models):
            typer.echo(f"  {line}")
        if synced.problems:
            raise RcrayError("\n".join(synced.problems), fix="mend or delete these run directories, then sync again")
