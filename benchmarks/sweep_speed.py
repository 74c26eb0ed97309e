"""A 16-cell grid as one `rcray sweep` against 16 `rcray train` processes one after another, and the sweep's memory.

Both train the same cells on tiny-neox into fresh stores that already hold the model, tracked as by default. The sweep
also evaluates every cell and writes tables, figures and the report; the separate processes only train. The memory is
the largest sum of proportional set sizes over the sweep's whole process tree, Ray's own processes included.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
import yaml

from benchmarks.interleaved import arguments
from rcray.config import load_experiment
from rcray.models.tiny import tiny_model_dir
from rcray.sweep.grid import expand

RCRAY = [sys.executable, "-m", "rcray"]
OBJECTIVES = ["dpo", "ipo", "r-dpo", "simpo", "cpo", "dil-bce", "dil-lsif", "ti-dpo"]
SAMPLE_SECONDS = 0.5


class PeakMemory:
    """Watches a process and everything below it."""

    def __init__(self, pid: int):
        self.root, self.bytes, self.done = psutil.Process(pid), 0, threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()

    def _watch(self) -> None:
        while not self.done.wait(SAMPLE_SECONDS):
            try:
                tree = [self.root, *self.root.children(recursive=True)]
            except psutil.NoSuchProcess:
                return
            self.bytes = max(self.bytes, sum(map(_proportional, tree)))

    def stop(self) -> int:
        """Ends the watch; the largest sum seen, in bytes."""
        self.done.set()
        self.thread.join()
        return self.bytes


def _proportional(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0


def write_grid(path: Path, quick: bool) -> Path:
    run = {
        "data": {"name": "synthetic", "train_pairs": 160 if quick else 400, "eval_pairs": 64},
        "train": {"batch_size": 8, "micro_batch_size": 4, "learning_rate": 5e-5},
    }
    grid = {"objective": OBJECTIVES[:2] if quick else OBJECTIVES, "calibration.enabled": [False, True]}
    path.write_text(yaml.safe_dump({"name": "speed", "run": run, "grid": grid}))
    return path


def fresh_store(directory: Path, cache: Path) -> Path:
    shutil.copytree(cache, directory / "cache")
    return directory


def one_sweep(file: Path, store: Path) -> tuple[float, int]:
    started = time.perf_counter()
    command = [*RCRAY, "sweep", str(file), "--store", str(store)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    memory = PeakMemory(process.pid)
    if process.wait():
        raise SystemExit("the sweep failed")
    return time.perf_counter() - started, memory.stop()


def one_after_another(file: Path, store: Path, cells: list) -> float:
    started = time.perf_counter()
    for cell in cells:
        chosen = [part for path, value in cell.varied for part in ("--set", f"{path}={json.dumps(value)}")]
        command = [*RCRAY, "train", str(file), "--store", str(store), *chosen]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def main() -> None:
    quick = arguments(__doc__).quick
    with tempfile.TemporaryDirectory(prefix="rcray-speed-") as name:
        root = Path(name)
        file = write_grid(root / "speed.yaml", quick)
        cells = expand(load_experiment(file))
        cache = root / "cache"
        tiny_model_dir("tiny-neox", cache)
        separate = one_after_another(file, fresh_store(root / "separate", cache), cells)
        together, peak = one_sweep(file, fresh_store(root / "together", cache))
    print(f"sweep_speed ({platform.machine()}, {os.cpu_count()} cores; {len(cells)} cells, one run of each)")
    print(f"  one after another  {separate:8.1f} s")
    print(f"  one sweep          {together:8.1f} s, peak memory {peak / 1e9:.2f} GB")
    ratios = {"one after another": 1.0, "one sweep": round(together / separate, 4)}
    facts = {"times_faster": round(separate / together, 3), "peak_memory_gb": round(peak / 1e9, 3), "cells": len(cells)}
    print(json.dumps({"benchmark": "sweep_speed", "baseline": "one after another", "ratios": ratios, **facts}))


if __name__ == "__main__":
    main()
