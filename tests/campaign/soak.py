"""The soak: many of the smallest cells through the real command, watched from outside.

`python -m tests.campaign.soak [--cells 200]` runs one sweep (trained, evaluated, tracked to SQLite), samples its
processes once a second, prints what it found and exits with 1 if anything grew or stayed behind.
"""

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import yaml

from rcray.files import read_json
from tests.processes import tree

ROOT = Path(__file__).parents[2]
OBJECTIVES = ("dpo", "ipo", "r-dpo", "simpo", "cpo", "slic-hf", "kto", "ddro", "dil-bce", "dil-lsif")
#: The smallest cell that is one: two optimizer steps, a probe, a checkpoint, held-out pairs.
CELL = {
    "data": {"train_pairs": 16, "eval_pairs": 8},
    "train": {"batch_size": 8, "micro_batch_size": 8, "learning_rate": 1e-4, "probe_pairs": 8},
}
WARM_UP = 0.25  # the first share of the cells: imports, caches, pools fill up
GROWTH_MB = 20.0  # what the driver may gain from there to the last cell
FILES = 10  # open files it may gain
SECONDS = 900  # after which something is wrong
PAUSE = 1.0
MB = 2**20


@dataclass(frozen=True)
class Sample:
    """The processes of the sweep at one moment. Memory in MB; shared pages are divided among those who share them."""

    seconds: float
    cells: int
    driver: float
    all: float
    processes: int
    files: int
    ray: bool  # cells are being run


@dataclass
class Soak:
    """What the sweep was, and what it left."""

    cells: int
    exit_code: int = -1
    seconds: float = 0.0
    samples: list[Sample] = field(default_factory=list)
    tally: dict[str, int] = field(default_factory=dict)
    processes_left: list[str] = field(default_factory=list)
    files_left: list[str] = field(default_factory=list)
    output: str = ""

    @property
    def steady(self) -> list[Sample]:
        """Samples after the warm-up and while Ray is there: the report afterwards imports libraries of its own."""
        return [sample for sample in self.samples if sample.ray and sample.cells >= WARM_UP * self.cells]

    @property
    def slope(self) -> float:
        """MB per 100 cells by which the driver grows, fitted over the steady samples."""
        points = [(sample.cells, sample.driver) for sample in self.steady]
        if len(points) < 2:
            return float("nan")
        x, y = (sum(values) / len(points) for values in zip(*points, strict=True))
        spread = sum((a - x) ** 2 for a, _ in points)
        return 100 * sum((a - x) * (b - y) for a, b in points) / spread if spread else float("nan")

    @property
    def growth(self) -> float:
        """MB that the driver gained over the steady part, by the fitted line."""
        steady = self.steady
        return self.slope / 100 * (steady[-1].cells - steady[0].cells) if steady else float("nan")

    def problems(self) -> list[str]:
        """What is wrong, in words; empty where all is well."""
        problems = []
        if self.exit_code != 0 or self.tally != {"ok": self.cells}:
            problems.append(f"exit code {self.exit_code}, cells {self.tally}\n{self.output[-4000:]}")
        if not self.growth < GROWTH_MB:  # also where there was nothing to fit
            problems.append(f"the driver grew by {self.growth:.1f} MB (bound {GROWTH_MB:g})")
        steady = self.steady
        if steady and steady[-1].files - steady[0].files > FILES:
            problems.append(f"open files of the driver {steady[0].files} -> {steady[-1].files} (bound +{FILES})")
        if self.processes_left:
            problems.append("processes left: " + "; ".join(self.processes_left))
        if self.files_left:
            problems.append("files left: " + ", ".join(self.files_left[:10]))
        return problems

    def describe(self) -> str:
        """The figures, and one line that sums them up."""
        steady = self.steady
        early, late = (steady[0], steady[-1]) if steady else (None, None)
        lines = [
            f"cells                    {self.tally.get('ok', 0)} ok of {self.cells}",
            f"time                     {self.seconds:.0f} s, {60 * self.cells / self.seconds:.0f} cells a minute",
        ]
        if early and late:
            lines += [
                f"driver's memory          {early.driver:.0f} MB after {early.cells} cells, {late.driver:.0f} MB after "
                f"{late.cells}; {self.slope:+.1f} MB per 100 cells",
                f"memory of all processes  {early.all:.0f} MB -> {late.all:.0f} MB",
                f"driver's open files      {early.files} -> {late.files}",
                f"processes at once        {max(sample.processes for sample in self.samples)} at most",
            ]
        lines += [
            f"processes left           {len(self.processes_left)}",
            f"files left               {len(self.files_left)}",
        ]
        problems = self.problems()
        verdict = "soak: flat and clean" if not problems else "soak: FAILED: " + "; ".join(problems)
        figures = f"{self.cells} cells in {self.seconds:.0f} s, driver {self.growth:+.1f} MB"
        return "\n".join([*lines, f"{verdict} ({figures})"])


