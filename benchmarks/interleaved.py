"""Interleaved timing: every variant once per round, so that a noisy machine disturbs all of them alike."""

import argparse
import contextlib
import ctypes
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # malloc.h


def argument_parser(description: str | None) -> argparse.ArgumentParser:
    """Knows the options every benchmark has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and smaller sizes")
    return parser


def arguments(description: str | None) -> argparse.Namespace:
    """Those options, read."""
    return argument_parser(description).parse_args()


class Times(dict[str, float]):
    """Median seconds of each variant. Ratios are taken round by round, so that a slow minute disturbs none of them."""

    def __init__(self, rounds: dict[str, list[float]]):
        super().__init__({name: statistics.median(values) for name, values in rounds.items()})
        self.rounds = rounds

    def ratio(self, name: str, baseline: str) -> float:
        """The median over the rounds of one variant's seconds over another's."""
        return statistics.median(self._ratios(name, baseline))

    def spread(self, name: str, baseline: str) -> float:
        """Half the distance between the quartiles of these ratios, by the root of how many there are."""
        ratios = self._ratios(name, baseline)
        if len(ratios) < 2:
            return 0.0
        low, _, high = statistics.quantiles(ratios, n=4)
        return (high - low) / 2 / len(ratios) ** 0.5

    def _ratios(self, name: str, baseline: str) -> list[float]:
        return [one / other for one, other in zip(self.rounds[name], self.rounds[baseline], strict=True)]


def measure(variants: dict[str, Callable[[], object]], rounds: int) -> Times:
    """Seconds of each variant over interleaved rounds, after one warm-up round; each round begins with another."""
    keep_freed_memory()
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    names = list(variants)
    for turn in range(rounds + 1):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            started = time.perf_counter()
            variants[name]()
            if turn:
                seconds[name].append(time.perf_counter() - started)
    return Times(seconds)


def keep_freed_memory() -> None:
    """As a GPU's allocator does: else every step's gradients fault their pages in anew, which is most of the noise."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # glibc
        mallopt(_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_MMAP_MAX, 0)


def machine() -> str:
    """What it was measured on."""
    import torch

    threads = torch.get_num_threads()
    return f"{_processor()}, {os.cpu_count()} cores, {threads} threads; torch {torch.__version__}"


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def table(title: str, times: Times, baseline: str) -> str:
    """Milliseconds and ratios to `baseline`, a line each."""
    width = max(map(len, times))
    lines = [
        f"{name:{width}s}  {1000 * seconds:8.1f} ms  {times.ratio(name, baseline):6.3f}x"
        + ("" if name == baseline else f" ± {times.spread(name, baseline):.3f}")
        for name, seconds in times.items()
    ]
    return "\n".join([f" {title}", *(f"  {line}" for line in lines)])


def report(title: str, times: Times, baseline: str, **facts: object) -> None:
    """Prints a table, and as the last line one JSON object of the ratios to `baseline`."""
    print(table(f"{title} ({machine()}; median of interleaved rounds)", times, baseline))
    ratios = {name: round(times.ratio(name, baseline), 4) for name in times}
    print(json.dumps({"benchmark": title, "baseline": baseline, "ratios": ratios, **facts}))
