"""The command line. Heavy libraries are imported inside the commands that need them."""

import json
import logging
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from rcray import __version__
from rcray.errors import EXIT_FAILED, EXIT_INTERRUPTED, ConfigError, RcrayError
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
StoreOption = Annotated[Path, typer.Option("--store", help="directory of runs, caches and reports")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="override a field of every cell; repeatable")
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


def main() -> None:
    """Entry point: errors raised on purpose become one screen and an exit code, without a traceback."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    try:
        app(standalone_mode=True)
    except RcrayError as error:
        typer.echo(f"error: {error}", err=True)
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


def _cells(file: Path, overrides: list[str] | None) -> tuple[Any, Any]:
    from rcray.config import load_experiment, parse_overrides
    from rcray.sweep.grid import expand

    experiment = load_experiment(file)
    return experiment, expand(experiment, parse_overrides(overrides or ()))


def _only_cell(file: Path, overrides: list[str] | None) -> Any:
    _, cells = _cells(file, overrides)
    if len(cells) > 1:
        raise ConfigError(
            f"{file}: has {len(cells)} cells, and this command takes one",
            fix="choose with --set, for example --set objective=dpo --set calibration.enabled=true; or `rcray sweep`",
        )
    return cells[0]


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
    files: FilesArgument, store: StoreOption = DEFAULT_STORE, set_: SetOption = None, json_: JsonOption = False
) -> None:
    """Show the unique cells of all files and which are already done; nothing is run."""
    from rcray.store import RunDir

    union: dict[str, dict[str, Any]] = {}
    for file in files:
        experiment, cells = _cells(file, set_)
        for cell in cells:
            status = RunDir(store / "runs" / cell.run_id).read_status().get("status", "pending")
            steps = cell.config.total_steps  # None: known once the data is read
            row = union.setdefault(
                cell.run_id,
                {
                    "run_id": cell.run_id,
                    "label": cell.label,
                    "status": status,
                    "steps": steps,
                    "pairs": None if steps is None else steps * cell.config.train.batch_size,
                    "workers": cell.config.execution.workers,
                    "experiments": [],
                },
            )
            row["experiments"].append(experiment.name)
    if json_:
        typer.echo(json.dumps(list(union.values()), indent=2))
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    done = sum(row["status"] == "ok" for row in union.values())
    table = Table(title=f"{len(union)} unique cells, {done} done", title_justify="left")
    for name in ("run", "cell", "status", "steps", "pairs", "workers", "in"):
        table.add_column(name, justify="right" if name in ("steps", "pairs", "workers") else "left")
    for row in union.values():
        table.add_row(
            row["run_id"],
            escape(row["label"]),
            row["status"],
            *("?" if row[name] is None else str(row[name]) for name in ("steps", "pairs")),
            str(row["workers"] or "inside"),
            ", ".join(row["experiments"]),
        )
    Console().print(table)


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
def train(file: FileArgument, store: StoreOption = DEFAULT_STORE, set_: SetOption = None) -> None:
    """Train one cell; continues from its newest checkpoint, and does nothing if it is finished."""
    cell = _only_cell(file, set_)
    opened = Store.open(store)
    from rcray.progress import ProgressLine
    from rcray.train.launch import is_finished, launch

    if is_finished(opened.run(cell.run_id)):
        typer.echo(f"{cell.label}: already finished in {opened.run(cell.run_id).path}")
        return
    if cell.config.execution.workers:
        import ray

        from rcray.sweep.runner import concurrency, connect

        connect(needs_dashboard=True)
        concurrency([cell], ray.cluster_resources(), 1)
    with ProgressLine(cell.label) as line:
        status = launch(cell.config, opened, on_step=line.update)
    typer.echo(f"{cell.label}: {status['status']}, {status['step']} steps in {status['seconds']:.1f} s")
    typer.echo(f"  {opened.run(cell.run_id).path}")
    if status["status"] != "ok":
        raise RcrayError(f"{cell.label}: {status['status']}: {status['error']}")


@app.command()
def sweep(
    file: FileArgument,
    store: StoreOption = DEFAULT_STORE,
    set_: SetOption = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help="cells at once; as many as fit")] = None,
    tracking_uri: TrackingOption = None,
    no_tracking: Annotated[bool, typer.Option("--no-tracking", help="do not write to MLflow")] = False,
) -> None:
    """Run every unfinished cell of an experiment, then write tables, figures and report.html."""
    experiment, cells = _cells(file, set_)
    opened = Store.open(store)
    from rcray.pipeline import sweep as run
    from rcray.progress import LedgerScreen

    uri = None if no_tracking else tracking_uri or opened.default_tracking_uri
    with LedgerScreen(experiment.title or experiment.name) as screen:
        outcome = run(experiment, cells, opened, tracking_uri=uri, concurrency=concurrency, on_refresh=screen.refresh)
    _print_outcome(outcome, store)
    if outcome.ledger.tally().get("pending"):
        sys.exit(EXIT_INTERRUPTED)
    if not outcome.ledger.complete:
        sys.exit(EXIT_FAILED)


def _print_outcome(outcome: Any, store: Path) -> None:
    from rich.console import Console

    from rcray.aggregate.tables import to_rich
    from rcray.sweep.ledger import UNSUCCESSFUL

    console = Console()
    for entry in outcome.ledger.entries.values():
        if entry.status in UNSUCCESSFUL:
            console.print(f"{entry.status}: {entry.label}: {entry.error}", style="red", markup=False, highlight=False)
    console.print(to_rich(outcome.report.table, console.width))
    typer.echo("\nWhere to look")
    typer.echo(f"  report   {outcome.report.html}")
    typer.echo(f"  tables   {outcome.report.html.parent / 'tables'}")
    typer.echo(f"  figures  {outcome.report.html.parent / 'figures'}")
    if outcome.tracking_uri:
        typer.echo(f"  MLflow   rcray ui --store {store}")


@app.command()
def evaluate(file: FileArgument, store: StoreOption = DEFAULT_STORE, set_: SetOption = None) -> None:
    """Measure the finished cells of an experiment on held-out pairs; what is measured is not measured again."""
    _, cells = _cells(file, set_)
    opened = Store.open(store)
    from rcray.evaluate.preference import evaluate_run
    from rcray.train.launch import is_finished

    missing = 0
    for cell in cells:
        if not is_finished(opened.run(cell.run_id)):
            typer.echo(f"{cell.label}: not finished, skipped", err=True)
            missing += 1
            continue
        for row in evaluate_run(cell.config, opened)["rows"]:
            value = f"{row['value']:.4f} ± {row['stderr']:.4f} (n={row['n']})"
            typer.echo(f"{cell.label}: {row['benchmark']}/{row['metric']} {value}")
    if missing:
        raise RcrayError(f"{missing} of {len(cells)} cells are not finished", fix="run `rcray sweep` first")


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
) -> None:
    """Rebuild tables, figures and report.html from finished runs; nothing is trained."""
    experiments = [_cells(file, set_) for file in files or ()]
    from rich.console import Console

    from rcray.aggregate.command import Request, run_report
    from rcray.aggregate.tables import to_rich

    built = run_report(Request(experiments, store, published, ledger, from_mlflow, export_ledger, out, not no_figures))
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
    """Start the MLflow UI on the store's runs."""
    uri = tracking_uri or Store.open(store).default_tracking_uri
    typer.echo(f"MLflow UI on http://{host}:{port} (Ctrl-C ends it)")
    sys.stdout.flush()
    command = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", uri, "--host", host]
    os.execv(sys.executable, [*command, "--port", str(port), "--workers", "1"])
