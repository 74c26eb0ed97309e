"""What the commands share: the program itself, options, and the way from a file to its cells."""

import json
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from rcray.errors import ConfigError, printable
from rcray.secrets import redact
from rcray.store import Store

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
OnlyOption = Annotated[
    list[str] | None,
    typer.Option("--only", metavar="RUN_ID", help="these cells alone, by run id; repeatable, or with commas between"),
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
NoFiguresOption = Annotated[bool, typer.Option("--no-figures", help="tables and page only")]
NoTrackingOption = Annotated[bool, typer.Option("--no-tracking", help="do not write to MLflow")]


def announce(text: str) -> None:
    """What a command is about to do, before the libraries for it are imported: nobody should face a silent terminal."""
    typer.echo(f"{printable(redact(text))} ...", err=True)


def cells_of(
    file: Path,
    overrides: list[str] | None,
    tiny: bool = False,
    points: Any = None,
    only: list[str] | None = None,
) -> tuple[Any, Any]:
    """An experiment and its cells; refuses what is wrong before anything heavy is imported."""
    from rcray.config import load_experiment, parse_overrides
    from rcray.sweep.grid import chosen, expand
    from rcray.sweep.tiny import tiny_cells, tiny_experiment

    experiment, changes = load_experiment(file), parse_overrides(overrides or ())
    cells = expand(experiment, changes, points)
    if tiny:
        experiment, cells = tiny_experiment(experiment), tiny_cells(cells, changes)
    return experiment, chosen(cells, only, file)


def sweep_command(file: Path | str, overrides: list[str] | None, tiny: bool = False) -> list[str]:
    """The command that runs a file's cells; one that takes some of them adds --only."""
    settings = [part for item in overrides or () for part in ("--set", item)]
    return ["rcray", "sweep", str(file), *settings, *(["--tiny"] if tiny else [])]


def only_cell(file: Path, overrides: list[str] | None) -> tuple[Any, Any]:
    """The experiment and its only cell."""
    experiment, cells = cells_of(file, overrides)
    if len(cells) > 1:
        fix = f"run one of them by `rcray sweep {file} --only {cells[-1].run_id}`"
        choice = _choice_of(cells)
        if _leaves_one(file, [*(overrides or []), *choice]):
            named = " ".join(f"--set {shlex.quote(given)}" for given in choice)
            fix = f"choose one, for example with {named}; or `rcray sweep`"
        raise ConfigError(f"{file}: has {len(cells)} cells, and this command takes one", fix=fix)
    return experiment, cells[0]


def _choice_of(cells: Any) -> list[str]:
    """The settings that leave the last of these cells alone: all that any of them varies, as it has them."""
    last = cells[-1]
    own = dict(last.varied)
    for path in (path for cell in cells for path, _ in cell.varied if path not in own):
        value: Any = last.config.model_dump(mode="json")
        for name in path.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None:  # else it has no such setting
            own[path] = value
    return [f"{path}={value if isinstance(value, str) else json.dumps(value)}" for path, value in own.items()]


def _leaves_one(file: Path, overrides: list[str]) -> bool:
    """A setting of another cell may not fit this one's objective."""
    try:
        return len(cells_of(file, overrides)[1]) == 1
    except ConfigError:
        return False


def tracking(uri: str | None, unwanted: bool, store: Path) -> str | None:
    """Where to track to, checked before anything starts; a server that is away is no reason not to start."""
    if unwanted:
        return None
    from rcray.track.address import Address, tracking_address, why_unreachable

    address = tracking_address(uri) if uri else Address(Store.at(store).default_tracking_uri)
    if reason := why_unreachable(address):
        typer.echo(f"MLflow at {address.shown} does not answer ({reason}); records are kept for `rcray sync`", err=True)
    return address.uri


def say_undelivered(delivered: Any, store: Path) -> None:
    """Says what MLflow did not get, if anything, and how to send it."""
    if delivered is None or delivered.complete:
        return
    for line in delivered.problem.splitlines():
        typer.echo(redact(f"MLflow: {line}"), err=True)
    typer.echo(f"not everything reached MLflow; nothing is lost: rcray sync --store {store}", err=True)
