"""What an optimizer will make of a gradient, read off its moments, over the coordinates that are looked at."""

import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from rcray.calibration.scores import Reduce

#: Coordinates that a look keeps at most; of more, a fixed random share stands for the rest.
MOST_COORDINATES = 2**21


@dataclass(frozen=True)
class AdamPreview:
    """AdamW, from its own moments: u = kept + per_gradient * gradient, without making it.

    `settles`: by how much a gradient that lasts counts for more than in its own step.
    """

    m: Tensor
    v: Tensor
    steps: int  # made so far
    rate: float
    betas: tuple[float, float]
    eps: float
    decay: Tensor | float = 0.0  # what weight decay takes off in one step
    relative: Tensor | None = None  # each coordinate's learning rate over `rate`, where groups have different ones

    @property
    def _unbiased(self) -> float:
        return float(1 - self.betas[0] ** (self.steps + 1))

    @property
    def settles(self) -> float:
        """The inverse of a gradient's share in the momentum of its own step."""
        return self._unbiased / (1 - self.betas[0])

    def kept(self) -> Tensor:
        """The momentum; scaled by the second moment as it stands, since the coming gradient is not known."""
        scale = -self.rate * self.betas[0] / self._unbiased
        return _each(self.m.mul(scale).div_(self._root(None)), self.relative).sub_(self.decay)

    def per_gradient(self, gradient: Tensor) -> Tensor:
        """As torch.optim.AdamW scales it."""
        scale = -self.rate * (1 - self.betas[0]) / self._unbiased
        return _each(self._root(gradient).reciprocal_().mul_(scale), self.relative)

    def update(self, gradient: Tensor) -> Tensor:
        """The whole update, as torch.optim.AdamW makes it."""
        first = self.betas[0]
        m = self.m.mul(first).add_(gradient, alpha=1 - first).div_(self._unbiased)
        return _each(m.div_(self._root(gradient)).mul_(-self.rate), self.relative).sub_(self.decay)

    def without(self, gradient: Tensor, ago: int) -> "AdamPreview":
        """As if a gradient had not gone into the momentum; 1: that of the last step."""
        first = self.betas[0]
        return replace(self, m=self.m.sub(gradient, alpha=first ** (ago - 1) * (1 - first)))

    def traces(self, gradient: Tensor, steps: int) -> Tensor:
        """What a gradient has moved within so many steps, its own the first of them; scaled as the next one will be."""
        return self.per_gradient(gradient).mul_(gradient).mul_(_geometric(self.betas[0], steps))

    def _root(self, gradient: Tensor | None) -> Tensor:
        second, steps = self.betas[1], self.steps
        if gradient is None:
            return self.v.div(1 - second ** max(steps, 1)).sqrt_().add_(self.eps)
        v = self.v.mul(second).addcmul_(gradient, gradient, value=1 - second)
        return v.div_(1 - second ** (steps + 1)).sqrt_().add_(self.eps)


@dataclass(frozen=True)
class SgdPreview:
    """Plain gradient descent, with or without momentum."""

    buffer: Tensor  # zeros: no momentum, or no step yet
    rate: float
    momentum: float
    decay: Tensor | float = 0.0
    relative: Tensor | None = None

    @property
    def settles(self) -> float:
        """The sum of what momentum makes of a gradient."""
        return 1 / (1 - self.momentum)

    def kept(self) -> Tensor:
        """The momentum."""
        return _each(self.buffer.mul(-self.rate * self.momentum), self.relative).sub_(self.decay)

    def per_gradient(self, gradient: Tensor) -> Tensor:
        """The learning rate."""
        return _each(torch.full_like(gradient, -self.rate), self.relative)

    def update(self, gradient: Tensor) -> Tensor:
        """The whole update, as torch.optim.SGD makes it."""
        gradient = gradient if self.relative is None else gradient * self.relative
        return self.kept().add_(gradient, alpha=-self.rate)

    def without(self, gradient: Tensor, ago: int) -> "SgdPreview":
        """As if a gradient had not gone into the momentum; 1: that of the last step."""
        return replace(self, buffer=self.buffer.sub(gradient, alpha=self.momentum ** (ago - 1)))

    def traces(self, gradient: Tensor, steps: int) -> Tensor:
        """What a gradient has moved within so many steps, its own the first of them."""
        return _each(gradient.mul(-self.rate * _geometric(self.momentum, steps)), self.relative)


def _each(update: Tensor, relative: Tensor | None) -> Tensor:
    """With each coordinate's own learning rate, in place."""
    return update if relative is None else update.mul_(relative)


