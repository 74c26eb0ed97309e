"""From text pairs to token ids: the prompt once, both answers as suffixes of it.

Prompt and prompt + answer are rendered with the tokenizer's chat template and the answer is the suffix: a lone
assistant turn would make some templates insert a system block into every scored answer. Everything dropped,
realigned or truncated is counted with its row.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from jinja2 import TemplateError

from rcray.config.data import DataConfig
from rcray.data.dialogue import Pair, Skipped, Turn, as_turns, fault
from rcray.data.encoded import EncodedPair, EncodedPairs, EncodeReport
from rcray.data.pairs import refuse_bad
from rcray.errors import DataError

__all__ = ["EncodeReport", "EncodedPair", "EncodedPairs", "encode_pairs", "encode_stream", "render", "require"]

#: Tokens of the prompt's text that an answer may merge with. A cut further back means that the template renders the
#: prompt itself differently once it is answered, and no suffix is the answer.
_MERGE_REACH = 8


def encode_pairs(pairs: Iterable[Pair | Skipped], tokenizer: Any, config: DataConfig) -> EncodedPairs:
    """Encodes every usable pair in memory; raises if none is left."""
    report = EncodeReport()
    encoded = tuple(encode_stream(pairs, tokenizer, config, report))
    require(report, "data")
    return EncodedPairs(encoded, report)


def encode_stream(
    items: Iterable[Pair | Skipped], tokenizer: Any, config: DataConfig, report: EncodeReport
) -> Iterator[EncodedPair]:
    """Encodes pair by pair, up to `report.asked` of them; what is left out goes into the report."""
    for item in items:
        if report.kept == report.asked:
            return
        outcome = _encode(item, tokenizer, config, report) if isinstance(item, Pair) else item
        if isinstance(outcome, Skipped):
            if config.bad_rows == "fail":
                refuse_bad(outcome)
            report.note(outcome.kind, outcome.row, outcome.reason)
        else:
            report.kept += 1
            yield outcome


def require(report: EncodeReport, where: str, least: int = 1) -> None:
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


def _encode(pair: Pair, tokenizer: Any, config: DataConfig, report: EncodeReport) -> EncodedPair | Skipped:
    if (wrong := fault(pair)) is not None:
        return wrong
    try:
        prompt = render(tokenizer, pair.prompt)
        full_w, full_l = render(tokenizer, pair.prompt, pair.chosen), render(tokenizer, pair.prompt, pair.rejected)
    except TemplateError as error:  # such as roles that do not alternate
        return Skipped(pair.row, "dropped by template", f"the chat template refuses it: {error}")
    cut = _common_prefix(prompt, full_w, full_l)
    if cut < len(prompt):  # the template or a merge across the border changed the prompt's last tokens
        if cut < len(render(tokenizer, pair.prompt, ask=False)) - _MERGE_REACH:
            reason = "the chat template renders the prompt differently once it is answered"
            return Skipped(pair.row, "dropped by template", reason)
        report.note("realigned", pair.row)
    prompt, chosen, rejected = full_w[:cut], full_w[cut:], full_l[cut:]
    if len(prompt) + max(len(chosen), len(rejected)) > config.max_length:
        if config.too_long == "drop":
            reason = f"more than max_length {config.max_length} tokens"
            return Skipped(pair.row, "dropped too long", reason, bad=False)
        report.note("truncated", pair.row)
        prompt = prompt[-config.max_prompt_length :]  # the end of a prompt holds the question
        room = config.max_length - len(prompt)
        chosen, rejected = chosen[:room], rejected[:room]
    if not prompt or not chosen or not rejected:
        return Skipped(pair.row, "dropped empty", "no token is left of the prompt or of an answer", bad=False)
    if chosen == rejected:
        return Skipped(pair.row, "dropped equal", "both answers are the same tokens", bad=False)
    return EncodedPair(pair.row, tuple(prompt), tuple(chosen), tuple(rejected))


def _common_prefix(prompt: Sequence[int], *full: Sequence[int]) -> int:
    for i, token in enumerate(prompt):
        if any(len(ids) <= i or ids[i] != token for ids in full):
            return i
    return len(prompt)
