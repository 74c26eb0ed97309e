"""Interleaved timing: every variant once per round, so that a noisy machine disturbs all of them alike."""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable


def arguments(description: str) -> argparse.Namespace:
    """The options every benchmark has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="fewer rounds and smaller sizes")
    return parser.parse_args()


def measure(variants: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Median seconds of each variant over `rounds` interleaved rounds, after one warm-up round."""
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(rounds + 1):
        for name, run in variants.items():
            started = time.perf_counter()
            run()
            if turn:
                seconds[name].append(time.perf_counter() - started)
    return {name: statistics.median(values) for name, values in seconds.items()}


def machine() -> str:
    """What it was measured on."""
    return f"{platform.machine()}, {os.cpu_count()} cores"


def table(title: str, seconds: dict[str, float], baseline: str) -> str:
    """Milliseconds and ratios to `baseline`, a line each."""
    width = max(map(len, seconds))
    lines = [f"{name:{width}s}  {1000 * s:8.1f} ms  {s / seconds[baseline]:6.3f}x" for name, s in seconds.items()]
    return "\n".join([f" {title}", *(f"  {line}" for line in lines)])


def report(title: str, seconds: dict[str, float], baseline: str, **facts: object) -> None:
    """Prints a table, and as the last line one JSON object of the ratios to `baseline`."""
    print(table(f"{title} ({machine()}; median of interleaved rounds)", seconds, baseline))
    ratios = {name: round(value / seconds[baseline], 4) for name, value in seconds.items()}
    print(json.dumps({"benchmark": title, "baseline": baseline, "ratios": ratios, **facts}))
