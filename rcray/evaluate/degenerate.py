"""Models whose benchmark numbers mean nothing: found from their logits and their answers, never scored.

A model whose logits are NaN still gets 22.70 on ARC: every comparison is false and the first choice wins. So does any
model that no longer reads its input. Both look like a weak model in a table.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

#: Fewer answers say nothing: three of a kind are chance.
LEAST_ANSWERS = 10
#: Share of empty generations from which a score is about silence.
EMPTY_SHARE = 0.95
_PROBES = ("The quick brown fox jumps over the lazy dog", "0 1 2 3 4 5 6 7 8 9 render filu tilu")


@dataclass(frozen=True)
class Answers:
    """What is wrong with the answers to one task, if anything; `constant` may be a weakness rather than a collapse."""

    fatal: str | None = None
    constant: str | None = None


def model_fault(model: Any, tokenizer: Any) -> str | None:
    """Non-finite logits, or the same logits whatever the input."""
    import torch

    from rcray.models.capabilities import capabilities_of

    last = []
    with torch.no_grad(), capabilities_of(model).precision():
        for text in _PROBES:
            ids = torch.tensor([tokenizer.encode(text)], device=model.device)
            logits = model(input_ids=ids, use_cache=False).logits[0].float()
            bad = int((~torch.isfinite(logits)).sum())
            if bad:
                return f"non-finite logits: {bad} of {logits.numel()} on a short text"
            last.append(logits[-1])
    if torch.equal(last[0], last[1]):
        return "the same logits whatever the input"
    return None


def benchmark_fault(samples: Mapping[str, Sequence[Mapping[str, Any]]]) -> tuple[str | None, str | None]:
    """(reason, note) for one benchmark from the samples of its tasks.

    One subtask answered with one letter is noted: weak models do that. All of them is a collapse.
    """
    by_task = {name: inspect_answers(rows) for name, rows in samples.items()}
    for name, answers in by_task.items():
        if answers.fatal:
            return (answers.fatal if len(by_task) == 1 else f"{name}: {answers.fatal}"), None
    constant = [name for name, answers in by_task.items() if answers.constant]
    if constant and len(constant) == len(by_task):
        reason = by_task[constant[0]].constant
        return (reason if len(by_task) == 1 else f"in every subtask; {constant[0]}: {reason}"), None
    return None, (f"one answer throughout in {', '.join(constant)}" if constant else None)


def inspect_answers(rows: Sequence[Mapping[str, Any]]) -> Answers:
    """Looks at the raw answers to one task, once per document."""
    kept = [row for row in rows if row["filter"] == rows[0]["filter"]] if rows else []
    texts, choices, golds, bad = [], [], set(), 0
    for row in kept:
        first = [answers[0] for answers in row["resps"]]  # one per request; repeats of it are the same question
        numbers = [value[0] if isinstance(value, tuple | list) else value for value in first]
        if all(isinstance(value, str) for value in numbers):
            texts.append(str(numbers[0]).strip())
        else:
            bad += not all(math.isfinite(float(value)) for value in numbers)
            if len(numbers) > 1:
                choices.append(int(np.argmax([float(value) for value in numbers])))
        golds.add(str(row["target"]))
    if bad:
        return Answers(fatal=f"non-finite log-likelihoods in {bad} of {len(kept)} documents")
    empty = sum(not text for text in texts)
    if texts and len(texts) >= LEAST_ANSWERS and empty >= EMPTY_SHARE * len(texts):
        return Answers(constant=f"{empty} of {len(texts)} generations are empty")
    if len(kept) < LEAST_ANSWERS or len(golds) < 2:  # too few, or constant is right
        return Answers()
    if choices and len(set(choices)) == 1:
        which = "the first choice" if choices[0] == 0 else f"choice {choices[0] + 1}"
        return Answers(constant=f"all {len(choices)} answers are {which}")
    if texts and len(set(texts)) == 1:
        return Answers(constant=f"all {len(texts)} generations are {texts[0][:40]!r}")
    return Answers()
