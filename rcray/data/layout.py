"""How the pairs of a micro-batch lie in one forward: as two rows each, as one side alone, or as one packed row.

    two rows     prompt chosen                 packed     prompt chosen rejected
                 prompt rejected

In a packed row both answers read the prompt and not each other, so the prompt is computed once: tokens per pair fall
from 2 P + W + L to P + W + L. Positions of the rejected answer start again after the prompt.

Padding is on the right, where causal attention never reads it: plain rows need no mask at all.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from rcray.data.batch import Batch, Side

CHOSEN, REJECTED = 0, 1
#: Packing has to spare at least this share of the tokens: its mask costs attention the shortcut for causal rows.
WORTH_PACKING = 0.12
#: On a GPU it has to spare this share of the arithmetic. A kernel that takes a mask computes what it hides, too, and is
#: slower than the one for causal rows by about this factor.
_WORTH_ON_GPU, _MASKED = 0.05, 1.5


@dataclass(frozen=True)
class Layout:
    """The tensors of one forward, and where the answers are in it. Answer tokens: all chosen first, then rejected."""

    ids: Tensor  # [rows, tokens]
    lengths: Tensor  # [rows] real tokens
    predicts: Tensor  # [answers] position (row * tokens + column) of the hidden state that predicts each answer token
    targets: Tensor  # [answers] the answer tokens
    pair: Tensor  # [answers] which pair they belong to
    place: Tensor  # [answers] how many answer tokens came before
    counts: Tensor  # [sides, pairs] answer tokens
    longest: int  # tokens of the longest answer
    span: int  # tokens from the first to the last that predicts an answer, in the row where they are most
    split: int  # answer tokens before it are chosen ones
    sides: tuple[int, ...]  # which sides lie here
    row_pair: Tensor  # [rows]
    row_side: Tensor | None  # [rows]; None where a row holds both
    # Packed rows only:
    positions: Tensor | None = None  # [rows, tokens]
    segments: Tensor | None = None  # [rows, tokens] 0 prompt and padding, 1 chosen, 2 rejected
    unpacked: Tensor | None = None  # [2 rows, tokens'] column each token of two plain rows has in the packed row

    @property
    def packed(self) -> bool:
        """Whether a row holds both answers."""
        return self.segments is not None

    @property
    def pairs(self) -> int:
        """Pairs in it."""
        return self.counts.shape[1]

    @property
    def tokens(self) -> int:
        """Real tokens read by the forward."""
        return int(self.lengths.sum())

    @property
    def padded(self) -> int:
        """Tokens the forward computes, padding included."""
        return self.ids.numel()

    def to(self, device: torch.device) -> "Layout":
        """The same layout on a device."""
        if device.type == "cpu":
            return self
        source = self.pinned()
        return source._each(lambda tensor: tensor.to(device, non_blocking=True))

    def pinned(self) -> "Layout":
        """The same layout in pinned memory, from which nobody waits for a copy to a GPU."""
        return self._each(lambda tensor: tensor.pin_memory())

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Layout":
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        changed: dict[str, Any] = {name: change(v) for name, v in values.items() if isinstance(v, Tensor)}
        return replace(self, **changed)

    def block_mask(self) -> Any:
        """What FlexAttention skips, block by block: tokens after one's own, and in packed rows the other answer."""
        from torch.nn.attention.flex_attention import create_block_mask

        rows, width = self.ids.shape
        lengths, segments = self.lengths, self.segments

        def reads(row: Tensor, _head: Tensor, one: Tensor, other: Tensor) -> Tensor:
            allowed = (other <= one) & (other < lengths[row])
            if segments is not None:
                same = segments[row, other] == segments[row, one]
                allowed = allowed & ((segments[row, other] == 0) | same)  # not in place: it is compiled
            return allowed | (one == other)  # padding: no NaN

        return create_block_mask(reads, rows, None, width, width, device=str(self.ids.device))

    def mask(self) -> Tensor:
        """Who may read whom in packed rows, [rows, 1, tokens, tokens]: an answer reads the prompt and itself."""
        assert self.segments is not None
        column = torch.arange(self.ids.shape[1], device=self.ids.device)
        real = column < self.lengths[:, None]
        reads, read = self.segments[:, :, None], self.segments[:, None, :]
        allowed = (column[None, :] <= column[:, None]) & ((read == 0) | (read == reads)) & real[:, None, :]
        return (allowed | torch.eye(len(column), dtype=torch.bool, device=column.device))[:, None]  # padding: no NaN

    def matrix(self, values: Tensor, side: int) -> Tensor:
        """Values of one side's answer tokens as [pairs, longest], zero beyond each answer."""
        part = slice(None, self.split) if side == CHOSEN else slice(self.split, None)
        empty = values.new_zeros(self.pairs, self.longest)
        return empty.index_put((self.pair[part], self.place[part]), values[part])

    @property
    def plain_rows(self) -> "Layout":
        """The two-row layout a packed one unfolds to: what lies above the block where it is unfolded. Else itself."""
        return self if self.segments is None or self.unpacked is None else self._unfolded

    @cached_property
    def _unfolded(self) -> "Layout":
        assert self.segments is not None and self.unpacked is not None
        width = self.unpacked.shape[1]
        prompt = (self.segments == 0).sum(1) - (self.ids.shape[1] - self.lengths)
        row = self.pair.clone()
        row[self.split :] += self.pairs
        both = torch.arange(self.pairs, device=self.ids.device)
        return replace(
            self,
            ids=self.ids.repeat(2, 1).gather(1, self.unpacked),
            lengths=torch.cat([prompt + count for count in self.counts]),
            predicts=row * width + prompt[self.pair] + self.place - 1,
            span=self.longest,
            row_pair=both.repeat(2),
            row_side=torch.arange(2, device=both.device).repeat_interleave(self.pairs),  # CHOSEN, REJECTED
            positions=None,
            segments=None,
            unpacked=None,
        )

    @cached_property
    def answer_columns(self) -> Tensor:
        """Columns of the tokens that predict answers, [rows, span]; a shorter row goes on beyond its last one."""
        rows, width = self.ids.shape
        first = self.predicts.new_full((rows,), width - 1)
        first = first.scatter_reduce(0, self.predicts // width, self.predicts % width, "amin")
        columns = first[:, None] + torch.arange(self.span, device=first.device)
        return columns.clamp(max=width - 1)  # the last column predicts nothing

    def row_seeds(self, seed_w: Tensor, seed_l: Tensor) -> Tensor:
        """What belongs to each row of two sides, [rows], from values per pair."""
        assert self.row_side is not None
        return torch.where(self.row_side == CHOSEN, seed_w[self.row_pair], seed_l[self.row_pair])

    def token_seeds(self, seed_w: Tensor, seed_l: Tensor) -> Tensor:
        """What belongs to each answer token, [answers], from values per pair."""
        return torch.cat([seed_w[self.pair[: self.split]], seed_l[self.pair[self.split :]]])


@dataclass(frozen=True)
class LaidOut(Batch):
    """A micro-batch whose layout was made ahead, in pinned memory: one forward of both sides."""

    layout: Layout | None = None


def longest_row(batch: Batch) -> int:
    """Tokens of the longest plain row."""
    return int(max(side.attention.sum(1).max() for side in (batch.chosen, batch.rejected)))


def worth_packing(batch: Batch, hidden: int | None = None, *, skips: bool = False) -> bool:
    """Whether one packed row per pair is clearly less to compute than two rows, padding included.

    Args:
        batch: the pairs.
        hidden: hidden units of a model on a GPU, by which its layers weigh against attention; None: on a CPU.
        skips: attention by a kernel that leaves out what a mask hides.
    """
    if not batch.same_prompts:
        return False
    prompt, chosen, rejected = _sizes(batch)
    row, wide = longest_row(batch), int((prompt + chosen + rejected).max())
    if hidden is None:
        return len(prompt) * wide < (1 - WORTH_PACKING) * 2 * len(prompt) * row
    # Multiplications of a block, per pair and in units of its hidden size: 12 h in its layers for each token, 2 in
    # attention for each token that a token reads.
    plain = 2 * (12 * hidden * row + row**2)
    packed = 12 * hidden * wide + (1 if skips else 2 * _MASKED) * wide**2
    return packed < (1 - _WORTH_ON_GPU) * plain


def two_rows(batch: Batch) -> Layout:
    """Both sides in one forward, chosen rows first."""
    (prompt_w, chosen), (prompt_l, rejected) = _of_side(batch.chosen), _of_side(batch.rejected)
    pairs = len(chosen)
    width = longest_row(batch)
    longest = int(torch.maximum(chosen, rejected).max())
    ids = torch.zeros(2 * pairs, width, dtype=torch.long)
    for first, side in ((0, batch.chosen), (pairs, batch.rejected)):
        _copy(ids[first : first + pairs], side)
    answers = [_answers(prompt_w, chosen, width), _answers(prompt_l, rejected, width, row=pairs)]
    predicts, pair, place = (torch.cat(parts) for parts in zip(*answers, strict=True))
    both = torch.arange(pairs)
    return Layout(
        ids,
        torch.cat([prompt_w + chosen, prompt_l + rejected]),
        predicts,
        ids.flatten()[predicts + 1],
        pair,
        place,
        torch.stack([chosen, rejected]),
        longest,
        longest,
        int(chosen.sum()),
        (CHOSEN, REJECTED),
        both.repeat(2),
        both.new_tensor([CHOSEN, REJECTED]).repeat_interleave(pairs),
    )


def one_side(batch: Batch, side: int) -> Layout:
    """The rows of one side alone: its own graph, so that its backward can be kept apart."""
    rows = (batch.chosen, batch.rejected)[side]
    prompt, count = _of_side(rows)
    pairs, longest = len(prompt), int(count.max())
    ids = torch.zeros(pairs, int((prompt + count).max()), dtype=torch.long)
    _copy(ids, rows)
    predicts, pair, place = _answers(prompt, count, ids.shape[1])
    return Layout(
        ids,
        prompt + count,
        predicts,
        ids.flatten()[predicts + 1],
        pair,
        place,
        count[None],
        longest,
        longest,
        len(predicts) if side == CHOSEN else 0,
        (side,),
        torch.arange(pairs),
        torch.full((pairs,), side),
    )


def packed(batch: Batch) -> Layout:
    """One row per pair: prompt, chosen, rejected; only for pairs whose answers follow the same prompt."""
    assert batch.same_prompts
    prompt, chosen, rejected = _sizes(batch)
    pairs = len(prompt)
    width = int((prompt + chosen + rejected).max())
    ids = torch.zeros(pairs, width, dtype=torch.long)
    segments = torch.zeros(pairs, width, dtype=torch.int8)
    positions = torch.arange(width).repeat(pairs, 1)
    unpacked = torch.arange(longest_row(batch)).clamp(max=width - 1).repeat(2 * pairs, 1)
    for i, (p, w, l) in enumerate(zip(prompt.tolist(), chosen.tolist(), rejected.tolist(), strict=True)):  # noqa: E741
        ids[i, : p + w] = _real(batch.chosen, i)
        ids[i, p + w : p + w + l] = _real(batch.rejected, i)[p:]
        segments[i, p : p + w], segments[i, p + w : p + w + l] = 1, 2
        positions[i, p + w :] -= w
        unpacked[pairs + i, p : p + l] += w
    first = _answers(prompt, chosen, width)
    second = _answers(prompt, rejected, width, skip=chosen)
    predicts, pair, place = (torch.cat(parts) for parts in zip(first, second, strict=True))
    targets = torch.cat([ids.flatten()[first[0] + 1], _targets_of(batch.rejected, prompt, rejected)])
    return Layout(
        ids,
        prompt + chosen + rejected,
        predicts,
        targets,
        pair,
        place,
        torch.stack([chosen, rejected]),
        int(torch.maximum(chosen, rejected).max()),
        int((chosen + rejected).max()),
        int(chosen.sum()),
        (CHOSEN, REJECTED),
        torch.arange(pairs),
        None,
        positions,
        segments,
        unpacked,
    )


def _of_side(side: Side) -> tuple[Tensor, Tensor]:
    """Tokens of prompt and answer, [pairs] each."""
    answers = side.response.sum(1)
    return side.attention.sum(1) - answers, answers


def _sizes(batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens of the prompt that both answers follow, of chosen and of rejected, [pairs] each."""
    return *_of_side(batch.chosen), batch.rejected.response.sum(1)


def _real(side: Side, row: int) -> Tensor:
    return side.ids[row][side.attention[row].bool()]


def _copy(ids: Tensor, side: Side) -> None:
    """The real tokens of a side, moved to the left; a batch may have been padded on either side."""
    for row in range(len(ids)):
        real = _real(side, row)
        ids[row, : len(real)] = real


def _answers(
    prompt: Tensor, counts: Tensor, width: int, *, row: int = 0, skip: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Where each answer token is predicted, its pair and its place; `skip` tokens lie between prompt and answer."""
    pair = torch.arange(len(counts)).repeat_interleave(counts)
    starts = counts.cumsum(0) - counts
    place = torch.arange(len(pair)) - starts[pair]
    column = prompt[pair] + place - 1
    if skip is not None:  # the first token of the answer is still predicted by the end of the prompt
        column = column + torch.where(place > 0, skip[pair], 0)
    return (row + pair) * width + column, pair, place


def _targets_of(side: Side, prompt: Tensor, counts: Tensor) -> Tensor:
    rows = zip(prompt.tolist(), counts.tolist(), strict=True)
    return torch.cat([_real(side, i)[p : p + n] for i, (p, n) in enumerate(rows)])
