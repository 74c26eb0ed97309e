"""What delivery needs of a tracker.

Everything is said so that saying it twice changes nothing: points are identified by name, step, time and value, params
and tags by name, files by path. That is what makes delivery repeatable.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from rcray.errors import RcrayError

#: MLflow's words for what becomes of a run.
TrackerState = Literal["SCHEDULED", "RUNNING", "FINISHED", "FAILED", "KILLED"]

# The limits that MLflow's server checks for one request.
POINTS_PER_CALL = 1000
PARAMS_PER_CALL = 100
LONGEST_PARAM = 6000
LONGEST_TAG = 8000
LONGEST_NAME = 250


class TrackerUnavailableError(RcrayError):
    """The tracker cannot be reached, or did not answer in time; later it may."""


class TrackerRefusedError(RcrayError):
    """The tracker answered, and will not take this."""


@dataclass(frozen=True)
class Point:
    """One point of a curve."""

    name: str
    value: float
    step: int
    milliseconds: int  # since the epoch; decided by the records, so that a point sent twice is one point


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker knows of a run; curves by their newest value."""

    id: str
    name: str
    state: TrackerState
    started: int  # milliseconds since the epoch
    tags: Mapping[str, str]
    params: Mapping[str, str]
    newest: Mapping[str, float]


class Tracker(Protocol):
    """A place where runs become visible. Every method may raise the two errors above."""

    def open_experiment(self, name: str) -> str:
        """The id of the experiment of that name, made if there is none."""

    def find_run(self, experiment: str, tags: Mapping[str, str]) -> TrackedRun | None:
        """A run with all these tags."""

    def read_run(self, run: str) -> TrackedRun | None:
        """A run by its id; None for one that is not there or was deleted."""

    def create_run(self, experiment: str, name: str, tags: Mapping[str, str], started: int) -> TrackedRun:
        """A new run, scheduled."""

    def log_params(self, run: str, params: Mapping[str, str]) -> None:
        """Params that the run does not have yet."""

    def log_points(self, run: str, points: Sequence[Point]) -> None:
        """Points of curves, at most POINTS_PER_CALL."""

    def set_tags(self, run: str, tags: Mapping[str, str]) -> None:
        """Tags; an old value is replaced."""

    def set_state(self, run: str, state: TrackerState, ended: int | None = None) -> None:
        """What became of the run, and when."""

    def log_files(self, run: str, files: Mapping[str, Path]) -> None:
        """Files by the path they get in the run; an old one is replaced."""

    def log_table(self, run: str, path: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Rows as a table that the tracker can show; an old one is replaced."""


def in_calls(entries: Sequence[Any], limit: int) -> Iterator[Sequence[Any]]:
    """Entries in as many calls as the limit asks for."""
    for start in range(0, len(entries), limit):
        yield entries[start : start + limit]
