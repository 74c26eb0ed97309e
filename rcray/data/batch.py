"""The tensors of a batch; which pairs are in it is said by schedule.py."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from rcray.data.encoded import EncodedPair


@dataclass(frozen=True)
class Side:
    """One side of a batch: prompt and answer per row, right-padded."""

    ids: Tensor  # [pairs, tokens]
    attention: Tensor  # [pairs, tokens] 1 on real tokens
    response: Tensor  # [pairs, tokens] 1 on answer tokens
    #: [answer tokens] where the one before each lies among all pairs' tokens: a device would be waited for to tell.
    places: Tensor | None = None

    @property
    def predicts(self) -> Tensor:
        """The places, counted where they were not given."""
        if self.places is not None:
            return self.places
        before = torch.nn.functional.pad(self.response[:, 1:], (0, 1))
        return before.flatten().nonzero().squeeze(1)

    def to(self, device: torch.device) -> "Side":
        """The same side on a device."""
        return Side(*(moved(t, device) for t in (self.ids, self.attention, self.response, self.predicts)))


@dataclass(frozen=True)
class Batch:
    """A micro-batch of pairs on one worker."""

    index: Tensor  # [pairs] positions in the encoded split
    chosen: Side
    rejected: Side
    same_prompts: bool = True  # whether both answers of a pair follow the same prompt
    weights: Tensor | None = None  # [2, pairs] of the objective's two terms; None: 1 each
    mismatched: Side | None = None  # this worker's share of prompts with answers to other ones, where they are read
    fresh: Tensor | None = None  # [pairs] whether a pair's prompts were not trained on before; None: all are fresh

    @property
    def tokens(self) -> int:
        """Real tokens read by the forward."""
        return int(self.chosen.attention.sum() + self.rejected.attention.sum())

    def to(self, device: torch.device) -> "Batch":
        """The same batch on a device."""
        return replace(
            self, index=moved(self.index, device), chosen=self.chosen.to(device), rejected=self.rejected.to(device)
        )


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor on a device. To a GPU it goes through pinned memory, which is the way that nobody waits for."""
    if tensor.device.type != "cpu" or device.type in ("cpu", "meta"):
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)  # pinned ones are taken as they are


def collate(
    pairs: Sequence[EncodedPair],
    index: Sequence[int],
    weights: np.ndarray | None = None,
    mismatched: Side | None = None,
    fresh: np.ndarray | None = None,
) -> Batch:
    """Pads the chosen and the rejected side of the pairs at `index`; `weights` [pairs, 2], `fresh` are of all pairs."""
    rows = [pairs[i] for i in index]
    return Batch(
        torch.tensor(list(index)),
        _pad([(pair.prompt, pair.chosen) for pair in rows]),
        _pad([pair.rejected_row for pair in rows]),
        all(pair.prompt_l is None for pair in rows),
        None if weights is None else torch.from_numpy(weights[list(index)].T.copy()),
        mismatched,
        None if fresh is None else torch.from_numpy(fresh[list(index)]),
    )


def mismatched(
    pairs: Sequence[EncodedPair],
    index: Sequence[int],
    longest: int,
    weights: np.ndarray | None = None,
    *,
    rank: int = 0,
    workers: int = 1,
) -> Side:
    """Every prompt of a micro-batch with the answer to another: rows in order, chosen first, answers moved on by one.

    `index` is the micro-batch of all workers; the rows made of it are dealt out to them. A row of unpaired data that
    stands in several pairs is there once, and not at all where it weighs nothing. A row keeps at most `longest` tokens.
    """
    rows: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    for side in (0, 1):
        seen: set[int] = set()
        for i in index:
            pair = pairs[i]
            if pair.behind is not None:
                if pair.behind[side] in seen or (weights is not None and not weights[i, side]):
                    continue
                seen.add(pair.behind[side])
            rows.append(pair.rejected_row if side else (pair.prompt, pair.chosen))
    moved = [(rows[i][0], rows[i - 1][1]) for i in range(len(rows))]
    return _pad([(prompt, answer[: max(1, longest - len(prompt))]) for prompt, answer in moved[rank::workers]])


def _pad(rows: list[tuple[tuple[int, ...], tuple[int, ...]]]) -> Side:
    width = max(len(prompt) + len(answer) for prompt, answer in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)  # id 0 under a zero mask: never read
    attention = torch.zeros(len(rows), width, dtype=torch.long)
    response = torch.zeros(len(rows), width, dtype=torch.long)
    places = []
    for i, (prompt, answer) in enumerate(rows):
        end = len(prompt) + len(answer)
        ids[i, :end] = torch.tensor(prompt + answer)
        attention[i, :end] = 1
        response[i, len(prompt) : end] = 1  # by position: where pad == eos, a mask by id would hide the real eos
        places.append(torch.arange(max(len(prompt), 1) - 1, end - 1) + i * width)
    return Side(ids, attention, response, torch.cat(places))
