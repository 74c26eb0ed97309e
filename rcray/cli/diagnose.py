"""`rcray diagnose`: a forward of the start model over the pairs, before anything is trained."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from rcray.cli.shared import JsonOption, SetOption, StoreOption, TinyOption, announce, app, cells_of
from rcray.errors import ConfigError
from rcray.extras import require
from rcray.store import DEFAULT_STORE, Store


@app.command(short_help="which pairs will hurt, before anything is trained")
def diagnose(
    file: Annotated[
        Path | None, typer.Argument(help="experiment file (YAML); without one, --model and --data", show_default=False)
    ] = None,
    model: Annotated[str | None, typer.Option(help="embedded model, preset, hub id, or directory")] = None,
    data: Annotated[str | None, typer.Option(help="a known dataset, a file, directory or hub id")] = None,
    pairs: Annotated[int, typer.Option("--pairs", "-n", min=0, help="that the model reads, drawn; 0: all")] = 512,
    worst: Annotated[float, typer.Option(help="share of the pairs that a filter drops by a ranked column")] = 0.1,
    drop: Annotated[
        list[str] | None, typer.Option("--drop", metavar="COLUMN", help="what a filter goes by; repeatable")
    ] = None,
    write_filter: Annotated[
        Path | None, typer.Option("--write-filter", metavar="FILE", help="row numbers for data.exclude_rows")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="another place than STORE/diagnoses/NAME")] = None,
    store: StoreOption = DEFAULT_STORE,
    set_: SetOption = None,
    tiny: TinyOption = False,
    json_: JsonOption = False,
) -> None:
    """Read the pairs with the start model once: likelihoods, CHES, entanglement, copies, lengths; the worst by each."""
    if not 0 < worst < 1:
        raise ConfigError(f"--worst {worst:g}: not a share", fix="give a number between 0 and 1, such as 0.1")
    name, configs = _configs(file, model, data, set_, tiny)
    require("sweep")
    announce("reading the model and the pairs")
    from rcray.diagnose import report
    from rcray.diagnose.diagnosis import DROPPED, check_criteria, same_start
    from rcray.diagnose.diagnosis import diagnose as examine
    from rcray.progress import CountLine

    names = drop or list(DROPPED)
    check_criteria(names)
    groups: dict[tuple[str, str, str], list[Any]] = {}
    for config in configs:
        groups.setdefault(same_start(config), []).append(config)
    if write_filter and len({key[1] for key in groups}) > 1:
        raise ConfigError(
            "--write-filter: these cells have several datasets", fix="choose one with --set data.name=..."
        )
    if write_filter and configs[0].data.format == "unpaired":
        raise ConfigError("--write-filter: rows are labelled answers here, and are judged in pairs", fix="leave it out")
    place = Store.open(store)
    contents, dropped = [], dict[int, list[str]]()
    for number, group in enumerate(groups.values(), start=1):
        with CountLine("pairs read") as line:
            diagnosis = examine(group, place, pairs or None, line.update)
        title = name if len(groups) == 1 else f"{name}-{number}"
        folder = (out if len(groups) == 1 else out / title) if out else place.root / "diagnoses" / title
        page = report.write(diagnosis, folder, title)
        for row, reasons in diagnosis.dropped(names, worst).items():
            dropped[row] = list(dict.fromkeys([*dropped.get(row, ()), *reasons]))
        contents.append(report.content(diagnosis) | {"page": str(page)})
        if not json_:
            _show(diagnosis)
            typer.echo(str(page))
    if write_filter:
        report.write_filter(write_filter, dropped)
        typer.echo(f"{write_filter}: {len(dropped)} rows, by {', '.join(names)}", err=json_)
        typer.echo(f"  --set data.exclude_rows={write_filter}", err=json_)
    if json_:
        typer.echo(json.dumps(contents if len(contents) > 1 else contents[0], indent=2))


def _configs(
    file: Path | None, model: str | None, data: str | None, set_: list[str] | None, tiny: bool
) -> tuple[str, list[Any]]:
    """The experiment's own cells, or the main table's objectives on a model and data."""
    if (file is None) == (model is None and data is None):
        raise ConfigError("give an experiment file, or --model and --data", fix="such as `rcray diagnose FILE`")
    if file is not None:
        experiment, cells = cells_of(file, set_, tiny)
        return experiment.name, [cell.config for cell in cells]
    from rcray.config import Experiment, parse_overrides
    from rcray.sweep.grid import expand

    run = {key: value for key, value in (("model", model), ("data", {"name": data} if data else None)) if value}
    grid = {"objective": ["dpo", "simpo", "cpo", "dil-bce", "ddro", "dil-lsif"]}
    cells = expand(Experiment(name="diagnosis", run=run, grid=grid), parse_overrides(set_ or ()))
    return "diagnosis", [cell.config for cell in cells]


def _show(diagnosis: Any) -> None:
    from rich.console import Console

    from rcray.aggregate.tables import to_rich
    from rcray.diagnose import report

    console = Console()
    for table in (report.facts_table(diagnosis), report.foreseen_table(diagnosis)):
        console.print(to_rich(table, console.width))
