"""What delivery needs of a tracker, and a tracker in memory.

Everything is said so that saying it twice changes nothing: points are identified by name, step, time and value, params
and tags by name, files by path. That is what makes delivery repeatable.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Protocol

from rcray.errors import RcrayError

#: MLflow's words for what becomes of a run.
State = Literal["SCHEDULED", "RUNNING", "FINISHED", "FAILED", "KILLED"]

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
    state: State
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

    def set_state(self, run: str, state: State, ended: int | None = None) -> None:
        """What became of the run, and when."""

    def log_files(self, run: str, files: Mapping[str, Path]) -> None:
        """Files by the path they get in the run; an old one is replaced."""

    def log_table(self, run: str, path: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Rows as a table that the tracker can show; an old one is replaced."""


def in_calls(entries: Sequence[Any], limit: int) -> Iterator[Sequence[Any]]:
    """Entries in as many calls as the limit asks for."""
    for start in range(0, len(entries), limit):
        yield entries[start : start + limit]


@dataclass
class _Kept:
    run: TrackedRun
    points: set[Point] = field(default_factory=set)
    files: dict[str, bytes] = field(default_factory=dict)
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)


class MemoryTracker:
    """The double: keeps everything in memory, with MLflow's rules and limits; `down` makes it unavailable."""

    def __init__(self) -> None:
        self.experiments: dict[str, str] = {}
        self.kept: dict[str, _Kept] = {}
        self.down = False
        self.calls: list[str] = []

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if self.down:
            raise TrackerUnavailableError("the tracker is down")

    def open_experiment(self, name: str) -> str:
        """See Tracker."""
        self._call("open_experiment")
        return self.experiments.setdefault(name, f"experiment-{len(self.experiments)}")

    def find_run(self, experiment: str, tags: Mapping[str, str]) -> TrackedRun | None:
        """See Tracker."""
        self._call("find_run")
        wanted = {**tags, "experiment": experiment}.items()
        return next((kept.run for kept in self.kept.values() if wanted <= kept.run.tags.items()), None)

    def read_run(self, run: str) -> TrackedRun | None:
        """See Tracker."""
        self._call("read_run")
        return self.kept[run].run if run in self.kept else None

    def create_run(self, experiment: str, name: str, tags: Mapping[str, str], started: int) -> TrackedRun:
        """See Tracker."""
        self._call("create_run")
        run = TrackedRun(
            f"run-{len(self.kept)}", name, "SCHEDULED", started, {**tags, "experiment": experiment}, {}, {}
        )
        self.kept[run.id] = _Kept(run)
        return run

    def _change(self, run: str, **changes: Any) -> None:
        self.kept[run].run = replace(self.kept[run].run, **changes)

    def log_params(self, run: str, params: Mapping[str, str]) -> None:
        """See Tracker."""
        self._call("log_params")
        have = self.kept[run].run.params
        changed = [name for name, value in params.items() if have.get(name, value) != value]
        if changed or any(len(value) > LONGEST_PARAM for value in params.values()):
            raise TrackerRefusedError(f"params cannot be changed: {', '.join(changed)}")
        self._change(run, params={**have, **params})

    def log_points(self, run: str, points: Sequence[Point]) -> None:
        """See Tracker."""
        self._call("log_points")
        if len(points) > POINTS_PER_CALL:
            raise TrackerRefusedError(f"{len(points)} points in one call")
        kept = self.kept[run]
        kept.points |= set(points)
        newest = {p.name: p for p in sorted(kept.points, key=lambda p: (p.step, p.milliseconds, p.value))}
        self._change(run, newest={name: point.value for name, point in newest.items()})

    def set_tags(self, run: str, tags: Mapping[str, str]) -> None:
        """See Tracker."""
        self._call("set_tags")
        self._change(run, tags={**self.kept[run].run.tags, **tags})

    def set_state(self, run: str, state: State, ended: int | None = None) -> None:
        """See Tracker."""
        self._call("set_state")
        self._change(run, state=state)

    def log_files(self, run: str, files: Mapping[str, Path]) -> None:
        """See Tracker."""
        self._call("log_files")
        self.kept[run].files.update({name: path.read_bytes() for name, path in files.items()})

    def log_table(self, run: str, path: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """See Tracker."""
        self._call("log_table")
        self.kept[run].tables[path] = [dict(row) for row in rows]

    def curve(self, run: str, name: str) -> list[tuple[int, float]]:
        """All points of one curve, for tests."""
        return sorted((p.step, p.value) for p in self.kept[run].points if p.name == name)
