"""Where a step's time goes: phases of the step and the operations under them, from torch's profiler.

The phases are marked in the step by `record_function(PHASE + name)`, which costs nothing that can be measured while
nobody profiles.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from rcray.files import write_atomic

#: Steps left out at the start (first allocations, lazy set-up), and steps watched.
SKIP, WATCH = 2, 8
PHASE = "rcray/"
PHASES = ("forward", "incentives", "scores", "backward", "workers", "clip", "update")


class StepProfile:
    """Watches some steps of a run and writes what it saw into a directory."""

    def __init__(self, directory: Path, device: torch.device):
        self.directory = directory
        activities = [ProfilerActivity.CPU]
        if device.type == "cuda":
            activities.append(ProfilerActivity.CUDA)
        self.watch = profile(activities=activities)
        self.steps = 0

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around every optimizer step."""
        if self.steps == SKIP:
            self.watch.start()
        yield
        self.steps += 1
        if self.steps == SKIP + WATCH:
            self.close()

    def close(self) -> None:
        """Writes the trace and the summary; also where a run has fewer steps than are to be watched."""
        if self.steps <= SKIP or self.watch.profiler is None or (self.directory / "summary.json").exists():
            return
        self.watch.stop()
        self.directory.mkdir(parents=True, exist_ok=True)
        self.watch.export_chrome_trace(str(self.directory / "trace.json"))
        write_atomic(self.directory / "summary.json", json.dumps(self._summary(), indent=2) + "\n")

    def _summary(self) -> dict[str, Any]:
        watched = self.steps - SKIP
        rows = self.watch.key_averages()
        phases = {
            row.key.removeprefix(PHASE): _milliseconds(row, own=False) / watched
            for row in rows
            if row.key.startswith(PHASE)
        }
        operations = sorted(
            (row for row in rows if not row.key.startswith((PHASE, "ProfilerStep"))),
            key=lambda row: -_milliseconds(row, own=True),
        )
        return {
            "steps": watched,
            "phases_ms": {name: round(phases[name], 3) for name in PHASES if name in phases},
            "operations_ms": {row.key: round(_milliseconds(row, own=True) / watched, 3) for row in operations[:12]},
        }


def _milliseconds(row: Any, *, own: bool) -> float:
    """Of the device where there is one, else of the CPU."""
    on_device = row.self_device_time_total if own else row.device_time_total
    on_cpu = row.self_cpu_time_total if own else row.cpu_time_total
    return (on_device or on_cpu) / 1000


def describe(directory: Path) -> str:
    """The summary as text: phases with their share, then the operations that take longest."""
    path = directory / "summary.json"
    if not path.exists():
        return "profile: the run made too few steps to be watched"
    summary = json.loads(path.read_text())
    total = sum(summary["phases_ms"].values())
    lines = [f"where a step's time goes (mean of {summary['steps']} steps, {total:.1f} ms in these phases)"]
    for name, ms in summary["phases_ms"].items():
        lines.append(f"  {name:12s} {ms:9.2f} ms  {ms / total:6.1%}")
    lines.append("operations that take longest")
    lines += [f"  {name[:44]:44s} {ms:9.2f} ms" for name, ms in summary["operations_ms"].items()]
    lines.append(f"trace for chrome://tracing or Perfetto: {directory / 'trace.json'}")
    return "\n".join(lines)
