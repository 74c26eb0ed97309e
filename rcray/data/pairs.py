"""Preference pairs as text, before any tokenizer."""

from collections.abc import Sequence
from dataclasses import dataclass

from rcray.config.data import DataConfig
from rcray.data import synthetic


@dataclass(frozen=True)
class Pair:
    """One prompt with a chosen and a rejected answer; `row` names it in every message."""

    row: str
    prompt: str
    chosen: str
    rejected: str


@dataclass(frozen=True)
class PairSplits:
    """Pairs to train on, and held-out pairs for the probe and the preference metrics."""

    train: Sequence[Pair]
    held_out: Sequence[Pair]


def load_pairs(config: DataConfig) -> PairSplits:
    """The two splits of a dataset; they never share a row."""

    def split(name: str, count: int) -> list[Pair]:
        rows = synthetic.generate(count, difficulty=config.difficulty, seed=config.seed, split=name)
        return [Pair(f"{name}/{i}", *row) for i, row in enumerate(rows)]

    return PairSplits(split("train", config.train_pairs), split("held-out", config.eval_pairs))