def _geometric(memory: float, steps: int) -> float:
    """1 + memory + memory^2 + ..., so many terms."""
    return (1 - memory**steps) / (1 - memory)


class Coordinates:
    """Which entries of the trained parameters a look reads: all, or a share drawn once."""

    def __init__(self, parameters: Sequence[Tensor], rank: int, reduce: Reduce | None, most: int = MOST_COORDINATES):
        sharded = any(is_sharded(p) for p in parameters)
        self.reduce = reduce if sharded else None  # whole parameters are the same on every worker
        # Of a sharded model each worker reads its shards; what all of them hold is read by the first.
        self.mine = [is_sharded(p) or not sharded or rank == 0 for p in parameters]
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
        return torch.cat([part.to(torch.promote_types(part.dtype, torch.float32)) for part in parts])

    def spread(self, values: Sequence[float], parameters: Sequence[Tensor]) -> Tensor:
        """One number per parameter at each of its entries."""
        counts = [
            _local(p).numel() if index is None else len(index) for p, index in zip(parameters, self.index, strict=True)
        ]
        parts = zip(values, counts, self.mine, strict=True)
        device = _local(parameters[0]).device
        return torch.cat([torch.full((count,), value, device=device) for value, count, mine in parts if mine])

    def total(self, partial: Tensor) -> Tensor:
        """From a product over these entries to one over all."""
        whole = partial if self.reduce is None else self.reduce.sum(partial)
        return whole / self.share


def is_sharded(tensor: Tensor) -> bool:
    """Where nobody imported torch's sharded tensors, which takes a second, there is none."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def _local(tensor: Any) -> Tensor:
    whole: Tensor = tensor.to_local() if is_sharded(tensor) else tensor
    return whole


def preview_of(
    optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter], coordinates: Coordinates
) -> AdamPreview | SgdPreview | None:
    """What this optimizer would do next; None where its memory cannot be read.

    So it is with 8-bit moments, Nesterov's, and groups that differ in anything but learning rate and weight decay.
    """
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

    groups = optimizer.param_groups
    if any(g.get(name) for g in groups for name in ("amsgrad", "maximize", "nesterov", "dampening")):
        return None
    if any(g.get(name) != group.get(name) for g in groups for name in ("betas", "eps", "momentum")):
        return None
    of_group = {p: (float(g["lr"]), float(g["lr"]) * g.get("weight_decay", 0.0)) for g in groups for p in g["params"]}
    rates, decays = zip(*(of_group[p] for p in parameters), strict=True)
    rate = max(rates)
    relative = coordinates.spread([r / rate for r in rates], parameters) if rate > min(rates) else None
    decay: Tensor | float = 0.0
    if len(set(decays)) > 1:
        decay = flat([p.detach() * d for p, d in zip(parameters, decays, strict=True)])
    elif decays[0]:  # of the weights only what is read is multiplied
        decay = flat(parameters) * decays[0]
    if isinstance(optimizer, torch.optim.SGD):
        return SgdPreview(kept("momentum_buffer"), rate, group["momentum"], decay, relative)
    if isinstance(optimizer, torch.optim.AdamW):
        steps = _steps_made(optimizer, states[0])
        moments = kept("exp_avg"), kept("exp_avg_sq")
        return AdamPreview(*moments, steps, rate, group["betas"], group["eps"], decay, relative)
    return None


#: Steps that optimizers made; None: to be read.
_STEPS: "weakref.WeakKeyDictionary[torch.optim.Optimizer, int | None]" = weakref.WeakKeyDictionary()


def _steps_made(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> int:
    """Off the CPU read once, then counted: AdamW in one kernel keeps the number there, where reading it would wait."""
    if _on_cpu(optimizer):
        return int(state.get("step", 0))
    if optimizer not in _STEPS:
        _STEPS[optimizer] = None
        optimizer.register_step_post_hook(_count)
        optimizer.register_load_state_dict_post_hook(_forget)
    known = _STEPS[optimizer]
    if known is None:
        known = _STEPS[optimizer] = int(state.get("step", 0))
    return known


def _on_cpu(optimizer: torch.optim.Optimizer) -> bool:
    trained: Tensor = optimizer.param_groups[0]["params"][0]
    return trained.device.type == "cpu"


def _count(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    known = _STEPS[optimizer]
    _STEPS[optimizer] = None if known is None else known + 1


def _forget(optimizer: torch.optim.Optimizer) -> None:
    _STEPS[optimizer] = None
