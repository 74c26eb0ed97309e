"""A cell on its way to the process that carries it out: what stands in the settings of its trial."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rcray.records.parsing import parser
from rcray.records.states import State
from rcray.sweep.grid import Cell

_CELL, _GIVEN_UP = "cell", "given_up"


@dataclass(frozen=True)
class GivenUp:
    """The outcome of a cell that lost too much to be tried again, for its last process to write down."""

    state: State
    lost: str  # what, and how often
    reason: str  # as Ray tells it; a run's own last error says more

    def text(self, last_error: str = "") -> str:
        """The error of the run's status."""
        return f"{self.lost}: {last_error or self.reason}"


_parse = parser(GivenUp)


@dataclass(frozen=True)
class Transit:
    """What a process is told."""

    cell: Cell
    given_up: GivenUp | None = None  # None: it is to be trained

    @classmethod
    def read(cls, settings: Mapping[str, Any]) -> "Transit":
        """From a trial's settings; ValueError where this version does not understand them."""
        given_up = _parse(settings[_GIVEN_UP]) if _GIVEN_UP in settings else None
        return cls(Cell.from_content(settings[_CELL]), given_up)


def trial_settings(cells: Sequence[Cell]) -> dict[str, list[dict[str, Any]]]:
    """The settings of trials, one for each cell: every name with the values that it takes."""
    return {_CELL: [cell.content() for cell in cells]}


def run_id_of(settings: Mapping[str, Any]) -> str:
    """Whose settings they are, whether or not this version understands them."""
    return Cell.key_of(settings[_CELL])


def giving_up(settings: Mapping[str, Any], outcome: GivenUp) -> dict[str, Any]:
    """The settings of a trial's last process."""
    return {**settings, _GIVEN_UP: asdict(outcome)}
