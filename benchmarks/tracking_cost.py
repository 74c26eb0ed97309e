"""What tracking adds to an optimizer step of the tiny model.

One run, trained in this process, with a follower that delivers every record to a fresh SQLite file. The follower is
stopped and continued in turn, for blocks of steps, so that a noisy machine disturbs both kinds of block alike:

null tracker     blocks with the follower stopped: records and checkpoints on disk, nobody reads them
SQLite           blocks with the follower at work; it also makes up for what it missed, so the cost is overstated

The loop does nothing for tracking, so wall-clock time shows what the follower takes from the machine. CPU time of
the training process is shown beside it: on a machine with other work it is the steadier figure.
"""

import contextlib
import json
import os
import resource
import signal
import sqlite3
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.interleaved import Times, arguments, report
from rcray.config import RunConfig, run_id
from rcray.follower import Follower
from rcray.store import Store
from rcray.sweep.grid import Cell
from rcray.track.book import Book
from rcray.track.sessions import Session, this_environment
from rcray.train.launch import launch

GOAL = 0.02
BLOCK = 50  # steps; a second or more, so that the follower looks at the store in each
NULL, TRACKED = "null tracker", "SQLite"


def cell_of(steps: int) -> Cell:
    settings = {
        "model": "tiny-neox",
        "data": {"train_pairs": 8 * steps, "eval_pairs": 32},
        "train": {"batch_size": 8, "micro_batch_size": 4, "learning_rate": 1e-6, "probe_every": 1000},
        "execution": {"checkpoint_every": 25},
    }
    config = RunConfig.model_validate(settings)
    return Cell(run_id(config), config, ())


class Switch:
    """Called after every step: notes its time, and stops or continues the follower at each block's end."""

    def __init__(self, pid: int):
        self.pid = pid
        self.state = TRACKED
        self.wall: dict[str, list[float]] = {NULL: [], TRACKED: []}
        self.cpu: dict[str, list[float]] = {NULL: [], TRACKED: []}  # of this process
        self.last: float | None = None

    def __call__(self, row: dict[str, Any]) -> None:
        """Takes one step's record."""
        now = time.process_time()
        if self.last is not None and row["step"] > BLOCK:  # the first block warms up
            self.wall[self.state].append(row["seconds"])
            self.cpu[self.state].append(now - self.last)
        if row["step"] % BLOCK == 0:
            self.state = TRACKED if self.state == NULL else NULL
            os.kill(self.pid, signal.SIGCONT if self.state == TRACKED else signal.SIGSTOP)
        self.last = time.process_time()


def paired(times: dict[str, list[float]]) -> tuple[float, float]:
    """Cost of a tracked block over the null block beside it: mean over the pairs, and its standard error."""
    blocks = {name: [statistics.median(v[i : i + BLOCK]) for i in range(0, len(v), BLOCK)] for name, v in times.items()}
    ratios = [tracked / null - 1 for tracked, null in zip(blocks[TRACKED], blocks[NULL], strict=False)]
    return statistics.fmean(ratios), statistics.stdev(ratios) / len(ratios) ** 0.5


def _points(database: Path) -> int:
    with contextlib.closing(sqlite3.connect(database)) as connection:
        return int(connection.execute("select count(*) from metrics").fetchone()[0])


def main() -> None:
    quick = arguments(__doc__).quick
    steps = BLOCK * (9 if quick else 41)
    cell = cell_of(steps)
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(folder)
        uri = f"sqlite:///{Path(folder) / 'bench.db'}"
        book = Book(store, "bench")
        book.enter([cell], "", uri)
        session = Session((cell.run_id,), (cell.run_id,), environment=this_environment())
        started = time.perf_counter()
        with Follower(book, uri, session) as follower:
            begun = time.perf_counter() - started
            switch = Switch(follower.process.pid)
            try:
                launch(cell.config, store, on_step=switch)
            finally:
                os.kill(follower.process.pid, signal.SIGCONT)
            ended = time.perf_counter()
        finished = time.perf_counter() - ended
        assert follower.outcome is not None and follower.outcome.complete, follower.outcome
        points = _points(Path(folder) / "bench.db")
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
    shortest = min(map(len, switch.wall.values()))
    wall = Times({name: values[:shortest] for name, values in switch.wall.items()})
    cost = {}
    for kind, times in (("wall", switch.wall), ("cpu", switch.cpu)):
        mean, error = paired(times)
        cost[kind], cost[f"{kind}_stderr"] = round(mean, 4), round(error, 4)
    print(f"tracked over null tracker, block beside block: {json.dumps(cost)} (goal: below {GOAL})")
    print(f"starting the follower holds the loop up {1000 * begun:.0f} ms, once; it delivered {points}")
    print(f"points, {finished:.1f} s after the last step, with {used.ru_utime + used.ru_stime:.1f} s of CPU in all")
    mean = round(statistics.fmean(switch.wall[TRACKED]) / statistics.fmean(switch.wall[NULL]), 4)
    report("tracking_cost", wall, NULL, cost_per_step=cost, mean_ratio=mean, goal=GOAL, steps=len(switch.wall[NULL]))


if __name__ == "__main__":
    main()
