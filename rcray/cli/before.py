"""Before anything runs: is this machine fit, what could be run, what would it take."""

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from rcray.cli.shared import (
    ClusterOption,
    FileArgument,
    FilesArgument,
    JsonOption,
    OnlyOption,
    SetOption,
    StoreOption,
    TinyOption,
    TrackingOption,
    announce,
    app,
    cells_of,
)
from rcray.errors import EXIT_FAILED, printable
from rcray.extras import require
from rcray.store import DEFAULT_STORE, Store


@app.command(short_help="what is wrong with this machine, and how to fix it")
def doctor(store: StoreOption = DEFAULT_STORE, tracking_uri: TrackingOption = None, json_: JsonOption = False) -> None:
    """Look at versions, devices, disk, store, Ray, MLflow and the hub; say what is wrong and how to fix it."""
    if not json_:
        announce("looking at versions, devices, disk, store, Ray, MLflow and the hub")
    from rcray.doctor import examine, is_broken, report_of

    findings = examine(store, tracking_uri)
    if json_:
        typer.echo(json.dumps([vars(finding) for finding in findings], indent=2))
    else:
        typer.echo(report_of(findings))
    if is_broken(findings):
        sys.exit(EXIT_FAILED)


@app.command(short_help="a commented experiment for your model and data")
def init(
    file: Annotated[Path, typer.Argument(help="experiment file to write; never overwritten")] = Path("experiment.yaml"),
    model: Annotated[str, typer.Option(help="embedded model, preset, hub id, or directory")] = "tiny-neox",
    data: Annotated[str, typer.Option(help="a known dataset, a file, directory or hub id")] = "synthetic",
    method: Annotated[
        Literal["full", "lora", "qlora"] | None, typer.Option(help="what is trained; as the model's preset says")
    ] = None,
    prompt: Annotated[str, typer.Option(help="column of the prompts in your data")] = "prompt",
    chosen: Annotated[str, typer.Option(help="column of the chosen answers")] = "chosen",
    rejected: Annotated[str, typer.Option(help="column of the rejected answers")] = "rejected",
) -> None:
    """Write a commented starter experiment for your model and data."""
    from rcray.config.models import embedded_models
    from rcray.starter import Wanted, write_starter

    announce(f"looking at {model} and {data}")
    columns = {"prompt": prompt, "chosen": chosen, "rejected": rejected}
    experiment, cells = write_starter(file, Wanted(model, data, method, columns))
    typer.echo(f"{file}: experiment {experiment.name!r} with {cells} cells")
    execution = experiment.run.get("execution", {})
    if model not in embedded_models() and not execution.get("gpus_per_worker"):
        typer.echo("  no GPU was seen here: its cells are placed on CPUs (execution.gpus_per_worker: 0)")
    typer.echo(f"  rcray plan {shlex.quote(str(file))}")
    typer.echo(f"  rcray sweep {shlex.quote(str(file))}")


@app.command(short_help="the zoo: incentives, defaults, what each needs")
def objectives(json_: JsonOption = False) -> None:
    """Print the objective zoo: family, reference, incentives, defaults."""
    from rcray.config.objectives import BUILT_IN
    from rcray.config.objectives.names import other_names

    rows = []
    for params in BUILT_IN:
        traits = params.traits
        fields = {name: field for name, field in params.model_fields.items() if name != "name"}
        rows.append(
            {
                "name": (name := params.model_fields["name"].default),
                "also": other_names(name),
                "title": traits.title,
                "family": traits.family,
                "needs_reference": traits.needs_reference,
                "token_level": traits.token_level,
                "takes_unpaired_rows": traits.separates,
                "loss": traits.loss,
                "d_w": traits.d_w and traits.d_w.text,
                "d_l": traits.d_l and traits.d_l.text,
                "where": traits.where,
                "defaults": {name: field.default for name, field in fields.items()},
                "parameters": {name: field.description for name, field in fields.items()},
                "source": traits.source,
                "caveats": traits.caveats,
            }
        )
    if json_:
        typer.echo(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=f"{len(rows)} objectives (β, λ, γ, α: hyperparameters; σ: sigmoid)", title_justify="left")
    for name in ("name", "family", "reference", "tokens", "d_w", "d_l", "defaults"):
        table.add_column(name)
    for row in rows:
        defaults = ", ".join(f"{key}={value}" for key, value in row["defaults"].items())
        table.add_row(
            row["name"],
            row["family"],
            "yes" if row["needs_reference"] else "no",
            "yes" if row["token_level"] else "no",
            escape(row["d_w"] or "-"),
            escape(row["d_l"] or "-"),
            escape(defaults) or "-",
        )
    names = Table(title="Other names (trl/: a loss_type of TRL's DPOTrainer, with its defaults)", title_justify="left")
    for column in ("name", "stands for", "likelihood"):
        names.add_column(column)
    for row in rows:
        for other in row["also"]:
            settings = "".join(f", {key}={value}" for key, value in other["settings"].items())
            names.add_row(other["name"], escape(row["name"] + settings), other["likelihood"] or "as the run has it")
    Console().print(table)
    Console().print(names)


