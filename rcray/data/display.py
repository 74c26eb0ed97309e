"""Pairs as a model reads them, as text: what is prompt, what is scored, what is special, what was cut off."""

import itertools
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from rcray.config import RunConfig
from rcray.config.data import DataConfig
from rcray.data.dialogue import Pair, Skipped
from rcray.data.encode import Rendering, truncated, whole_pair
from rcray.data.encoded import EncodeReport
from rcray.data.pairs import load_pairs

LEGEND = "⟦x⟧ a special token; ⏎ a line break; ✂ n: n tokens cut off here; … n …: n tokens not shown"
_ENDS = 24  # tokens shown at either end of a long part
_WIDTH = 118


def same_rows(config: RunConfig) -> tuple[Any, ...]:
    """What two runs have in common that read the same text through the same tokenizer."""
    model, rendering = config.model, ("add_bos", "empty_system", "score_header", "answer_room")
    return model.name, model.source, model.chat_template, config.data.model_dump_json(exclude=set(rendering))


def describe_pairs(tokenizer: Any, settings: Mapping[str, DataConfig], count: int, *, whole: bool = False) -> str:
    """The first `count` rows of the training split, once for each of the named settings, which read the same rows."""
    first = next(iter(settings.values()))
    rows = itertools.islice(load_pairs(first).train, count)
    return "\n".join(_describe(row, tokenizer, settings, whole) for row in rows)


def _describe(row: Pair | Skipped, tokenizer: Any, settings: Mapping[str, DataConfig], whole: bool) -> str:
    lines = [f"--- {row.row}"]
    for name, config in settings.items():
        rendering = Rendering.of(tokenizer, config)
        lines.append(f"{name}: {_additions(config, rendering)}")
        lines += _parts(row, rendering, config, whole) if isinstance(row, Pair) else [f"  {row.kind}: {row.reason}"]
    return "\n".join(lines)


def _additions(config: DataConfig, rendering: Rendering) -> str:
    added = {
        "add_bos": config.add_bos and ("" if rendering.bos is not None else " (this tokenizer has none)"),
        "empty_system": config.empty_system and ("" if rendering.empty_system else " (this template refuses it)"),
        "score_header": config.score_header and "",
    }
    asked = [f"{name}{remark}" for name, remark in added.items() if remark is not False]
    limits = f"max_length {config.max_length}, max_prompt_length {config.max_prompt_length}"
    return ", ".join([*(asked or ["as the template renders it"]), limits, f"answer_room {config.answer_room}"])


def _parts(row: Pair, rendering: Rendering, config: DataConfig, whole: bool) -> list[str]:
    report = EncodeReport()
    read = whole_pair(row, rendering, report)
    if isinstance(read, Skipped):
        return [f"  {read.kind}: {read.reason}"]
    kept = truncated(read, config)
    lines = []
    parts = ("prompt", "chosen", "rejected") if kept.prompt_l is None else ("prompt", "chosen", "prompt_l", "rejected")
    for part in parts:
        before, after = getattr(read, part), getattr(kept, part)
        cut = len(before) - len(after)
        size = f"{len(after)} of {len(before)} tokens" if cut else f"{len(after)} tokens"
        text = _shown(rendering.tokenizer, after, whole)
        if cut:  # a prompt keeps its end, an answer its beginning
            text = f"✂ {cut} {text}" if part.startswith("prompt") else f"{text} ✂ {cut}"
        scored = {"prompt": "prompt", "prompt_l": "prompt of the rejected"}.get(part, f"{part}, scored")
        lines.append(
            textwrap.fill(
                f"{scored}, {size}: {text}",
                _WIDTH,
                initial_indent="  ",
                subsequent_indent="      ",
                break_on_hyphens=False,
                drop_whitespace=True,
            )
        )
    if report.rows("realigned"):
        lines.append("  realigned: the prompt's last tokens merge with the answer, so the cut lies before them")
    return lines


def _shown(tokenizer: Any, ids: Sequence[int], whole: bool) -> str:
    if whole or len(ids) <= 2 * _ENDS:
        return visible_text(tokenizer, ids)
    hidden = len(ids) - 2 * _ENDS
    return f"{visible_text(tokenizer, ids[:_ENDS])} … {hidden} … {visible_text(tokenizer, ids[-_ENDS:])}"


def visible_text(tokenizer: Any, ids: Sequence[int]) -> str:
    """Token ids as text, special tokens in brackets, line breaks visible.

    Ordinary tokens are decoded together: one character may be spread over several of them.
    """
    added = {index for index, token in tokenizer.added_tokens_decoder.items() if token.special}
    special = added | set(tokenizer.all_special_ids)
    text = ""
    for is_special, run in itertools.groupby(ids, lambda index: index in special):
        if is_special:
            text += "".join(f"⟦{tokenizer.convert_ids_to_tokens(index)}⟧" for index in run)
        else:
            text += tokenizer.decode(list(run), clean_up_tokenization_spaces=False)
    return text.replace("\n", "⏎")
