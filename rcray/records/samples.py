"""`samples.json`: what a run's start model and its trained model answer to held-out prompts, side by side."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from rcray.files import read_json, write_json
from rcray.records.parsing import parser

#: The ways in which both models answer, in the order of the answers.
WAYS: Final = ("greedy", "drawn")


@dataclass(frozen=True)
class Answer:
    """One answer, and what is wrong with it."""

    text: str
    tokens: int
    ended: bool  # by itself, before the limit
    repetition: float  # share of its runs of three tokens that stood in it before
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sample:
    """One prompt, the answer that people chose, and both models' answers in each way."""

    row: str
    prompt: str
    chosen: str
    start: tuple[Answer, ...]
    trained: tuple[Answer, ...]


_parse = parser(tuple[Sample, ...])


def read_samples(path: Path) -> tuple[Sample, ...]:
    """The samples of a run; none of a run that was not asked for any. An error that names a damaged file."""
    return read_json(path, (), "evaluate again", _parse)


def write_samples(path: Path, samples: tuple[Sample, ...]) -> None:
    """Keeps the samples of a run."""
    write_json(path, [asdict(sample) for sample in samples])
