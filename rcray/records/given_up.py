"""A cell that lost too much to be tried again: what its last process is told, in the settings of its trial."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rcray.records.parsing import parser
from rcray.records.states import State

_KEY = "given_up"


@dataclass(frozen=True)
class GivenUp:
    """The outcome that the process writes down in place of training."""

    state: State
    lost: str  # what, and how often
    reason: str  # as Ray tells it; a run's own last error says more

    def text(self, last_error: str = "") -> str:
        """The error of the run's status."""
        return f"{self.lost}: {last_error or self.reason}"


_parse = parser(GivenUp)


def read_given_up(settings: Mapping[str, Any]) -> GivenUp | None:
    """What a trial's settings say; None for a cell that is to be trained."""
    return _parse(settings[_KEY]) if _KEY in settings else None


def with_given_up(settings: Mapping[str, Any], given_up: GivenUp) -> dict[str, Any]:
    """The settings of the trial's last process."""
    return {**settings, _KEY: asdict(given_up)}
