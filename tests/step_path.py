"""The files that one optimizer step passes through: `python -m tests.step_path`.

One calibrated LoRA step is traced, model, data and optimizer being ready. What runs inside torch or transformers is not
counted, nor is code without a file of its own.
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
from rcray.train.step import optimizer_step

PACKAGE = Path(rcray.__file__).parent
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


def traced_step() -> Counter[str]:
    """The files of a calibrated LoRA step, on packed rows."""
    setting = Setting.of("lora", SMALL, pairs=2, prompt=6, answer=4, sharing="on")
    state = setting.state(calibrated=True)
    return files_of(lambda: optimizer_step(state, [setting.batch], 1))


def main() -> None:
    """Prints them, with their lines."""
    torch.set_num_threads(1)
    total = 0
    for name in sorted(traced_step()):
        lines = len((PACKAGE.parent / name).read_text().splitlines())
        total += lines
        print(f"{lines:6} {name}")
    print(f"{total:6} lines in all")


if __name__ == "__main__":
    main()
