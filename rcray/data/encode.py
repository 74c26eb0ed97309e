"""From text pairs to token ids: the prompt once, both answers as suffixes of it.

Prompt and prompt + answer are rendered with the tokenizer's chat template and the answer is the suffix: a lone
assistant turn would make some templates insert a system block into every scored answer. Everything dropped,
realigned or truncated is counted with its row.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from rcray.config.data import DataConfig
from rcray.data.pairs import Pair
from rcray.errors import DataError


@dataclass(frozen=True)
class EncodedPair:
    """Token ids of one pair; `prompt` precedes both answers."""

    row: str
    prompt: tuple[int, ...]
    chosen: tuple[int, ...]
    rejected: tuple[int, ...]

    @property
    def tokens(self) -> int:
        """Tokens a plain forward of both answers reads."""
        return 2 * len(self.prompt) + len(self.chosen) + len(self.rejected)


@dataclass
class EncodeReport:
    """What happened to the rows; lists hold row names."""

    kept: int = 0
    dropped_empty: list[str] = field(default_factory=list)
    dropped_equal: list[str] = field(default_factory=list)
    realigned: list[str] = field(default_factory=list)
    truncated: list[str] = field(default_factory=list)

    def summary(self) -> str:
        """One line; row names of the first few of each kind."""
        parts = [f"{self.kept} pairs kept"]
        for name in ("dropped_empty", "dropped_equal", "realigned", "truncated"):
            rows = getattr(self, name)
            if rows:
                shown = ", ".join(rows[:3]) + (", …" if len(rows) > 3 else "")
                parts.append(f"{len(rows)} {name.replace('_', ' ')} ({shown})")
        return "; ".join(parts)


@dataclass(frozen=True)
class EncodedPairs:
    """An encoded split and the account of how it was made."""

    pairs: tuple[EncodedPair, ...]
    report: EncodeReport

    def fingerprint(self) -> str:
        """Hash of every token id: tokenizer, template, data and lengths all show in it."""
        digest = hashlib.sha256()
        for pair in self.pairs:
            digest.update(repr((pair.row, pair.prompt, pair.chosen, pair.rejected)).encode())
        return digest.hexdigest()


def encode_pairs(pairs: Iterable[Pair], tokenizer: Any, config: DataConfig) -> EncodedPairs:
    """Encodes every usable pair; raises if none is left."""
    report = EncodeReport()
    encoded = []
    for pair in pairs:
        ids = _encode(pair, tokenizer, config, report)
        if ids is not None:
            encoded.append(ids)
    report.kept = len(encoded)
    if not encoded:
        raise DataError(f"data: no usable pair is left: {report.summary()}", fix="look at the rows named here")
    return EncodedPairs(tuple(encoded), report)


def render(tokenizer: Any, prompt: str, answer: str | None = None) -> list[int]:
    """Token ids of a prompt, or of a prompt and its answer, through the chat template."""
    turns = [{"role": "user", "content": prompt}]
    if answer is not None:
        turns.append({"role": "assistant", "content": answer})
    ids = tokenizer.apply_chat_template(turns, add_generation_prompt=answer is None, tokenize=True, return_dict=False)
    return list(ids)


def _encode(pair: Pair, tokenizer: Any, config: DataConfig, report: EncodeReport) -> EncodedPair | None:
    if not pair.chosen.strip() or not pair.rejected.strip():
        report.dropped_empty.append(pair.row)  # a response of 0 tokens turns a mean log-probability into NaN
        return None
    if pair.chosen == pair.rejected:
        report.dropped_equal.append(pair.row)
        return None
    prompt = render(tokenizer, pair.prompt)
    full_w, full_l = render(tokenizer, pair.prompt, pair.chosen), render(tokenizer, pair.prompt, pair.rejected)
    cut = _common_prefix(prompt, full_w, full_l)
    if cut < len(prompt):  # the template or a merge across the border changed the prompt's last tokens
        report.realigned.append(pair.row)
    prompt, chosen, rejected = full_w[:cut], full_w[cut:], full_l[cut:]
    longest = max(len(chosen), len(rejected))
    if len(prompt) + longest > config.max_length:
        report.truncated.append(pair.row)
        prompt = prompt[-config.max_prompt_length :]  # the end of a prompt holds the question
        room = config.max_length - len(prompt)
        chosen, rejected = chosen[:room], rejected[:room]
    if not prompt or not chosen or not rejected:
        report.dropped_empty.append(pair.row)
        return None
    if chosen == rejected:  # equal once cut
        report.dropped_equal.append(pair.row)
        return None
    return EncodedPair(pair.row, tuple(prompt), tuple(chosen), tuple(rejected))


def _common_prefix(prompt: list[int], *full: list[int]) -> int:
    for i, token in enumerate(prompt):
        if any(len(ids) <= i or ids[i] != token for ids in full):
            return i
    return len(prompt)
