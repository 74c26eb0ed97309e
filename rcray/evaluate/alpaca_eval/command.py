"""`rcray alpaca-eval`: answers of runs, two files of answers compared, and a whole sweep with RC against without."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rcray.config import RunConfig, content_key, run_id
from rcray.config.alpaca_eval import AlpacaEvalConfig, JudgeConfig
from rcray.config.benchmarks import ALPACA_EVAL
from rcray.config.evaluation import EvaluationConfig
from rcray.errors import ConfigError, DataError, RcrayError
from rcray.evaluate.alpaca_eval.generate import generate_answers
from rcray.evaluate.alpaca_eval.judge import Cache, asks, judge, judging_cost
from rcray.evaluate.alpaca_eval.outputs import Match, match, read_instructions, read_outputs, write_outputs
from rcray.evaluate.alpaca_eval.winrate import annotations, win_rate_rows
from rcray.evaluate.stage import keep_rows
from rcray.files import read_json, write_json
from rcray.models.chain import read_chain
from rcray.records.evaluation import MetricRow
from rcray.store import Store
from rcray.sweep.grid import Cell
from rcray.train.launch import is_trained

Say = Callable[[str], None]
_FOLDER = "alpaca-eval"  # of answers in the cache, of verdicts in the store
GENERATION_VERSION = 1  # raised when the same settings would give other answers


def answers_of(config: RunConfig, store: Store, settings: AlpacaEvalConfig, gpus: float | None = None) -> Path:
    """The outputs file of a finished run; written once per (weights, instructions, settings).

    `gpus`: what the evaluation asks for, where it is not what the run had.
    """
    run = store.run(run_id(config))
    final = run.final
    instructions = read_instructions(Path(settings.instructions), settings.limit)
    asked = hashlib.sha256("\0".join(instructions).encode()).hexdigest()
    exclude = None if settings.generation.temperature else {"batch_size", "seed"}  # they decide only what is drawn
    how = settings.generation.model_dump(mode="json", exclude=exclude)
    key = content_key([read_chain(final)["key"], asked, how, GENERATION_VERSION], 24)
    path = store.cache / _FOLDER / f"{key}.json"
    if not path.is_file():
        from rcray.models.capabilities import use_precision
        from rcray.models.device import evaluated_on
        from rcray.models.precision import Precision
        from rcray.models.trained import load_trained

        device = evaluated_on(config.execution.gpus_per_worker, gpus)
        loaded = load_trained(final, store.cache, device=device)
        precision = Precision.of(config, device, run.read_status().device)
        use_precision(loaded.model, precision)
        name = f"{config.label} [{run_id(config)}]"
        with precision():
            answers = generate_answers(
                loaded.model, loaded.tokenizer, instructions, settings.generation, generator=name
            )
        write_outputs(path, answers)
    return path


def _answers_on_ray(config: RunConfig, store: Store, settings: EvaluationConfig) -> Path:
    assert settings.alpaca_eval is not None
    return answers_of(config, store, settings.alpaca_eval, settings.gpus)


@dataclass(frozen=True)
class Comparison:
    """Two files of answers to be compared, and what the opponent is called."""

    candidate: Path
    reference: Path
    opponent: str

    def matches(self) -> list[Match]:
        """The answers, paired by instruction."""
        return match(read_outputs(self.candidate), read_outputs(self.reference))


def judge_answers(
    comparison: Comparison,
    config: JudgeConfig,
    cache: Path,
    say: Say,
    *,
    spend: bool = True,
    difficulty: Sequence[float] | None = None,
) -> list[MetricRow]:
    """Says what it will cost, judges, and returns both win rates; `spend=False` uses only what is on disk."""
    matches = comparison.matches()
    expected = judging_cost(matches, config, cache)
    say(f"judge {config.model}, mode {config.mode}, {len(matches)} instructions: {expected.describe()}")
    if not spend and expected.calls:
        known = Cache(cache).read()
        missing = sum(ask.key not in known for ask in asks(matches, config))
        raise DataError(
            f"{cache}: {missing} judgements are missing", fix="run `rcray alpaca-eval judge` with these settings"
        )
    step = max(1, expected.calls // 10)

    def progress(done: int, total: int) -> None:
        if done % step == 0 or done == total:
            say(f"  {done}/{total} judged")

    judgements = judge(matches, config, cache, on_progress=progress)
    annotated = annotations(matches, judgements, config.judging, difficulty)
    rows = win_rate_rows(annotated, comparison.opponent, config.model, config.mode)
    result = {"rows": [row.content() for row in rows], "judgements": [asdict(each) for each in judgements]}
    write_json(comparison.candidate.with_suffix(f".{_short(comparison, config)}.judged.json"), result)
    return rows


def _short(comparison: Comparison, config: JudgeConfig) -> str:
    return content_key([comparison.opponent, config.model, config.mode, config.judging.vote], 8)


def read_difficulty(path: Path, instructions: Sequence[str]) -> list[float]:
    """Instruction difficulties: a JSON object from instruction to number."""
    values = read_json(path)
    if not isinstance(values, dict):
        raise DataError(f"{path}: expected a JSON object from instruction to difficulty")
    missing = [text for text in instructions if not isinstance(values.get(text), int | float)]
    if missing:
        raise DataError(f"{path}: no difficulty for {len(missing)} instructions, the first: {missing[0][:60]!r}")
    return [float(values[text]) for text in instructions]


# -- a sweep


@dataclass(frozen=True)
class Pairing:
    """A run, and whom it is compared with: the same run without RC, or a file."""

    cell: Cell
    opponent: RunConfig | None


def pairings(cells: Sequence[Cell], store: Store, settings: AlpacaEvalConfig) -> list[Pairing]:
    """Every finished cell against the reference file; without one, every cell with RC against its twin without."""
    if settings.reference is not None:
        pairs = [Pairing(cell, None) for cell in cells]
    else:
        pairs = [Pairing(cell, cell.config.without_rc) for cell in cells if cell.config.calibration.enabled]
    if not pairs:
        raise ConfigError(
            "evaluation.alpaca_eval: no cell has calibration, so none has a twin to compare with",
            fix="give evaluation.alpaca_eval.reference, a file of outputs",
        )
    for pairing in pairs:
        for config in filter(None, (pairing.cell.config, pairing.opponent)):
            if not is_trained(store.run(run_id(config))):
                raise RcrayError(f"{config.label}: not finished", fix="run `rcray sweep` first")
    return pairs


def compare_sweep(
    cells: Sequence[Cell], store: Store, settings: EvaluationConfig, say: Say, *, only_estimate: bool
) -> None:
    """Generates on Ray, estimates, judges, and puts the win rates into the runs' evaluation files."""
    alpaca = settings.alpaca_eval
    if alpaca is None:
        raise ConfigError(
            "evaluation.alpaca_eval: is missing",
            fix="add `evaluation: {alpaca_eval: {instructions: alpaca_eval.json}}` to the experiment",
        )
    read_instructions(Path(alpaca.instructions), alpaca.limit)
    wanted = pairings(cells, store, alpaca)
    configs = {run_id(config): config for p in wanted for config in filter(None, (p.cell.config, p.opponent))}
    files = _generate_all(list(configs.values()), store, settings, say)
    cache = store.root / _FOLDER / "judgements.jsonl"
    for pairing in wanted:
        key = pairing.cell.run_id
        reference = (
            Path(alpaca.reference) if alpaca.reference else files[run_id(pairing.opponent or pairing.cell.config)]
        )
        opponent = pairing.opponent.label if pairing.opponent else Path(alpaca.reference or "").name
        comparison = Comparison(files[key], reference, opponent)
        say(f"{pairing.cell.label} against {opponent}")
        if only_estimate:
            say("  " + judging_cost(comparison.matches(), alpaca.judge, cache).describe())
            continue
        rows = judge_answers(comparison, alpaca.judge, cache, lambda line: say(f"  {line}"))
        keys = {ALPACA_EVAL: content_key(alpaca.model_dump(mode="json"), 24)}
        keep_rows(store.run(key), keys, {ALPACA_EVAL: rows})
        for row in rows:
            say(f"  {row.describe()}, 95% interval {row.ci_low:.4f} to {row.ci_high:.4f}")


def _generate_all(configs: Sequence[RunConfig], store: Store, settings: EvaluationConfig, say: Say) -> dict[str, Path]:
    from rcray.evaluate.remote import evaluate_many

    files: dict[str, Path] = {}
    failures: list[str] = []

    def done(config: RunConfig, result: Any) -> None:
        if isinstance(result, Path):
            files[run_id(config)] = result
            say(f"answers of {config.label}: {result}")
        else:
            failures.append(f"{config.label}: {result}")

    evaluate_many(configs, store, settings, done, _answers_on_ray)
    if failures:
        raise RcrayError("; ".join(failures))
    return files
