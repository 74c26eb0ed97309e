"""From a raw row to a pair: prompt, chosen, rejected in columns, as message lists, or as transcripts.

Unpaired rows are one labelled answer each; data/unpaired.py makes pairs of them.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

from rcray.config.data import Columns, DataConfig
from rcray.config.datasets import RowFormat, source_of
from rcray.data.dialogue import ROLES, Answer, Item, Pair, Skipped, Turn, as_turns, fault
from rcray.data.rows import Row, Rows
from rcray.errors import DataError, did_you_mean

#: Raised when the same rows would be read as other pairs; part of the encoded cache's key.
READER_VERSION = 1

_SPEAKER = re.compile(r"\n\n(Human|Assistant):")
_SPEAKER_ROLES = {"Human": "user", "Assistant": "assistant"}


class RowFault(Exception):
    """Why a row gives no pair."""

    def __init__(self, kind: str, reason: str):
        super().__init__(reason)
        self.kind = kind


def read_pairs(rows: Rows, config: DataConfig) -> Iterator[Item | Skipped]:
    """Every row as a pair or a labelled answer, or as what is wrong with it; a table without the columns is refused."""
    columns = config.columns
    unpaired = config.format == "unpaired"
    required = [columns.completion, columns.label] if unpaired else [columns.chosen, columns.rejected]
    row_format = source_of(config.name).rows
    _check_columns(rows, required, columns)
    reader = READERS[row_format]
    for row in rows.read([*required, columns.prompt] if row_format == "columns" else required):
        if isinstance(row, Skipped):
            yield row
        else:
            yield _read_answer(row, columns) if unpaired else _read(row, columns, reader)


def _check_columns(rows: Rows, required: list[str], columns: Columns) -> None:
    known = rows.columns
    for name in required if known is not None else ():
        if name not in (known or ()):
            where = getattr(rows, "path", None) or getattr(rows, "title", "data.name")
            unpaired = name == columns.chosen and {columns.completion, columns.label} <= set(known or ())
            fix = "set data.format: unpaired for rows of one labelled answer" if unpaired else "set data.columns"
            raise DataError(f"{where}: no column {name!r}{did_you_mean(name, known or ())}", fix=fix)


def _read(row: Row, columns: Columns, reader: "Reader") -> Pair | Skipped:
    try:
        prompt, chosen, rejected = reader(row.values, columns)
    except RowFault as error:
        return Skipped(row.name, error.kind, str(error))
    pair = Pair(row.name, prompt, chosen, rejected)
    return fault(pair) or pair


def _read_answer(row: Row, columns: Columns) -> Answer | Skipped:
    try:
        completion = _value(row.values, columns.completion)
        if isinstance(completion, list):
            turns = _turns(completion, columns.completion)
            if len(turns) != 1:
                raise RowFault("dropped no answer", f"{columns.completion!r} is not one assistant turn")
            completion = _answer(turns)
        text = _text(completion, columns.completion)
        answer = Answer(row.name, _prompt(row.values, columns), text, _label(row.values, columns.label))
    except RowFault as error:
        return Skipped(row.name, error.kind, str(error))
    return fault(answer) or answer


def _label(values: dict[str, Any], name: str) -> bool:
    """True or false, as JSON, a 0 or a 1, or CSV write it."""
    value = _value(values, name)
    known = {"true": True, "1": True, "false": False, "0": False}
    word = str(value).lower()
    if isinstance(value, float) or word not in known:
        raise RowFault("dropped no label", f"{name!r} is neither true nor false: {str(value)[:40]!r}")
    return known[word]


#: Prompt, chosen answer, rejected answer.
Answers = tuple[tuple[Turn, ...], str, str]
Reader = Callable[[dict[str, Any], Columns], Answers]


def read_answer_columns(values: dict[str, Any], columns: Columns) -> Answers:
    """Prompt, chosen, rejected: text or message lists; the prompt may be the start that both lists share."""
    chosen, rejected = (_value(values, name) for name in (columns.chosen, columns.rejected))
    if isinstance(chosen, list) and isinstance(rejected, list):
        turns_w, turns_l = _turns(chosen, columns.chosen), _turns(rejected, columns.rejected)
        if len(turns_w) == len(turns_l) == 1:  # answers alone
            return _prompt(values, columns), _answer(turns_w), _answer(turns_l)
        prompt, chosen, rejected = shared_prompt(turns_w, turns_l)
        _check_prompt(values.get(columns.prompt), prompt, columns)
        return prompt, chosen, rejected
    return _prompt(values, columns), _text(chosen, columns.chosen), _text(rejected, columns.rejected)


def read_messages(values: dict[str, Any], columns: Columns) -> Answers:
    """The prompt is the messages before the last answer; the `prompt` column repeats their first."""
    sides = [_turns(_value(values, name), name) for name in ("chosen", "rejected")]
    return shared_prompt(*sides)


def read_transcripts(values: dict[str, Any], columns: Columns) -> Answers:
    """Two transcripts that share all but their last answer."""
    return shared_prompt(
        *(transcript_turns(_text(_value(values, name), name), name) for name in ("chosen", "rejected"))
    )


READERS: dict[RowFormat, Reader] = {
    "columns": read_answer_columns,
    "messages": read_messages,
    "transcripts": read_transcripts,
}


def transcript_turns(text: str, side: str) -> tuple[Turn, ...]:
    """Splits a transcript on its speakers; empty turns are left out."""
    before, *parts = _SPEAKER.split(text)
    if before.strip():
        raise RowFault("dropped no dialogue", f"{side} opens with text of no speaker")
    turns = (Turn(_SPEAKER_ROLES[who], what.strip()) for who, what in zip(parts[::2], parts[1::2], strict=True))
    return tuple(turn for turn in turns if turn.content)


def shared_prompt(chosen: tuple[Turn, ...], rejected: tuple[Turn, ...]) -> Answers:
    """Both dialogues end on an answer, to the same turns."""
    answers = _answer(chosen), _answer(rejected)
    prompt = chosen[:-1]
    if prompt != rejected[:-1]:
        raise RowFault("dropped other prompt", "the turns before the last answer are not the same on both sides")
    return _asks(prompt), *answers


def _answer(turns: tuple[Turn, ...]) -> str:
    if not turns or turns[-1].role != "assistant":
        raise RowFault("dropped no answer", "the dialogue does not end on an assistant turn")
    return turns[-1].content


def _asks(prompt: tuple[Turn, ...]) -> tuple[Turn, ...]:
    if not prompt or prompt[-1].role != "user":
        raise RowFault("dropped no dialogue", "no user turn stands before the answer")
    return prompt


def _prompt(values: dict[str, Any], columns: Columns) -> tuple[Turn, ...]:
    value = _value(values, columns.prompt)
    if isinstance(value, list):
        return _asks(_turns(value, columns.prompt))
    return as_turns(_text(value, columns.prompt))


def _check_prompt(value: Any, prompt: tuple[Turn, ...], columns: Columns) -> None:
    """A prompt column beside whole dialogues must say what they say."""
    if value is None:
        return
    if isinstance(value, str):
        agrees = any(turn.content == value for turn in prompt)
    else:
        agrees = isinstance(value, list) and _turns(value, columns.prompt) == prompt
    if not agrees:
        raise RowFault("dropped other prompt", f"{columns.prompt!r} is not the prompt that both dialogues share")


def _value(values: dict[str, Any], name: str) -> Any:
    if name not in values:
        unpaired = {"completion", "label"} <= set(values)
        hint = "; data.format: unpaired reads rows of one labelled answer" if unpaired else ""
        names = ", ".join(map(str, values))
        raise RowFault("dropped missing column", f"no column {name!r}; its columns: {names}{hint}")
    if values[name] is None:
        raise RowFault("dropped null", f"{name!r} is null")
    return values[name]


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise RowFault("dropped not text", f"{name!r} is neither text nor messages like the other side: {_kind(value)}")
    return value


def _turns(value: Any, name: str) -> tuple[Turn, ...]:
    if not isinstance(value, list):
        raise RowFault("dropped not text", f"{name!r} is not a list of messages: {_kind(value)}")
    return tuple(_turn(message, name) for message in value)


def _turn(message: Any, name: str) -> Turn:
    if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
        raise RowFault("dropped not text", f"{name!r} holds a message without role and content")
    role, content = message["role"], message["content"]
    if role not in ROLES:
        raise RowFault("dropped unknown role", f"{name!r} has the role {role!r}{did_you_mean(str(role), ROLES)}")
    if content is None:
        raise RowFault("dropped null", f"{name!r} has a message whose content is null")
    if not isinstance(content, str):
        raise RowFault("dropped not text", f"{name!r} has a message whose content is a {type(content).__name__}")
    return Turn(role, content)


def _kind(value: Any) -> str:
    return f"a {type(value).__name__}"
