"""One fault after another: disturb a sweep, give the same command again, compare with a sweep that nobody disturbed."""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from tests.campaign.faults import clock, damage, kills, storage
from tests.campaign.faults.ground import Ground, nothing_left_behind
from tests.campaign.faults.verdict import check_runs, check_tracked, differing, kept_tables, tables

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Fault:
    """What is done to a sweep; `disturb` returns, in a few words, what came of it before the second command."""

    name: str
    disturb: Callable[[Ground], str]
    begins: Literal["empty", "half done"] = "empty"  # what the store holds before
    long_cell: dict[str, Any] = field(default_factory=dict)  # settings of the cell that takes its time
    mounts: bool = False  # must run where it may mount
    survived: bool = False  # the disturbed command itself comes to the end: no second one


FAULTS = (
    Fault("worker", kills.kill_writer, long_cell=kills.GROUP, survived=True),
    Fault("trial", kills.kill_writer, survived=True),
    Fault("driver", kills.kill_driver),
    Fault("ray-head", kills.kill_head),
    Fault("mlflow-server", kills.kill_mlflow),
    Fault("follower", kills.kill_follower),
    Fault("full-disk", storage.full_disk, mounts=True),
    Fault("read-only-store", storage.read_only, begins="half done", mounts=True),
    Fault("clock", clock.jump_clock, survived=True),
    Fault("checkpoint", damage.damage_checkpoint, begins="half done"),
    Fault("caches", damage.damage_caches, begins="half done"),
    Fault("state-files", damage.damage_state, begins="half done"),
    Fault("records", damage.damage_records, begins="half done"),
)
BY_NAME = {fault.name: fault for fault in FAULTS}


@dataclass(frozen=True)
class Result:
    """How a fault ended."""

    name: str
    happened: str
    same: bool | None  # the tables, byte for byte; None: not tried
    seconds: float
    problem: str = ""

    @property
    def ok(self) -> bool:
        return self.same is not False and not self.problem

    def line(self) -> str:
        same = {True: "same tables", False: "NOT the same tables", None: "skipped"}[self.same]
        return f"{self.name:16s} {same:12s} {self.seconds:5.0f} s  {self.happened}"


class Campaign:
    """What faults share: the tables of an undisturbed sweep, and a store in which half the work is done."""

    def __init__(self, folder: Path, models: Path):
        """`models` is a cache that holds the tiny model."""
        self.folder = folder
        self.models = models

    @property
    def _tables(self) -> Path:
        return self.folder / "undisturbed-tables"

    @property
    def _half_done(self) -> Path:
        return self.folder / "half-done"

    def _ground(self, long_cell: dict[str, Any] | None = None) -> Ground:
        place = self.folder / "ground"  # one place for all: see `Ground`
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        return Ground(place, long_cell or {})

    def prepare(self, fault: Fault) -> None:
        """The undisturbed tables, and a half-done store where it is asked for; each once."""
        if not self._tables.exists():
            ground = self._ground()
            with nothing_left_behind(ground):
                ground.lay(self.models, only_cache=True)
                ground.run()
            check_runs(ground)
            check_tracked(ground, ground.store.default_tracking_uri)
            kept = tables(ground)
            self._tables.mkdir()
            for name, content in kept.items():
                (self._tables / name).write_bytes(content)
        if fault.begins == "half done" and not self._half_done.exists():
            self._keep_half_done()

    def _keep_half_done(self) -> None:
        ground = self._ground()
        ground.lay(self.models, only_cache=True)
        try:
            kills.kill_driver(ground)
            _await_silence(ground)
        finally:
            ground.clear()
        shutil.copytree(ground.store.root, self._half_done)

    def run(self, fault: Fault) -> Result:
        """One fault, from fresh content to its verdict."""
        began = time.monotonic()
        if fault.mounts and storage.namespace() is None:
            return Result(fault.name, "neither root nor `unshare -rm` may mount here", None, 0.0)
        self.prepare(fault)
        if fault.mounts:
            return self._run_where_it_may_mount(fault)
        return self.run_here(fault, began)

    def run_here(self, fault: Fault, began: float) -> Result:
        ground, happened, same, problem = self._ground(fault.long_cell), "", False, ""
        try:
            with nothing_left_behind(ground):
                try:
                    if fault.name == "full-disk":
                        with storage.small_disk(ground.store.root):
                            happened, same = self._disturb_and_compare(fault, ground)
                    else:
                        happened, same = self._disturb_and_compare(fault, ground)
                finally:
                    ground.clear()
        except AssertionError as error:
            problem = str(error)
        return Result(fault.name, happened, same and not problem, time.monotonic() - began, problem)

    def _disturb_and_compare(self, fault: Fault, ground: Ground) -> tuple[str, bool]:
        empty = fault.begins == "empty"
        ground.lay(self.models if empty else self._half_done, only_cache=empty)
        happened = fault.disturb(ground)
        said = "" if fault.survived else ground.run(expect=0)
        for words in ground.expected_words:
            assert words in said, f"not said: {words}\n{said}"
        for path, changed in ground.unchanged.items():
            assert path.stat().st_mtime_ns == changed, f"{path.name} was written again"
        check_runs(ground)
        check_tracked(ground, ground.tracking_uri or ground.store.default_tracking_uri)
        apart = differing(ground, kept_tables(self._tables))
        assert not apart, f"other tables than undisturbed: {', '.join(apart)}"
        return happened, True

    def _run_where_it_may_mount(self, fault: Fault) -> Result:
        """The same in a process of its own mount namespace; nothing of it can outlive that process."""
        result = self.folder / "result.json"
        result.unlink(missing_ok=True)
        inner = [sys.executable, "-m", "tests.campaign.faults", "--only", fault.name]
        inner += ["--inside", str(self.folder), "--models", str(self.models)]
        done = subprocess.run(
            [*(storage.namespace() or ()), *inner], cwd=ROOT, capture_output=True, text=True, check=False
        )
        if not result.exists():
            return Result(fault.name, "", False, 0.0, done.stdout + done.stderr)
        return Result(**json.loads(result.read_text()))

    def run_inside(self, fault: Fault) -> None:
        """What that process does."""
        result = self.run_here(fault, time.monotonic())
        (self.folder / "result.json").write_text(json.dumps(asdict(result)))


def _await_silence(ground: Ground) -> None:
    """A killed driver's trials and follower go on for a moment; a copy must not be taken under their hands."""
    from filelock import FileLock, Timeout

    deadline = time.monotonic() + 90
    while list(ground.experiment.glob(".session-*.json")):
        assert time.monotonic() < deadline, "the follower goes on"
        time.sleep(0.1)
    for path in [run.path / ".lock" for run in ground.runs()] + [ground.experiment / ".delivery.lock"]:
        try:
            FileLock(path).acquire(timeout=max(0, deadline - time.monotonic())).lock.release()
        except Timeout:
            raise AssertionError(f"{path} is still held") from None