def soak(cells: int, folder: Path) -> Soak:
    """One sweep of so many cells in a directory that is empty before, and what it left there."""
    outcome = Soak(cells)
    store, temporary = folder / "store", folder / "tmp"
    temporary.mkdir()
    shared = _shared_memory()
    file = _experiment(folder, cells)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
        "TMPDIR": str(temporary),
        "RAY_TMPDIR": str(temporary),
    }
    output = folder / "output.txt"
    command = [sys.executable, "-m", "rcray", "sweep", str(file), "--store", str(store), "--no-figures"]
    started = time.monotonic()
    seen: dict[int, psutil.Process] = {}
    with output.open("w") as log:
        process = subprocess.Popen(command, env=environment, cwd=folder, stdout=log, stderr=subprocess.STDOUT)
    try:
        while process.poll() is None and time.monotonic() - started < SECONDS:
            sample = _sample(process.pid, store, time.monotonic() - started, seen)
            if sample:
                outcome.samples.append(sample)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(PAUSE)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
        outcome.processes_left = _end(process, seen)
    outcome.exit_code, outcome.seconds = process.returncode, time.monotonic() - started
    outcome.tally = read_json(store / "experiments" / "soak" / "ledger.json", default={}).get("tally", {})
    outcome.output = output.read_text()
    outcome.files_left = [*_litter(store), *_files(temporary), *_unused(_shared_memory() - shared)]
    return outcome


def _experiment(folder: Path, cells: int) -> Path:
    seeds, rest = divmod(cells, len(OBJECTIVES))
    assert not rest, f"a multiple of {len(OBJECTIVES)}"
    content = {
        "name": "soak",
        "run": CELL,
        "grid": {"train.seed": list(range(1, seeds + 1)), "objective": list(OBJECTIVES)},
    }
    file = folder / "soak.yaml"
    file.write_text(yaml.safe_dump(content))
    return file


def _sample(pid: int, store: Path, seconds: float, seen: dict[int, psutil.Process]) -> Sample | None:
    done = read_json(store / "experiments" / "soak" / "ledger.json", default={}).get("tally", {}).get("ok", 0)
    memory, files, everything, ray = None, 0, 0.0, False
    processes = tree(pid)
    for process in processes:
        seen[process.pid] = process
        with contextlib.suppress(psutil.Error):
            share = process.memory_full_info().pss / MB
            everything += share
            ray = ray or process.name() == "raylet"
            if process.pid == pid:
                memory, files = share, process.num_fds()
    return None if memory is None else Sample(seconds, done, memory, everything, len(processes), files, ray)


def _end(process: subprocess.Popen[bytes], seen: dict[int, psutil.Process]) -> list[str]:
    """Names what outlived the sweep, then ends it."""
    process.poll()
    alive = [other for pid, other in seen.items() if pid != process.pid]
    _, left = psutil.wait_procs(alive, timeout=10)
    names = []
    for other in left:
        with contextlib.suppress(psutil.Error):
            if other.status() != psutil.STATUS_ZOMBIE:
                names.append(f"{other.pid} {' '.join(other.cmdline())[:80]}")
                other.kill()
    if process.poll() is None:
        process.kill()
        process.wait()
    return names


def _files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


def _litter(store: Path) -> list[str]:
    """Half-made files of a store, and Ray's own state in it: nothing reads them again."""
    hidden = [name for name in _files(store) if any(part.startswith(".") for part in Path(name).parts)]
    left = [name for name in hidden if not name.endswith("lock")]  # those are kept: removing one is a race
    return left + [f"ray/{name}" for name in _files(store / "ray")]


def _shared_memory() -> set[str]:
    return {f"/dev/shm/{name}" for name in os.listdir("/dev/shm")} if Path("/dev/shm").is_dir() else set()


def _unused(names: set[str]) -> list[str]:
    """Those that no process has mapped: what is in use belongs to somebody else's work on this machine."""
    maps = []
    for path in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):  # it ended, or is not ours to read
            maps.append(path.read_text())
    return sorted(name for name in names if not any(name in content for content in maps))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs it in a directory of its own, which is removed."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaign.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--cells", type=int, default=200, help=f"a multiple of {len(OBJECTIVES)}")
    parser.add_argument("--keep", type=Path, help="do it in this new directory and keep it")
    options = parser.parse_args(arguments)
    # Short: the paths of Ray's sockets have a limit.
    folder = options.keep or Path(tempfile.mkdtemp(prefix="soak", dir="/tmp"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        outcome = soak(options.cells, folder.resolve())
    finally:
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)
    print(outcome.describe())
    return 1 if outcome.problems() else 0


if __name__ == "__main__":
    sys.exit(main())
