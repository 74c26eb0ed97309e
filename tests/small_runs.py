"""Runs of a few steps on the tiny model."""

from collections.abc import Callable, Iterable
from typing import Any

from rcray.config import RunConfig, run_id
from rcray.config.data import DataConfig
from rcray.data.dialogue import Pair, Skipped
from rcray.data.encode import EncodedPairs, EncodeReport, encode_stream, require_pairs
from rcray.store import Store
from rcray.train.dynamics import read_dynamics

#: Columns that differ between two equal runs: they measure the machine, not the training.
MACHINE_COLUMNS = ("seconds", "padding")
SMALL = {
    "data": {"train_pairs": 64, "eval_pairs": 16},
    "train": {
        "batch_size": 8,
        "micro_batch_size": 4,
        "learning_rate": 1e-4,
        "probe_every": 3,
        "probe_pairs": 8,
    },
    "execution": {"checkpoint_every": 3},
}


def small_config(**settings: object) -> RunConfig:
    """A run of 8 steps; `settings` are sections merged over the small defaults."""
    content: dict = {name: dict(section) for name, section in SMALL.items()}
    for name, value in settings.items():
        content[name] = {**content.get(name, {}), **value} if isinstance(value, dict) else value
    return RunConfig.model_validate(content)


class Killed(BaseException):
    """Stands for a signal: nothing in the loop may catch it."""


def kill_at(step: int) -> Callable[[dict[str, Any]], None]:
    """An `on_step` that ends the run right after that step."""

    def kill(row: dict[str, Any]) -> None:
        if row["step"] == step:
            raise Killed

    return kill


def records(store: Store, config: RunConfig) -> Any:
    """All step records of a run, without what measures the machine."""
    return read_dynamics(store.run(run_id(config)).dynamics).drop_columns(list(MACHINE_COLUMNS)).to_pandas()


def encode_pairs(pairs: Iterable[Pair | Skipped], tokenizer: Any, config: DataConfig) -> EncodedPairs:
    """Encodes every usable pair in memory; raises if none is left."""
    report = EncodeReport()
    encoded = tuple(encode_stream(pairs, tokenizer, config, report))
    require_pairs(report, "data")
    return EncodedPairs(encoded, report)
