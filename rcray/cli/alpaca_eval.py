"""The `rcray alpaca-eval` commands: parsing only."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from pydantic import ValidationError

from rcray.cli.shared import SetOption, StoreOption, announce, cells_of
from rcray.config.alpaca_eval import AlpacaEvalConfig, GenerationConfig, JudgeConfig
from rcray.config.load import explain
from rcray.extras import require
from rcray.store import DEFAULT_STORE, Store

app = typer.Typer(
    help="AlpacaEval: generate answers, have a judge compare them, and compute win rates.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

CandidateArgument = Annotated[Path, typer.Argument(help="outputs of the model judged", show_default=False)]
ReferenceArgument = Annotated[Path, typer.Argument(help="outputs it is compared with", show_default=False)]
ModelOption = Annotated[str, typer.Option("--judge-model")]
UrlOption = Annotated[str, typer.Option(help="OpenAI-compatible endpoint, up to /v1")]
ModeOption = Annotated[
    Literal["both_orders", "alpaca_eval_2", "published"],
    typer.Option(help="both orders; one in random order; as the paper's authors ran it"),
]
VoteOption = Annotated[Literal["logprobs", "text"] | None, typer.Option(help="how a verdict is read; as the mode says")]
CacheOption = Annotated[Path, typer.Option(help="judgements on disk; a job that was ended goes on from it")]
DifficultyOption = Annotated[
    Path | None, typer.Option(help="JSON from instruction to difficulty, for the length-controlled model")
]
_CACHE = Path("judgements.jsonl")
_JUDGE = JudgeConfig()


@app.command("generate")
def generate_(
    run: Annotated[str, typer.Option("--run", metavar="DIR_OR_ID", help="a finished run")],
    instructions: Annotated[Path, typer.Option(help="JSON or JSONL with a field `instruction`")],
    out: Annotated[Path, typer.Option(help="outputs file to write")],
    store: StoreOption = DEFAULT_STORE,
    max_new_tokens: Annotated[int, typer.Option(min=1)] = GenerationConfig().max_new_tokens,
    temperature: Annotated[float, typer.Option(min=0, help="0: greedy")] = 0.0,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    batch_size: Annotated[int, typer.Option(min=1)] = GenerationConfig().batch_size,
    limit: Annotated[int | None, typer.Option(min=1, help="instructions, for a first look")] = None,
) -> None:
    """Write a run's answers to a file of instructions."""
    generation = {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed, "batch_size": batch_size}
    settings = _valid(
        AlpacaEvalConfig,
        {"instructions": str(instructions), "limit": limit, "generation": generation},
        "rcray alpaca-eval",
    )
    require("sweep", "eval")
    opened = Store.open(store)
    announce(f"answers of {run} to {instructions}")
    from rcray.evaluate.alpaca_eval.command import answers_of
    from rcray.evaluate.alpaca_eval.outputs import read_instructions, read_outputs, write_outputs
    from rcray.evaluate.command import find_run

    read_instructions(instructions)
    target = find_run(run, opened)
    outputs = read_outputs(answers_of(target.config, target.store, settings))
    write_outputs(out, outputs)
    typer.echo(f"{len(outputs)} answers of {target.label} in {out}")


@app.command("judge")
def judge_(
    candidate: CandidateArgument,
    reference: ReferenceArgument,
    judge_model: ModelOption = _JUDGE.model,
    base_url: UrlOption = _JUDGE.base_url,
    key_env: Annotated[
        str, typer.Option(help="environment variable that holds the key; empty: no key")
    ] = _JUDGE.key_env or "",
    mode: ModeOption = "both_orders",
    vote: VoteOption = None,
    concurrency: Annotated[int, typer.Option(min=1, help="calls at once")] = _JUDGE.concurrency,
    timeout: Annotated[float, typer.Option(min=0.1, help="seconds a call may take")] = _JUDGE.timeout,
    retries: Annotated[int, typer.Option(min=0)] = _JUDGE.retries,
    price_in: Annotated[float | None, typer.Option(min=0, help="per million tokens read")] = None,
    price_out: Annotated[float | None, typer.Option(min=0, help="per million tokens written")] = None,
    max_cost: Annotated[float | None, typer.Option(min=0, help="refuse to start above this estimate")] = None,
    cache: CacheOption = _CACHE,
    difficulty: DifficultyOption = None,
    only_estimate: Annotated[bool, typer.Option("--estimate", help="say what it would cost; call nothing")] = False,
) -> None:
    """Have a judge compare two outputs files; prints the cost estimate first, then both win rates."""
    given = {
        **{"model": judge_model, "base_url": base_url, "key_env": key_env or None, "mode": mode, "vote": vote},
        **{"concurrency": concurrency, "timeout": timeout, "retries": retries},
        **{"price_in": price_in, "price_out": price_out, "max_cost": max_cost},
    }
    config = _valid(JudgeConfig, given, "rcray alpaca-eval judge")
    require("sweep", "eval")
    from rcray.evaluate.alpaca_eval.command import Comparison
    from rcray.evaluate.alpaca_eval.judge import judging_cost

    comparison = Comparison(candidate, reference, reference.stem)
    if only_estimate:
        typer.echo(judging_cost(comparison.matches(), config, cache).describe())
        return
    _print_rows(comparison, config, cache, difficulty, spend=True)


@app.command()
def winrate(
    candidate: CandidateArgument,
    reference: ReferenceArgument,
    judge_model: ModelOption = _JUDGE.model,
    base_url: UrlOption = _JUDGE.base_url,
    mode: ModeOption = "both_orders",
    vote: VoteOption = None,
    cache: CacheOption = _CACHE,
    difficulty: DifficultyOption = None,
) -> None:
    """Compute win rates again from the judgements on disk; calls nothing."""
    given = {"model": judge_model, "base_url": base_url, "mode": mode, "vote": vote, "key_env": None}
    config = _valid(JudgeConfig, given, "rcray alpaca-eval winrate")
    require("sweep", "eval")
    from rcray.evaluate.alpaca_eval.command import Comparison

    _print_rows(Comparison(candidate, reference, reference.stem), config, cache, difficulty, spend=False)


@app.command("sweep")
def sweep_(
    file: Annotated[Path, typer.Argument(help="experiment file with `evaluation.alpaca_eval`", show_default=False)],
    store: StoreOption = DEFAULT_STORE,
    set_: SetOption = None,
    only_estimate: Annotated[bool, typer.Option("--estimate", help="generate; say what judging would cost")] = False,
) -> None:
    """Compare every cell with RC to the same cell without, or every cell to a file of outputs."""
    experiment, cells = cells_of(file, set_)
    require("sweep", "eval")
    announce(f"answers of {len(cells)} cells of {experiment.name}")
    from rcray.evaluate.alpaca_eval.command import compare_sweep

    compare_sweep(cells, Store.open(store), experiment.evaluation, typer.echo, only_estimate=only_estimate)


def _print_rows(comparison: Any, config: JudgeConfig, cache: Path, difficulty: Path | None, *, spend: bool) -> None:
    from rcray.evaluate.alpaca_eval.command import judge_answers, read_difficulty

    known = None
    if difficulty is not None:
        known = read_difficulty(difficulty, [match.instruction for match in comparison.matches()])
    for row in judge_answers(comparison, config, cache, typer.echo, spend=spend, difficulty=known):
        typer.echo(f"{row.describe()}, 95% interval {row.ci_low:.4f} to {row.ci_high:.4f}")
        typer.echo(f"  {row.note}")


def _valid(model: Any, given: dict[str, Any], where: str) -> Any:
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise explain(error, model, given, where) from None
