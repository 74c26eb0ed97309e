"""The tracker in memory, deliveries to it, and what it keeps of a cell."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rcray.track.delivery import Delivery, DeliveryPlan
from rcray.track.tracker import (
    LONGEST_PARAM,
    POINTS_PER_CALL,
    Point,
    TrackedRun,
    TrackerRefusedError,
    TrackerState,
    TrackerUnavailableError,
)

URI = "memory://tracker"


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
        self._call("open_experiment")
        return self.experiments.setdefault(name, f"experiment-{len(self.experiments)}")

    def find_run(self, experiment: str, tags: Mapping[str, str]) -> TrackedRun | None:
        self._call("find_run")
        wanted = {**tags, "experiment": experiment}.items()
        return next((kept.run for kept in self.kept.values() if wanted <= kept.run.tags.items()), None)

    def read_run(self, run: str) -> TrackedRun | None:
        self._call("read_run")
        return self.kept[run].run if run in self.kept else None

    def create_run(self, experiment: str, name: str, tags: Mapping[str, str], started: int) -> TrackedRun:
        self._call("create_run")
        run = TrackedRun(
            f"run-{len(self.kept)}", name, "SCHEDULED", started, {**tags, "experiment": experiment}, {}, {}
        )
        self.kept[run.id] = _Kept(run)
        return run

    def _change(self, run: str, **changes: Any) -> None:
        self.kept[run].run = replace(self.kept[run].run, **changes)

    def log_params(self, run: str, params: Mapping[str, str]) -> None:
        self._call("log_params")
        have = self.kept[run].run.params
        changed = [name for name, value in params.items() if have.get(name, value) != value]
        if changed or any(len(value) > LONGEST_PARAM for value in params.values()):
            raise TrackerRefusedError(f"params cannot be changed: {', '.join(changed)}")
        self._change(run, params={**have, **params})

    def log_points(self, run: str, points: Sequence[Point]) -> None:
        self._call("log_points")
        if len(points) > POINTS_PER_CALL:
            raise TrackerRefusedError(f"{len(points)} points in one call")
        kept = self.kept[run]
        kept.points |= set(points)
        newest = {p.name: p for p in sorted(kept.points, key=lambda p: (p.step, p.milliseconds, p.value))}
        self._change(run, newest={name: point.value for name, point in newest.items()})

    def set_tags(self, run: str, tags: Mapping[str, str]) -> None:
        self._call("set_tags")
        self._change(run, tags={**self.kept[run].run.tags, **tags})

    def set_state(self, run: str, state: TrackerState, ended: int | None = None) -> None:
        self._call("set_state")
        self._change(run, state=state)

    def log_files(self, run: str, files: Mapping[str, Path]) -> None:
        self._call("log_files")
        self.kept[run].files.update({name: path.read_bytes() for name, path in files.items()})

    def log_table(self, run: str, path: str, rows: Sequence[Mapping[str, Any]]) -> None:
        self._call("log_table")
        self.kept[run].tables[path] = [dict(row) for row in rows]

    def curve(self, run: str, name: str) -> list[tuple[int, float]]:
        """All points of one curve, for tests."""
        return sorted((p.step, p.value) for p in self.kept[run].points if p.name == name)


def delivery_to(tracker, store, cells, **settings):
    def draw(cell):
        return {"png": b"png of " + cell.run_id.encode(), "svg": b"<svg/>"}

    return Delivery(DeliveryPlan("small", "A small grid", cells, **settings), store, lambda: tracker, URI, draw)


def kept(tracker, cell):
    matching = [k for k in tracker.kept.values() if k.run.tags.get("rcray.run_id") == cell.run_id]
    assert len(matching) == 1, "a cell has one run"
    return matching[0]
