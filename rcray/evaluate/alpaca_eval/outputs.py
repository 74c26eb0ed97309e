"""Instructions and answers as files, in AlpacaEval's own layout: rows of `instruction`, `output`, `generator`."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rcray.errors import DataError
from rcray.files import write_json


@dataclass(frozen=True)
class Output:
    """One answer."""

    instruction: str
    output: str
    generator: str = ""


@dataclass(frozen=True)
class Match:
    """One instruction with the candidate's and the reference's answer."""

    instruction: str
    candidate: str
    reference: str


def read_instructions(path: Path, limit: int | None = None) -> list[str]:
    """The instructions of a JSON or JSONL file, in order; an `input` field is put below its instruction."""
    instructions = []
    for number, row in enumerate(_rows(path), 1):
        text = row.get("instruction")
        if not isinstance(text, str) or not text.strip():
            raise DataError(f"{path}: row {number}: `instruction` is missing or empty")
        more = str(row.get("input") or "").strip()
        instructions.append(f"{text}\n\n{more}" if more else text)
    if not instructions:
        raise DataError(f"{path}: holds no instructions")
    return instructions[:limit]


def read_outputs(path: Path) -> list[Output]:
    """The answers of a file; an empty answer is an answer."""
    outputs = []
    for number, row in enumerate(_rows(path), 1):
        if not isinstance(row.get("instruction"), str) or not isinstance(row.get("output"), str):
            raise DataError(f"{path}: row {number}: needs `instruction` and `output`, both text")
        outputs.append(Output(row["instruction"], row["output"], str(row.get("generator", ""))))
    if not outputs:
        raise DataError(f"{path}: holds no outputs")
    return outputs


def write_outputs(path: Path, outputs: Sequence[Output]) -> None:
    """Writes a file that AlpacaEval's own tool reads too."""
    write_json(path, [vars(output) for output in outputs])


def match(candidate: Sequence[Output], reference: Sequence[Output]) -> list[Match]:
    """Pairs the answers by instruction; an instruction only one side answered is refused, not left out quietly."""
    by_instruction = {output.instruction: output for output in reference}
    if len(by_instruction) < len(reference) or len({output.instruction for output in candidate}) < len(candidate):
        raise DataError("an instruction is answered twice in one outputs file")
    missing = [output.instruction for output in candidate if output.instruction not in by_instruction]
    if missing:
        raise DataError(
            f"{len(missing)} of {len(candidate)} instructions have no reference answer, the first: {missing[0][:60]!r}",
            fix="generate both files from the same instructions",
        )
    return [Match(output.instruction, output.output, by_instruction[output.instruction].output) for output in candidate]


def _rows(path: Path) -> list[dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read: {error}", fix="give a JSON or JSONL file") from None
    try:
        if path.suffix == ".jsonl":
            rows = [json.loads(line) for line in text.splitlines() if line.strip()]
        else:
            rows = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{path}: expected a list of rows with `instruction`")
    return rows
