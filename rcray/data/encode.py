"""From text pairs to token ids: the prompt once, both answers as suffixes of it.

Prompt and prompt + answer are rendered with the tokenizer's chat template and the answer is the suffix: a lone
assistant turn would make some templates insert a system block into every scored answer. Everything dropped,
realigned or truncated is counted with its row. What the authors' code adds to a template (BOS, an empty system turn,
the header as part of the answer) and how it truncates are settings, which the preset `official` switches on.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jinja2 import TemplateError

from rcray.config.data import DataConfig
from rcray.data.dialogue import Pair, Skipped, Turn, as_turns, fault
from rcray.data.encoded import EncodedPair, EncodedPairs, EncodeReport
from rcray.data.pairs import refuse_bad
from rcray.errors import DataError

__all__ = [
    "EncodeReport", "EncodedPair", "EncodedPairs", "Rendering", "encode_stream", "render", "require_pairs",
    "truncated", "whole_pair",
]  # fmt: skip

#: Tokens of the prompt's text that an answer may merge with. A cut further back means that the template renders the
#: prompt itself differently once it is answered, and no suffix is the answer.
_MERGE_REACH = 8


def encode_stream(
    items: Iterable[Pair | Skipped], tokenizer: Any, config: DataConfig, report: EncodeReport
) -> Iterator[EncodedPair]:
    """Encodes pair by pair, up to `report.asked` of them; what is left out goes into the report."""
    rendering = Rendering.of(tokenizer, config)
    numbers: tuple[dict[int, int], dict[int, int]] = ({}, {})  # by the hash of its name, each row of either label
    for item in items:
        if report.kept == report.asked:
            return
        outcome = _encode(item, rendering, config, report) if isinstance(item, Pair) else item
        if isinstance(outcome, Skipped):
            if config.bad_rows == "fail":
                refuse_bad(outcome)
            report.note(outcome.kind, outcome.row, outcome.reason)
        else:
            report.kept += 1
            if isinstance(item, Pair) and item.rows is not None:
                w, l = (seen.setdefault(hash(row), len(seen)) for seen, row in zip(numbers, item.rows, strict=True))  # noqa: E741
                outcome = replace(outcome, behind=(w, l))
            yield outcome


def require_pairs(report: EncodeReport, where: str, least: int = 1) -> None:
    """Refuses a split with too few usable pairs, and says what became of the others."""
    if report.kept < least:
        count = "no usable pair is left" if report.kept == 0 else f"{report.kept} usable pairs, {least} are needed"
        raise DataError(
            f"{where}: {count}: {report.summary()}; {report.first_reason()}", fix="look at the rows named here"
        )


def render(tokenizer: Any, prompt: str | tuple[Turn, ...], answer: str | None = None, *, ask: bool = True) -> list[int]:
    """Token ids of a prompt, or of a prompt and its answer, through the chat template.

    A prompt without an answer ends with the template's invitation to answer, unless `ask` is off.
    """
    turns = [{"role": turn.role, "content": turn.content} for turn in as_turns(prompt)]
    if answer is not None:
        turns.append({"role": "assistant", "content": answer})
    invite = ask and answer is None
    return list(tokenizer.apply_chat_template(turns, add_generation_prompt=invite, tokenize=True, return_dict=False))


@dataclass(frozen=True)
class Rendering:
    """How dialogues become tokens: a tokenizer with its template, and what `data` asks to add to it."""

    tokenizer: Any
    bos: int | None = None  # put before what the template renders without one
    empty_system: bool = False
    score_header: bool = False

    @classmethod
    def of(cls, tokenizer: Any, config: DataConfig) -> "Rendering":
        """What a config asks for, as far as the tokenizer has it."""
        return cls(
            tokenizer,
            bos=tokenizer.bos_token_id if config.add_bos else None,
            empty_system=config.empty_system and _takes_system_turns(tokenizer),
            score_header=config.score_header,
        )

    def ids(self, prompt: tuple[Turn, ...], answer: str | None = None, *, ask: bool = True) -> list[int]:
        """Token ids of a prompt, or of a prompt and its answer."""
        if self.empty_system and not (prompt and prompt[0].role == "system"):
            prompt = (Turn("system", ""), *prompt)
        ids = render(self.tokenizer, prompt, answer, ask=ask)
        return [self.bos, *ids] if self.bos is not None and ids[:1] != [self.bos] else ids


def _takes_system_turns(tokenizer: Any) -> bool:
    try:
        render(tokenizer, (Turn("system", ""), Turn("user", "a")))
    except TemplateError:  # such as roles that must alternate, from the user on
        return False
    return True


def whole_pair(pair: Pair, rendering: Rendering, report: EncodeReport) -> EncodedPair | Skipped:
    """A pair before truncation: what is read, and what of it is scored."""
    if (wrong := fault(pair)) is not None:
        return wrong
    if pair.prompt_l is None:
        both = _rendered(pair.row, pair.prompt, (pair.chosen, pair.rejected), rendering, report)
        return both if isinstance(both, Skipped) else EncodedPair(pair.row, *both)
    wanted = _rendered(pair.row, pair.prompt, (pair.chosen,), rendering, report)
    if isinstance(wanted, Skipped):
        return wanted
    unwanted = _rendered(pair.row, pair.prompt_l, (pair.rejected,), rendering, report)
    if isinstance(unwanted, Skipped):
        return unwanted
    (prompt, chosen), (prompt_l, rejected) = wanted, unwanted
    return EncodedPair(pair.row, prompt, chosen, rejected, prompt_l)


def _rendered(
    row: str, turns: tuple[Turn, ...], answers: tuple[str, ...], rendering: Rendering, report: EncodeReport
) -> list[tuple[int, ...]] | Skipped:
    """A prompt and the answers to it, each the suffix of the dialogue that it ends."""
    try:
        prompt = rendering.ids(turns, ask=not rendering.score_header)
        full = [rendering.ids(turns, answer) for answer in answers]
    except TemplateError as error:  # such as roles that do not alternate
        return Skipped(row, "dropped by template", f"the chat template refuses it: {error}")
    cut = _common_prefix(prompt, *full)
    if cut < len(prompt):  # the template or a merge across the border changed the prompt's last tokens
        if cut < len(rendering.ids(turns, ask=False)) - _MERGE_REACH:
            reason = "the chat template renders the prompt differently once it is answered"
            return Skipped(row, "dropped by template", reason)
        report.note("realigned", row)
    return [tuple(full[0][:cut]), *(tuple(ids[cut:]) for ids in full)]


def truncated(pair: EncodedPair, config: DataConfig) -> EncodedPair:
    """A pair cut to the allowed length, where it is too long; answers to different prompts each by themselves."""
    if pair.prompt_l is None:
        return EncodedPair(pair.row, *_cut(config, pair.prompt, pair.chosen, pair.rejected))
    (prompt, chosen), (prompt_l, rejected) = (
        _cut(config, *row) for row in ((pair.prompt, pair.chosen), (pair.prompt_l, pair.rejected))
    )
    return EncodedPair(pair.row, prompt, chosen, rejected, prompt_l)


def _cut(config: DataConfig, prompt: tuple[int, ...], *answers: tuple[int, ...]) -> list[tuple[int, ...]]:
    longest = max(map(len, answers))
    if len(prompt) + longest <= config.max_length:
        return [prompt, *answers]
    prompt = prompt[-config.max_prompt_length :]  # the end of a prompt holds the question
    room = config.max_length - len(prompt)
    if config.answer_room == "fixed" and longest > room:
        room = config.max_length - config.max_prompt_length
    return [prompt, *(answer[:room] for answer in answers)]


def _encode(pair: Pair, rendering: Rendering, config: DataConfig, report: EncodeReport) -> EncodedPair | Skipped:
    whole = whole_pair(pair, rendering, report)
    if isinstance(whole, Skipped):
        return whole
    kept = truncated(whole, config)
    if kept != whole:
        if config.too_long == "drop":
            reason = f"more than max_length {config.max_length} tokens"
            return Skipped(pair.row, "dropped too long", reason, bad=False)
        report.note("truncated", pair.row)
    if not kept.prompt or not kept.chosen or not all(kept.rejected_row):
        return Skipped(pair.row, "dropped empty", "no token is left of the prompt or of an answer", bad=False)
    if kept.prompt_l is None and kept.chosen == kept.rejected:
        return Skipped(pair.row, "dropped equal", "both answers are the same tokens", bad=False)
    return kept


def _common_prefix(prompt: Sequence[int], *full: Sequence[int]) -> int:
    for i, token in enumerate(prompt):
        if any(len(ids) <= i or ids[i] != token for ids in full):
            return i
    return len(prompt)
