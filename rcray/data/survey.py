"""How many pairs local data has and how long they are, without torch, a download or a pass of the real encoder.

Rows are counted; tokens are counted on some of them, spread over the file, with the model's own tokenizer.json where
the model is a directory, else by a rule of thumb. What a chat template adds is taken as a number per turn.
"""

import json
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from rcray.config.data import DataConfig
from rcray.config.datasets import source_of
from rcray.config.model import ModelConfig
from rcray.data.dialogue import Answer, Item, Skipped
from rcray.data.pairs import held_out_rows
from rcray.data.readers import read_pairs
from rcray.data.sources import find_local, open_rows
from rcray.errors import RcrayError

SAMPLE = 400  # pairs whose tokens are counted
CHARACTERS_PER_TOKEN = 4.0  # of English, where no tokenizer is at hand
TOKENIZER = "tokenizer.json"  # of a model's directory
TEMPLATE_TOKENS = 12  # around a prompt and its answer, beside what the template itself says


@dataclass(frozen=True)
class Survey:
    """The size of local data as a run would see it."""

    rows: int  # all there are
    train: int  # usable pairs to train on, as `train_pairs` and `too_long` leave them
    held_out: int
    tokens: float  # of a prompt with one answer, on average
    packed: float  # of a prompt with both answers
    longest: int  # of a prompt with one answer
    typical: int  # nine in ten prompts with their longer answer are no longer than this
    counted: bool  # by the model's tokenizer; else by a rule of thumb


def survey(data: DataConfig, model: ModelConfig) -> Survey | None:
    """The size of a local file or directory; None for what only a download, or a generator, can tell."""
    kind = source_of(data.name).name
    if kind not in ("file", "directory") and not data.path:
        return None
    return _survey(data.model_dump_json(), model.origin, model.chat_template or "")


@lru_cache(maxsize=64)
def _survey(settings: str, origin: str, template: str) -> Survey | None:
    data = DataConfig.model_validate_json(settings)
    if find_local(data.path or data.name) is None:
        return None
    try:
        rows = open_rows(data, data.split)
        count = rows.count()
        stride = max(1, count // SAMPLE)
        read = enumerate(read_pairs(rows, data))
        pairs = [item for i, item in read if i % stride == 0 and not isinstance(item, Skipped)]
        held_out = data.eval_pairs if data.eval_split else held_out_size(data, count)
        left = count if data.eval_split else count - held_out * data.rows_per_pair
        labels = [item.label for item in pairs if isinstance(item, Answer)]
        if labels:  # as many pairs as the more frequent label has rows
            left = left * max(sum(labels), len(labels) - sum(labels)) // len(labels)
        left = max(1, left - len(data.exclude_rows or ()))  # some of them may be held out
    except RcrayError:  # the run, or `init`, says what is wrong
        return None
    if not pairs:
        return None
    counter = _Counter(Path(origin), template)
    sizes = [counter.sizes(pair) for pair in pairs]
    whole = [prompt + max(chosen, rejected) for prompt, chosen, rejected in sizes]
    if data.too_long == "drop":
        sizes = [size for size, tokens in zip(sizes, whole, strict=True) if tokens <= data.max_length] or sizes
        left = left * len(sizes) // len(whole)
    most = data.max_length
    cut = [(p, min(w, max(1, most - p)), min(l, max(1, most - p))) for p, w, l in sizes]  # noqa: E741
    return Survey(
        rows=count,
        train=left if data.train_pairs is None else min(left, data.train_pairs),
        held_out=held_out,
        tokens=sum(2 * p + w + l for p, w, l in cut) / (2 * len(cut)),  # noqa: E741
        packed=sum(p + w + l for p, w, l in cut) / len(cut),  # noqa: E741
        longest=min(most, max(p + max(w, l) for p, w, l in cut)),  # noqa: E741
        typical=sorted(whole)[int(0.9 * (len(whole) - 1))],
        counted=counter.tokenizer is not None,
    )


def held_out_size(data: DataConfig, rows: int) -> int:
    """How many pairs are held out of a source without a split for it: what is asked, up to a tenth."""
    return held_out_rows(data, rows) // data.rows_per_pair


class _Counter:
    """Counts tokens of text, by the model's tokenizer where it lies here."""

    def __init__(self, directory: Path, template: str):
        self.tokenizer: Any = None
        file = directory / TOKENIZER
        if file.is_file():
            # Exception: the library has no type of its own. The run says what is wrong with the file, and `require`
            # what is not installed; here a rule of thumb will do.
            with suppress(Exception):
                from tokenizers import Tokenizer

                self.tokenizer = Tokenizer.from_file(str(file))
                self.tokenizer.no_truncation()
        said = template or _template_of(directory)
        self.around = TEMPLATE_TOKENS + self.count(_default_system(said))

    def count(self, text: str) -> int:
        if self.tokenizer is None:
            return round(len(text) / CHARACTERS_PER_TOKEN)
        return len(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def sizes(self, item: Item) -> tuple[int, int, int]:
        """Tokens of a prompt and its two answers; of a labelled answer as if another like it stood beside it."""
        prompt = sum(self.count(turn.content) + TEMPLATE_TOKENS // 2 for turn in item.prompt) + self.around
        answers = [item.completion] * 2 if isinstance(item, Answer) else [item.chosen, item.rejected]
        chosen, rejected = (self.count(answer) + 2 for answer in answers)
        return prompt, chosen, rejected


def _template_of(directory: Path) -> str:
    try:
        return (directory / "chat_template.jinja").read_text(encoding="utf-8")
    except OSError:
        pass
    try:
        return str(json.loads((directory / "tokenizer_config.json").read_text()).get("chat_template") or "")
    except (OSError, ValueError):
        return ""


def _default_system(template: str) -> str:
    """The sentence that some templates put before every dialogue."""
    start = template.find("You are")
    return "" if start < 0 else template[start:].partition("<")[0].partition("'")[0][:400]
