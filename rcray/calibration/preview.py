"""Reads off an optimizer what it will make of a gradient: its moments, over the coordinates that are looked at."""

import sys
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rcray.calibration.scores import Reduce
from rcray.calibration.update import AdamPreview, SgdPreview

#: Coordinates that a look keeps at most; of more, a fixed random share stands for the rest.
MOST_COORDINATES = 2**21


class Coordinates:
    """Which entries of the trained parameters a look reads: all, or a share drawn once."""

    def __init__(self, parameters: Sequence[Tensor], rank: int, reduce: Reduce | None, most: int = MOST_COORDINATES):
        sharded = any(_is_sharded(p) for p in parameters)
        self.reduce = reduce if sharded else None  # whole parameters are the same on every worker
        # Of a sharded model each worker reads its shards; what all of them hold is read by the first.
        self.mine = [_is_sharded(p) or not sharded or rank == 0 for p in parameters]
        everything = sum(p.numel() for p in parameters)
        self.share = min(1.0, most / everything)
        self.index: list[Tensor | None] = [None] * len(parameters)
        if self.share < 1:
            generator = torch.Generator().manual_seed(0)
            for i, p in enumerate(parameters):
                count = _local(p).numel()
                drawn = torch.randperm(count, generator=generator)[: round(self.share * count)]
                self.index[i] = drawn.sort().values.to(_local(p).device)

    def flat(self, tensors: Sequence[Tensor]) -> Tensor:
        """These entries of one tensor per parameter, as one vector."""
        parts = [
            _local(tensor.detach()).reshape(-1) if index is None else _local(tensor.detach()).reshape(-1)[index]
            for tensor, index, mine in zip(tensors, self.index, self.mine, strict=True)
            if mine
        ]
        return torch.cat([part.float() for part in parts])

    def total(self, partial: Tensor) -> Tensor:
        """From a product over these entries to one over all."""
        whole = partial if self.reduce is None else self.reduce.sum(partial)
        return whole / self.share


def _is_sharded(tensor: Tensor) -> bool:
    """Where nobody imported torch's sharded tensors, which takes a second, there is none."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def _local(tensor: Any) -> Tensor:
    whole: Tensor = tensor.to_local() if _is_sharded(tensor) else tensor
    return whole


def preview_of(
    optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter], coordinates: Coordinates
) -> AdamPreview | SgdPreview | None:
    """What this optimizer would do next; None where its memory cannot be read (8-bit moments, Nesterov's, others)."""
    group: dict[str, Any] = optimizer.param_groups[0]
    flat = coordinates.flat
    states = [optimizer.state.get(p, {}) for p in parameters]

    def kept(name: str) -> Tensor:
        """A moment of every parameter; zero before the first step."""
        return flat(
            [
                s[name] if s.get(name) is not None else torch.zeros_like(p)
                for s, p in zip(states, parameters, strict=True)
            ]
        )

    decays = {p: g["lr"] * g.get("weight_decay", 0.0) for g in optimizer.param_groups for p in g["params"]}
    decay = flat([p.detach() * decays[p] for p in parameters]) if any(decays.values()) else 0.0
    variants = ("amsgrad", "maximize", "nesterov", "dampening")
    if any(g.get(name) for g in optimizer.param_groups for name in variants):
        return None
    if isinstance(optimizer, torch.optim.SGD):
        return SgdPreview(kept("momentum_buffer"), group["lr"], group["momentum"], decay)
    if isinstance(optimizer, torch.optim.AdamW):
        steps = int(states[0].get("step", 0))
        return AdamPreview(kept("exp_avg"), kept("exp_avg_sq"), steps, group["lr"], group["betas"], group["eps"], decay)
    return None
