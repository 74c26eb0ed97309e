"""Whole runs of the tiny models, in this process, for benchmarks that compare what training did."""

import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import torch

import rcray.models.tiny as tiny
from rcray.config import RunConfig
from rcray.records.status import RunStatus
from rcray.store import Store
from rcray.train.dynamics import read_dynamics
from rcray.train.loop import Job, Training, prepare

PAIRS = 256  # held out, and all of them looked at


@dataclass(frozen=True)
class Case:
    """A start model, pairs and an optimisation; everything but the calibration and the seed."""

    objective: str = "dpo"
    model: str = "tiny-neox"
    method: str = "full"
    warm_up: int = 160  # SFT steps of the start model
    difficulty: str = "medium"
    rate: float = 5e-5
    batch: int = 8
    steps: int = 200
    epochs: int = 1
    likelihood: str = "sum"
    params: dict[str, Any] = field(default_factory=dict)
    schedule: dict[str, Any] = field(default_factory=dict)  # of the learning rate

    def config(self, seed: int, **calibration: Any) -> RunConfig:
        """One run of it."""
        lora = {"lora": {"r": 8, "alpha": 16}} if self.method == "lora" else {}
        settings = {
            "model": {"name": self.model, "method": self.method, **lora},
            "data": {
                "name": "synthetic",
                "difficulty": self.difficulty,
                "train_pairs": self.steps * self.batch // self.epochs,
                "eval_pairs": PAIRS,
            },
            "objective": {"name": self.objective, **self.params},
            "likelihood": self.likelihood,
            "calibration": calibration,
            "train": {
                "batch_size": self.batch,
                "micro_batch_size": 4,
                "learning_rate": self.rate,
                "seed": seed,
                "epochs": self.epochs,
                "probe_pairs": PAIRS,
                **self.schedule,
            },
            "execution": {"checkpoint_every": 10**6},
        }
        return RunConfig.model_validate(settings)


def ready(case: Case, config: RunConfig, directory: Path, name: str) -> Training:
    """The run before its first step. Start models are kept in the directory, by their warm-up."""
    torch.set_num_threads(1)
    with _warmed_up(case.warm_up):
        store = Store(directory / f"warm-up-{case.warm_up}")
        training = prepare(Job(config, store, name, "benchmark"), 0, 1)
    training.job.run.path.mkdir(parents=True, exist_ok=True)
    training.start()
    return training


def whole_run(case: Case, config: RunConfig, directory: Path, name: str) -> tuple[pd.DataFrame, RunStatus]:
    """Its records, and how it ended."""
    training = ready(case, config, directory, name)
    training.run()
    return read_dynamics(training.job.run.dynamics).to_pandas(), training.job.run.read_status()


def logged(path: Path | None) -> list[dict[str, Any]]:
    """The runs that a log already holds, a JSON line each."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path and path.exists() else []


def log(path: Path | None, run: dict[str, Any]) -> None:
    """Appends a run, where a log is kept."""
    if path:
        with path.open("a") as file:
            file.write(json.dumps(run) + "\n")


@contextmanager
def _warmed_up(steps: int) -> Iterator[None]:
    """Start models that were warmed up for this long."""
    kept = dict(tiny.TINY_MODELS)
    tiny.TINY_MODELS |= {name: dataclasses.replace(recipe, warm_up_steps=steps) for name, recipe in kept.items()}
    try:
        yield
    finally:
        tiny.TINY_MODELS |= kept
