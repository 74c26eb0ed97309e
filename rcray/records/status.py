"""`status.json`, how far a run is and what became of it, and `adjusted.json`, what was changed so that it could run."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

from pydantic import AliasChoices, Field

from rcray.files import read_json, recover_json, write_json
from rcray.records.parsing import parser
from rcray.records.states import State


@dataclass(frozen=True)
class Writer:
    """The process that trains."""

    host: str
    pid: int


@dataclass(frozen=True)
class Standing:
    """How the model kept as the best stands on the probe pairs."""

    ranked: Annotated[float, Field(validation_alias=AliasChoices("ranked", "accuracy"))]  # share with z_w > z_l
    margin: float


@dataclass(frozen=True)
class Device:
    """The GPU that trains, and how it is used."""

    name: str
    precision: str  # of the products
    attention: str  # the kernels that ran: of plain rows, of packed rows
    peak_bytes: int = 0  # that torch held at once


@dataclass(frozen=True)
class RunStatus:
    """A run's progress and outcome; the defaults are those of a run that never started."""

    run_id: str = ""
    label: str = ""
    fidelity: str = ""
    attempt: str = ""  # names one launch: a deterministic failure is not tried again within it
    status: State = State.PENDING
    error: str = ""
    step: int = 0
    total_steps: int | None = None  # known once the data is read
    seconds: float = 0.0
    tokens: int = 0
    in_band: float | None = None  # share of the steps, by the paper's band at the head or the adapters
    looks_iii: float | None = None  # share of the looks at fresh pairs that saw pathway iii; None: no looks
    winner_drift: float | None = None  # nats per answer token that the probe's winners moved since the start
    best: Standing | None = None
    data: str = ""  # which pairs were kept, in words
    data_fingerprint: str = ""
    writer: Writer | None = None
    device: Device | None = None  # None: a CPU
    updated: float = 0.0


#: Nats per answer token below which a run has lost its winner: it finished, and the chosen answers are gone.
WINNER_LOST = -1.0


def winner_lost(status: RunStatus) -> str:
    """What to say of a run that lost its winner; else nothing."""
    drift = status.winner_drift
    if drift is None or drift >= WINNER_LOST:
        return ""
    return f"winner lost: the chosen answers of the probe set fell by {-drift:.1f} nats per token"


#: Shares of a run that are further apart are two accounts of it.
BANDS_APART = 0.5


def disagreement(in_band: float | None, looks_iii: float | None, scores_at: str = "head") -> str:
    """What to say of a run that the paper's band and the updates tell differently; else nothing.

    Args:
        in_band: share of the steps inside the band at the scores, which promises pathway iii.
        looks_iii: share of the looks whose pairs moved along pathway iii under the updates made.
        scores_at: where the band was measured.
    """
    if in_band is None or looks_iii is None or not abs(in_band - looks_iii) >= BANDS_APART:
        return ""
    return f"{scores_at}: {in_band:.0%} inside; update: iii in {looks_iii:.0%} of looks"


_parse = parser(RunStatus)


def parse_status(text: bytes) -> RunStatus:
    """A status that lies elsewhere; ValueError where it is damaged."""
    return _parse(json.loads(text))


def read_status(path: Path) -> RunStatus:
    """The status as it stands; an error that names the file where it is damaged."""
    return read_json(path, RunStatus(), "remove the file; the run goes on from its checkpoint", _parse)


def recover_status(path: Path) -> RunStatus:
    """The status; a damaged one is set aside, and the run is like one that never started."""
    then = "the run goes on from its newest checkpoint, or from the start"
    return recover_json(path, RunStatus(), then, _parse)


def write_status(path: Path, status: RunStatus) -> None:
    """Writes the status."""
    write_json(path, asdict(status))


@dataclass(frozen=True)
class Adjustment:
    """What was changed so that a run could be carried out at all; the defaults are those of most runs: nothing."""

    field: str = ""
    asked: int = 0
    used: int = 0
    note: str = ""
    time: float = 0.0


_parse_adjustment = parser(Adjustment)


def read_adjustment(path: Path) -> Adjustment:
    """What was changed. Nothing else tells it, so a damaged file is not passed over."""
    fix = f"put the file back, or remove {path.parent}: the run is done again"
    return read_json(path, Adjustment(), fix, _parse_adjustment)


def write_adjustment(path: Path, adjustment: Adjustment) -> None:
    """Writes down what was changed."""
    write_json(path, asdict(adjustment))
