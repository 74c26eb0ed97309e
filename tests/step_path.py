"""The files that one optimizer step passes through: `python -m tests.step_path`.

Calibrated LoRA steps are traced, by the published rule and by the update; model, data and optimizer are ready. What
runs inside torch or transformers is not counted, nor is code without a file of its own.
"""

import sys
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import rcray
from benchmarks.steps import Setting, Size

PACKAGE = Path(rcray.__file__).parent
PUBLISHED, BETWEEN, LOOKING = "the published rule", "by the update, between two looks", "by the update, with a look"
SMALL = Size(vocabulary=97, hidden=32, layers=2, heads=2)


def files_of(run: Any) -> Counter[str]:
    """Files of the package whose functions `run` enters, by how many calls."""
    seen: Counter[str] = Counter()

    def trace(frame: FrameType, event: str, _argument: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            seen[path.relative_to(PACKAGE.parent).as_posix()] += 1

    threading.setprofile(trace)  # the backward runs on threads of its own
    sys.setprofile(trace)
    try:
        run()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return seen


def traced_steps() -> dict[str, Counter[str]]:
    """The files of calibrated LoRA steps on packed rows, by what is computed in them."""
    setting = Setting.of("lora", SMALL, pairs=2, prompt=6, answer=4, sharing="on")
    between, looking = setting.by_update(look_pairs=2)
    looking()  # the step between two looks has one before it
    published = setting.ours(calibrated=True)
    steps = {PUBLISHED: published, BETWEEN: between, LOOKING: looking}
    return {name: files_of(step) for name, step in steps.items()}


def main() -> None:
    """Prints them, with their lines."""
    torch.set_num_threads(1)
    for step, files in traced_steps().items():
        print(f"{step}: {len(files)} files")
        lines = {name: len((PACKAGE.parent / name).read_text().splitlines()) for name in sorted(files)}
        for name, count in lines.items():
            print(f"{count:6} {name}")
        print(f"{sum(lines.values()):6} lines in all")


if __name__ == "__main__":
    main()
