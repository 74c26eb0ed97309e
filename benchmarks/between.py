"""The steps of this checkout against those of another one: `python -m benchmarks.between OTHER_CHECKOUT [--quick]`.

Both run the steps of calibration_cost and of against_trl, each checkout in a process of its own, one step at a time in
turn, round by round, so that a noisy machine disturbs both alike. Printed for each variant: milliseconds before (the
other checkout) and now, their ratio, and what the benchmark itself reports, the ratio to its baseline, before and now.
The last line names the variants whose ratio to their baseline grew by more than the errors of both.
"""

import argparse
import contextlib
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.interleaved import Times, machine

HERE = Path(__file__).resolve().parents[1]
BEFORE, NOW = "before", "now"


@dataclass(frozen=True)
class Group:
    """Variants of one setting; the first is what the others are compared with. Few: two processes hold them at once."""

    benchmark: str
    settings: tuple[str, ...]
    variants: tuple[str, ...]

    @property
    def title(self) -> str:
        """What it is printed under."""
        return ", ".join([self.benchmark, *self.settings])


GROUPS = (
    Group("calibration_cost", ("full", "on"), ("plain", "off", "RC")),
    Group("calibration_cost", ("full", "on"), ("plain", "RC, sketch")),
    Group("calibration_cost", ("full", "off"), ("plain", "off", "RC")),
    Group("calibration_cost", ("full", "off"), ("plain", "RC, sketch")),
    Group("calibration_cost", ("full", "off"), ("logits", "logits, RC")),
    Group("calibration_cost", ("lora", "on"), ("plain", "off", "RC")),
    Group("calibration_cost", ("lora", "off"), ("plain", "off", "RC")),
    Group("calibration_cost", ("lora", "off"), ("logits", "logits, RC")),
    Group("against_trl", ("1",), ("trl", "rcray, off", "rcray, RC")),
    Group("against_trl", ("8",), ("trl", "rcray, off", "rcray, RC")),
)


@contextlib.contextmanager
def stepping(checkout: Path, group: Group, quick: bool) -> Iterator[subprocess.Popen[str]]:
    """A process that makes steps with a checkout's code."""
    script = str(HERE / "benchmarks" / "timed_steps.py")
    words = ["quick" if quick else "full", group.benchmark, *group.settings, ";".join(group.variants)]
    process = subprocess.Popen(
        [sys.executable, "-P", script, *words],  # -P: the script's own folder is not where modules are looked for
        cwd=checkout, env={**os.environ, "PYTHONPATH": str(checkout)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        _answer(process, "ready")
        yield process
    finally:
        process.kill()
        process.wait()


def _answer(process: subprocess.Popen[str], wanted: str = "") -> str:
    """The next line that is meant for us: libraries print, too."""
    assert process.stdout is not None
    for line in process.stdout:
        said = line.strip()
        if said == wanted or (not wanted and said.replace(".", "", 1).replace("e-", "", 1).isdigit()):
            return said
    raise SystemExit(f"a process ended early with exit code {process.wait()}")


def one_step(process: subprocess.Popen[str], variant: str) -> float:
    """Seconds of a step."""
    assert process.stdin is not None
    process.stdin.write(f"{variant}\n")
    process.stdin.flush()
    return float(_answer(process))


def measure_group(other: Path, group: Group, rounds: int, quick: bool) -> Times:
    """Seconds by (which checkout, variant), after one round to warm up; each round begins with another."""
    with stepping(other, group, quick) as before, stepping(HERE, group, quick) as now:
        turns = [(when, process, name) for name in group.variants for when, process in ((BEFORE, before), (NOW, now))]
        seconds: dict[str, list[float]] = {f"{when} {name}": [] for when, _, name in turns}
        for i in range(rounds + 1):
            first = i % len(turns)
            for when, process, name in turns[first:] + turns[:first]:
                took = one_step(process, name)
                if i:
                    seconds[f"{when} {name}"].append(took)
    return Times(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path, help="the checkout to compare with, as a git worktree of an older commit")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and smaller sizes")
    parser.add_argument("--rounds", type=int, help="rounds of each group")
    options = parser.parse_args()
    rounds = options.rounds or (3 if options.quick else 15)
    print(f"between {options.other} and this ({machine()}; median of {rounds} interleaved rounds)")
    ratios: dict[str, dict[str, list[float]]] = {}
    worse: list[str] = []
    for group in GROUPS:
        times = measure_group(options.other.resolve(), group, rounds, options.quick)
        base = group.variants[0]
        print(f" {group.title}: before, now, now/before; over {base}: before, now")
        for name in group.variants:
            old, new = f"{BEFORE} {name}", f"{NOW} {name}"
            ratio, error = times.ratio(new, old), times.spread(new, old)
            line = f"  {name:12s} {1000 * times[old]:8.1f} ms {1000 * times[new]:8.1f} ms  {ratio:.3f}x ± {error:.3f}"
            pairs = [(one, f"{when} {base}") for when, one in ((BEFORE, old), (NOW, new)) if name != base]
            over = [(times.ratio(*pair), times.spread(*pair)) for pair in pairs]
            print(line + "".join(f"   {ratio:.3f} ± {error:.3f}" for ratio, error in over), flush=True)
            if over and over[1][0] - over[0][0] > math.hypot(over[0][1], over[1][1]):
                worse.append(f"{group.title}: {name}")
            # A baseline stands in several groups of a setting; the first one's is kept.
            ratios.setdefault(group.title, {}).setdefault(name, [round(ratio, 4), round(error, 4)])
    print(f"worse by more than its error: {'; '.join(worse) or 'none'}")
    print(json.dumps({"benchmark": "between", "ratios": ratios, "worse": worse}))


if __name__ == "__main__":
    main()
