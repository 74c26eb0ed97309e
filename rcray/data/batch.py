"""Which pairs a step sees, and their tensors.

The order is a function of (seed, epoch), so the position in the data is the step number: nothing else has to be
saved to resume. A micro-batch is dealt out row by row to the workers; they never overlap.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from rcray.config.schema import RunConfig
from rcray.data.encode import EncodedPair
from rcray.errors import ConfigError


@dataclass(frozen=True)
class Side:
    """One side of a batch: prompt and answer per row, right-padded."""

    ids: Tensor  # [pairs, tokens]
    attention: Tensor  # [pairs, tokens] 1 on real tokens
    response: Tensor  # [pairs, tokens] 1 on answer tokens

    def to(self, device: torch.device) -> "Side":
        """The same side on a device."""
        return Side(self.ids.to(device), self.attention.to(device), self.response.to(device))


@dataclass(frozen=True)
class Batch:
    """A micro-batch of pairs on one worker."""

    index: Tensor  # [pairs] positions in the encoded split
    chosen: Side
    rejected: Side

    @property
    def tokens(self) -> int:
        """Real tokens read by the forward."""
        return int(self.chosen.attention.sum() + self.rejected.attention.sum())

    def to(self, device: torch.device) -> "Batch":
        """The same batch on a device."""
        return Batch(self.index.to(device), self.chosen.to(device), self.rejected.to(device))


def collate(pairs: Sequence[EncodedPair], index: Sequence[int]) -> Batch:
    """Pads the chosen and the rejected side of the pairs at `index`."""
    rows = [pairs[i] for i in index]
    return Batch(
        torch.tensor(list(index)),
        _pad([(pair.prompt, pair.chosen) for pair in rows]),
        _pad([(pair.prompt, pair.rejected) for pair in rows]),
    )


def _pad(rows: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> Side:
    width = max(len(prompt) + len(answer) for prompt, answer in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)  # id 0 under a zero mask: never read
    attention = torch.zeros(len(rows), width, dtype=torch.long)
    response = torch.zeros(len(rows), width, dtype=torch.long)
    for i, (prompt, answer) in enumerate(rows):
        end = len(prompt) + len(answer)
        ids[i, :end] = torch.tensor(prompt + answer)
        attention[i, :end] = 1
        response[i, len(prompt) : end] = 1  # by position: where pad == eos, a mask by id would hide the real eos
    return Side(ids, attention, response)


@lru_cache(maxsize=2)
def epoch_order(pairs: int, seed: int, epoch: int) -> list[int]:
    """The permutation of one epoch; kept, because every step of the epoch asks for it."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    return torch.randperm(pairs, generator=generator).tolist()


@dataclass(frozen=True)
class Schedule:
    """The order of pairs over a whole run."""

    pairs: int
    batch_size: int
    micro_batch_size: int
    epochs: int
    seed: int

    @classmethod
    def of(cls, config: RunConfig, pairs: int) -> "Schedule":
        """The schedule of a run over the pairs that survived encoding."""
        if pairs < config.train.batch_size:
            raise ConfigError(
                f"train.batch_size {config.train.batch_size}: only {pairs} usable pairs, not one step would be made",
                fix="lower train.batch_size or raise data.train_pairs",
            )
        train = config.train
        return cls(pairs, train.batch_size, train.micro_batch_size, train.epochs, train.seed)

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches in one pass; the incomplete last one is left out."""
        return self.pairs // self.batch_size

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the run."""
        return self.epochs * self.steps_per_epoch

    def micro_batches(self, step: int, rank: int = 0, workers: int = 1) -> list[list[int]]:
        """Positions of this worker's pairs in each micro-batch of a step, counting steps from 0."""
        epoch, position = divmod(step, self.steps_per_epoch)
        start = position * self.batch_size
        rows = epoch_order(self.pairs, self.seed, epoch)[start : start + self.batch_size]
        micro = self.micro_batch_size
        return [rows[i : i + micro][rank::workers] for i in range(0, self.batch_size, micro)]
