"""Two lm-eval tasks of our own over the synthetic language: real evaluations that need no hub.

rcray_choice  which of eight renderings of a phrase is right; the other seven have one wrong word each. Scored by
              likelihood, as ARC is.
rcray_cloze   the next word of a rendering begun by somebody else, drawn at temperature 1. Its expected score is the
              probability the model gives to right words, so it falls when the chosen answers lose likelihood.

Both are asked through the chat template, which is how the tiny models were warmed up. Their phrases are drawn from
a split of their own.
"""

import random
from collections.abc import Mapping
from typing import Any

from rcray.data import synthetic

VERSION = 1  # raised when a document or a setting below changes
DOCUMENTS = 256
CHOICES = 8
_SEED = 0


def choice_documents() -> list[dict[str, Any]]:
    """Phrase, eight renderings, and the index of the right one."""
    documents = []
    for i, (prompt, right) in enumerate(_phrases("benchmark-choice")):
        rng = random.Random(f"choice/{i}")
        words = right.split()
        wrong: set[str] = set()
        while len(wrong) < CHOICES - 1:
            spot = rng.randrange(len(words))
            wrong.add(" ".join([*words[:spot], synthetic.corrupted(words[spot], rng), *words[spot + 1 :]]))
        choices = sorted(wrong)  # sets have no order of their own
        rng.shuffle(choices)
        answer = rng.randrange(CHOICES)
        choices.insert(answer, right)
        documents.append({"question": prompt, "choices": choices, "answer": answer})
    return documents


def cloze_documents() -> list[dict[str, Any]]:
    """Phrase, the beginning of its rendering, and the word that comes next."""
    documents = []
    for i, (prompt, right) in enumerate(_phrases("benchmark-cloze")):
        words = right.split()
        spot = random.Random(f"cloze/{i}").randrange(1, len(words))
        documents.append({"question": prompt, "begun": " ".join(words[:spot]), "answer": words[spot]})
    return documents


def _phrases(split: str) -> list[tuple[str, str]]:
    pairs = synthetic.generate(DOCUMENTS, difficulty="medium", seed=_SEED, split=split)
    return [(prompt, right) for prompt, right, _ in pairs]


def _choice_data(**_: Any) -> Any:
    return _dataset(choice_documents())


def _cloze_data(**_: Any) -> Any:
    return _dataset(cloze_documents())


def _dataset(documents: list[dict[str, Any]]) -> Any:
    from datasets import Dataset

    return {"test": Dataset.from_list(documents)}


def version_key() -> str:
    """Changes with the tasks and with the language."""
    return f"{VERSION}.{synthetic.VERSION}"


def task_config(name: str) -> dict[str, Any]:
    """The task in lm-eval's own terms."""
    return {**_SHARED, **_TASKS[name], "task": name, "metadata": {"version": version_key()}}


_SHARED: Mapping[str, Any] = {"test_split": "test", "doc_to_text": "{{question}}", "num_fewshot": 0}
_TASKS: Mapping[str, Mapping[str, Any]] = {
    "rcray_choice": {
        "custom_dataset": _choice_data,
        "output_type": "multiple_choice",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "answer",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    },
    "rcray_cloze": {
        "custom_dataset": _cloze_data,
        "output_type": "generate_until",
        "doc_to_target": "{{answer}}",
        "gen_prefix": "{{begun}}",
        # top_k off: transformers would cut the distribution at 50 words by default
        "generation_kwargs": {
            "until": ["<|end|>"],
            "do_sample": True,
            "temperature": 1.0,
            "top_k": 0,
            "top_p": 1.0,
            "max_gen_toks": 4,
        },
        "filter_list": [
            {
                "name": "first-word",
                "filter": [{"function": "regex", "regex_pattern": r"^\s*(\S+)"}, {"function": "take_first"}],
            }
        ],
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    },
}
