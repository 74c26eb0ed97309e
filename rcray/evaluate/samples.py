"""Answers to held-out prompts by the model a run started from and by the trained one: greedy, and one seeded draw."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from rcray.config.alpaca_eval import GenerationConfig
from rcray.config.benchmarks import SAMPLES
from rcray.config.evaluation import EvaluationConfig
from rcray.data.encoded import EncodedPair
from rcray.evaluate.alpaca_eval.generate import continuations
from rcray.evaluate.degenerate_text import flags_of, repetition
from rcray.records.evaluation import MetricRow
from rcray.records.samples import Answer, Sample

_TEMPERATURES = (0.0, 1.0)  # of WAYS: greedy, and one draw
_SEED = 0  # of the drawn answer: both models draw with the same numbers


def sampled_pairs(pairs: Sequence[EncodedPair], count: int) -> list[EncodedPair]:
    """The first held-out pairs whose prompts differ."""
    return list({pair.prompt: pair for pair in reversed(pairs)}.values())[::-1][:count]


def answer_prompts(
    model: Any,
    tokenizer: Any,
    pairs: Sequence[EncodedPair],
    settings: EvaluationConfig,
    on_answers: Callable[[int], None] = lambda done: None,
) -> list[tuple[Answer, ...]]:
    """A model's answers to the prompts of these pairs, one for each of the ways; told how many there are so far."""
    ways = [
        GenerationConfig(max_new_tokens=settings.sample_tokens, temperature=temperature, top_p=1.0, seed=_SEED)
        for temperature in _TEMPERATURES
    ]
    prompts = [list(pair.prompt) for pair in pairs]
    by_way: list[list[list[int]]] = []
    for way in ways:
        before = len(by_way) * len(prompts)
        by_way.append(continuations(model, tokenizer, prompts, way, lambda done, n=before: on_answers(n + done)))  # type: ignore[misc]
    decode = _decoder(tokenizer)
    chosen = [decode(pair.chosen) for pair in pairs]
    return [
        tuple(_answer(ids, decode, chosen[i], settings.sample_tokens) for ids in way)
        for i, way in enumerate(zip(*by_way, strict=True))
    ]


def samples_of(
    tokenizer: Any,
    pairs: Sequence[EncodedPair],
    start: Sequence[tuple[Answer, ...]],
    trained: Sequence[tuple[Answer, ...]],
) -> tuple[Sample, ...]:
    """Both models' answers side by side."""
    decode = _decoder(tokenizer)
    return tuple(
        Sample(pair.row, decode(pair.prompt), decode(pair.chosen), before, after)
        for pair, before, after in zip(pairs, start, trained, strict=True)
    )


def sample_rows(samples: Sequence[Sample]) -> list[MetricRow]:
    """What the answers say in numbers: lengths, repetition and flagged answers, of both models."""
    rows = []
    for side in ("start", "trained"):
        answers = [answer for sample in samples for answer in getattr(sample, side)]
        for name, values in (
            ("tokens", [float(answer.tokens) for answer in answers]),
            ("repetition", [answer.repetition for answer in answers]),
            ("flagged", [float(bool(answer.flags)) for answer in answers]),
        ):
            error = float(np.std(values, ddof=1) / len(values) ** 0.5)
            rows.append(MetricRow(SAMPLES, f"{name}_{side}", float(np.mean(values)), error, len(values)))
    return rows


def _answer(ids: Sequence[int], decode: Callable[[Sequence[int]], str], chosen: str, limit: int) -> Answer:
    text = decode(ids)
    return Answer(text, len(ids), len(ids) < limit, round(repetition(ids), 4), flags_of(text, ids, chosen))


def _decoder(tokenizer: Any) -> Callable[[Sequence[int]], str]:
    return lambda ids: tokenizer.decode(list(ids), skip_special_tokens=True).strip()