@app.command(short_help="unique cells, which are done, what they take; runs nothing")
def plan(
    files: FilesArgument,
    store: StoreOption = DEFAULT_STORE,
    set_: SetOption = None,
    only: OnlyOption = None,
    tiny: TinyOption = False,
    cluster: ClusterOption = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="time one micro-batch here; reads the model, caches it and the data")
    ] = False,
    gpu: Annotated[
        str, typer.Option("--gpu", help="the card assumed: a6000, l40s, l4, a100-40, a100-80, h100")
    ] = "a6000",
    json_: JsonOption = False,
) -> None:
    """Show the unique cells of all files, which are done, what they take and what contradicts; nothing is run."""
    named = ", ".join(map(str, files))
    if measure:
        require("sweep")
        announce(f"timing micro-batches of {named} on this machine")
    from rcray.sweep.accelerators import accelerator
    from rcray.sweep.grid import chosen
    from rcray.sweep.placement import read_cluster_file
    from rcray.sweep.planning import make_plan, measured_plan, plan_table, summary

    nodes = read_cluster_file(cluster) if cluster else None
    loaded = [(file, *cells_of(file, set_, tiny)) for file in files]
    wanted = {cell.run_id for cell in chosen([cell for *_, cells in loaded for cell in cells], only, named)}
    expanded = [(file, each, [cell for cell in cells if cell.run_id in wanted]) for file, each, cells in loaded]
    planned = make_plan(expanded, store, nodes, accelerator(gpu))
    if measure:
        planned = measured_plan(planned, Store.open(store), lambda line: typer.echo(line, err=True))
    if json_:
        typer.echo(json.dumps(planned.rows(), indent=2))
    else:
        from rich.console import Console

        console = Console()
        console.print(plan_table(planned, console.width))
        console.print(summary(planned), markup=False, highlight=False)
    for conflict in planned.conflicts:
        typer.echo(f"conflict: {conflict}", err=True)


@app.command("show-config", short_help="every resolved setting of every cell")
def show_config(file: FileArgument, set_: SetOption = None, only: OnlyOption = None, json_: JsonOption = False) -> None:
    """Print the resolved configuration of every cell, with its run id."""
    import yaml

    _, cells = cells_of(file, set_, False, None, only)
    resolved = [{"run_id": c.run_id, "label": c.label, **c.config.model_dump(mode="json")} for c in cells]
    if json_:
        typer.echo(json.dumps(resolved, indent=2))
    else:
        typer.echo(yaml.safe_dump_all(resolved, sort_keys=False, allow_unicode=True).rstrip())


@app.command("show-pairs", short_help="pairs as a model reads them, under both presets")
def show_pairs(
    file: FileArgument,
    pairs: Annotated[int, typer.Option("--pairs", "-n", min=1, help="of each model and dataset")] = 3,
    whole: Annotated[bool, typer.Option("--whole", help="every token, however long the pair")] = False,
    store: StoreOption = DEFAULT_STORE,
    set_: SetOption = None,
    tiny: TinyOption = False,
) -> None:
    """Print the first pairs as they are rendered, scored and truncated, by the preset `official` and by `paper`."""
    _, cells = cells_of(file, set_, tiny)
    require("sweep")
    announce(f"reading {file}'s tokenizers and pairs")
    from rcray.config.fidelity import PRESETS
    from rcray.data.display import LEGEND, describe_pairs, same_rows
    from rcray.models.load import read_tokenizer
    from rcray.models.sources import locate_tokenizer

    presets = {name: cells_of(file, [*(set_ or ()), f"fidelity={name}"], tiny)[1] for name in reversed(list(PRESETS))}
    own = {cell.config.fidelity for cell in cells}
    typer.echo(LEGEND)
    for key, cell in {same_rows(cell.config): cell for cell in reversed(cells)}.items():
        model = cell.config.model
        settings = {
            f"{name} (this file)" if name in own else name: like.config.data
            for name, alike in presets.items()
            for like in [next(like for like in alike if same_rows(like.config) == key)]
        }
        tokenizer = read_tokenizer(model, locate_tokenizer(model, Store.at(store).cache))
        typer.echo(f"\n=== {model.name}, {cell.config.data.name}")
        typer.echo(printable(describe_pairs(tokenizer, settings, pairs, whole=whole)))
