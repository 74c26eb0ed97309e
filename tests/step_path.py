"""The files that one optimizer step passes through: `python -m tests.step_path`.

Steps of a calibrated LoRA run with default settings are traced, by the published rule and by the update, as the loop
makes them: the state is that of `prepare`, and looks are taken when they fall due. Making the batch, a GPU's work of
the step before, is not counted, nor is what runs inside torch or transformers, or code without a file of its own.
"""

import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import rcray
from rcray.config import RunConfig, run_id
from rcray.store import Store
from rcray.train.ahead import Ahead
from rcray.train.loop import Job, Training, prepare
from rcray.train.step import optimizer_step

PACKAGE = Path(rcray.__file__).parent
UNWATCHED = "the published rule, in a run without looks"
PUBLISHED, PUBLISHED_LOOKING = "the published rule, between two looks", "the published rule, with a look"
BETWEEN, LOOKING = "by the update, between two looks", "by the update, with a look"
#: By what is set of the calibration, and whether the step begins with a look.
STEPS: tuple[tuple[dict[str, Any], dict[bool, str]], ...] = (
    ({"kind": "published", "look_every": 0}, {False: UNWATCHED}),
    ({"kind": "published"}, {False: PUBLISHED, True: PUBLISHED_LOOKING}),
    ({"kind": "update"}, {False: BETWEEN, True: LOOKING}),
)


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


def prepared(calibration: dict[str, Any], store: Store) -> Training:
    """A run of the tiny Mistral with adapters, before its first step; what is not said is the default."""
    config = RunConfig.model_validate({
        "model": {"name": "tiny-mistral", "method": "lora"},
        "objective": "dpo",
        "calibration": {"enabled": True, **calibration},
        "data": {"train_pairs": 320, "eval_pairs": 16},
        "train": {"batch_size": 8, "micro_batch_size": 4, "probe_pairs": 8},
    })  # fmt: skip
    return prepare(Job(config, store, run_id(config), "traced"), 0, 1)


def traced(training: Training) -> dict[bool, Counter[str]]:
    """The files of the first step without a look, and of the next one with it, by whether there is a look."""
    state, fresh = training.state, training.fresh
    state.policy.model.train()
    ahead = Ahead(state.policy, training.data.pairs, training.schedule)
    files: dict[bool, Counter[str]] = {}
    between = False  # a run begins with a look at every step
    for step in range(training.schedule.total_steps):
        batches, shown = ahead.at(step), fresh.at(step) if fresh else None
        seen = files_of(lambda b=batches, s=shown, n=step + 1: optimizer_step(state, b, n, s))
        between = between or shown is None
        if between:
            files.setdefault(shown is not None, seen)
        if len(files) == (2 if fresh else 1):
            break
    return files


def traced_steps() -> dict[str, Counter[str]]:
    """The files of calibrated LoRA steps, by what is computed in them."""
    steps = {}
    with tempfile.TemporaryDirectory() as folder:
        for calibration, names in STEPS:
            files = traced(prepared(calibration, Store.open(folder)))
            steps |= {name: files[looks] for looks, name in names.items()}
    return steps


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
