"""What a reader hands on: a pair of answers to one prompt, one labelled answer, or a row it leaves out and why."""

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

Role = Literal["system", "user", "assistant"]
ROLES: tuple[str, ...] = get_args(Role)

#: Characters of one pair's text. Real pairs stay far below; beyond it a row is a fault in the file, and tokenising it
#: only to cut it to `max_length` would take minutes.
MAX_ROW_CHARACTERS = 2_000_000


class Turn(NamedTuple):
    """One message of a dialogue."""

    role: str
    content: str


@dataclass(frozen=True)
class Pair:
    """One prompt with a chosen and a rejected answer; `row` names it in every message.

    A prompt given as plain text is one user turn. `rows` and `prompt_l`: the answers come from two rows of unpaired
    data, and the rejected one has a prompt of its own.
    """

    row: str
    prompt: tuple[Turn, ...]
    chosen: str
    rejected: str
    prompt_l: tuple[Turn, ...] | None = None
    rows: tuple[str, str] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "prompt", as_turns(self.prompt))


@dataclass(frozen=True)
class Answer:
    """One answer to one prompt, wanted or not: a row of unpaired data."""

    row: str
    prompt: tuple[Turn, ...]
    completion: str
    label: bool


Item = Pair | Answer


@dataclass(frozen=True)
class Skipped:
    """A row that gives no pair. `bad`: a fault of the row, which `bad_rows: fail` does not tolerate."""

    row: str
    kind: str
    reason: str
    bad: bool = True


def as_turns(prompt: str | tuple[Turn, ...]) -> tuple[Turn, ...]:
    """Plain text is what the user says."""
    return (Turn("user", prompt),) if isinstance(prompt, str) else tuple(prompt)


def fault(item: Item) -> Skipped | None:
    """What is wrong with a row before any tokenizer has seen it."""
    sides = ("completion",) if isinstance(item, Answer) else ("chosen", "rejected")
    for side in sides:
        if not getattr(item, side).strip():  # an answer of 0 tokens turns a mean log-probability into NaN
            named = "answer" if side == "completion" else f"{side} answer"
            return Skipped(item.row, "dropped empty", f"the {named} is empty")
    if isinstance(item, Pair) and item.rows is None and item.chosen == item.rejected:
        return Skipped(item.row, "dropped equal", "the chosen answer equals the rejected one")
    texts = [*(turn.content for turn in item.prompt), *(getattr(item, side) for side in sides)]
    size = sum(map(len, texts))
    if size > MAX_ROW_CHARACTERS:
        return Skipped(item.row, "dropped too long", f"{size:,} characters, and {MAX_ROW_CHARACTERS:,} are allowed")
    try:
        for text in texts:
            text.encode()
    except UnicodeEncodeError as error:  # lone surrogates: bytes that were no UTF-8, or a broken JSON escape
        return Skipped(item.row, "dropped unreadable", f"not valid UTF-8 at character {error.start}")
    return None
