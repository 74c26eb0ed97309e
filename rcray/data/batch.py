"""The tensors of a batch; which pairs are in it is said by schedule.py."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rcray.data.encoded import EncodedPair
from rcray.data.schedule import LookSchedule, Schedule, padding_share

__all__ = ["Batch", "LookSchedule", "Schedule", "Side", "collate", "moved", "padding_share"]


@dataclass(frozen=True)
class Side:
    """One side of a batch: prompt and answer per row, right-padded."""

    ids: Tensor  # [pairs, tokens]
    attention: Tensor  # [pairs, tokens] 1 on real tokens
    response: Tensor  # [pairs, tokens] 1 on answer tokens

    def to(self, device: torch.device) -> "Side":
        """The same side on a device."""
        return Side(moved(self.ids, device), moved(self.attention, device), moved(self.response, device))


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
        return Batch(moved(self.index, device), self.chosen.to(device), self.rejected.to(device))


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor on a device. To a GPU it goes through pinned memory, which is the way that nobody waits for."""
    if tensor.device.type != "cpu" or device.type == "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)  # pinned ones are taken as they are


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
