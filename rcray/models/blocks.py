"""The blocks of a transformer: which is the last one that is trained through adapters, and what flows through it."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

#: A LoRA parameter inside a numbered block: `...layers.11.self_attn.q_proj.lora_A.default.weight`.
ADAPTER = re.compile(r"(.*?\.(\d+))\.[\w.]*lora_")


def blocks_of(body: nn.Module) -> nn.ModuleList:
    """The transformer blocks of a body: its longest list of modules."""
    lists = [module for module in body.children() if isinstance(module, nn.ModuleList)]
    if not lists:
        raise ValueError(f"{type(body).__name__} has no list of blocks")
    return max(lists, key=len)


@dataclass(frozen=True)
class AdapterBlock:
    """The last block with trainable adapters."""

    block: nn.Module
    layers: tuple[nn.Module, ...]  # the two factors of each adapter, as linear modules
    is_last: bool  # no block above it

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Weights of the factors."""
        return [layer.weight for layer in self.layers]  # type: ignore[misc]


def last_adapter_block(model: Any) -> AdapterBlock | None:
    """The highest-numbered block that has trainable adapters, if they are plain linear factors."""
    found = [
        (int(match.group(2)), match.group(1), name)
        for name, p in model.named_parameters()
        if p.requires_grad and (match := ADAPTER.match(name))
    ]
    if not found:
        return None
    number, prefix, _ = max(found)
    names = [name for n, p, name in found if (n, p) == (number, prefix)]
    layers = tuple(model.get_submodule(name.rpartition(".")[0]) for name in names if name.endswith(".weight"))
    if len(layers) != len(names) or any(type(layer) is not nn.Linear or layer.bias is not None for layer in layers):
        return None
    siblings = model.get_submodule(prefix.rpartition(".")[0])
    return AdapterBlock(model.get_submodule(prefix), layers, number == len(siblings) - 1)


#: Bytes a factor's gradients of single rows may take; beyond it they are summed anew for every question.
ROWS_BYTES = 64 * 2**20


@dataclass
class Flow:
    """What went into an adapter factor, and the gradient that came back to its output."""

    layer: nn.Linear
    inputs: Tensor
    gradient: Tensor | None = None

    def weight_gradient(self, rows: slice, scale: Tensor | None = None) -> Tensor:
        """Gradient of the weight from these rows, [outputs, inputs], each row times its scale."""
        weight = self.layer.weight
        if self.gradient is None:  # nothing above it depends on this factor
            return torch.zeros_like(weight)
        if len(self.gradient) * weight.numel() * self.gradient.element_size() <= ROWS_BYTES:
            single = self._of_rows[rows]
            total = single.sum(0) if scale is None else torch.tensordot(scale[rows].to(single.dtype), single, 1)
            return total.to(weight.dtype)
        gradient, inputs = self.gradient[rows], self.inputs[rows].to(self.gradient.dtype)
        if scale is not None:
            gradient = gradient * scale[rows, None, None].to(gradient.dtype)
        product = gradient.reshape(-1, gradient.shape[-1]).T @ inputs.reshape(-1, inputs.shape[-1])
        return product.to(weight.dtype)

    @cached_property
    def _of_rows(self) -> Tensor:
        """The gradient of each row, [rows, outputs, inputs]: both sides and the scaled sum are read off it."""
        assert self.gradient is not None
        return torch.bmm(self.gradient.transpose(1, 2), self.inputs.to(self.gradient.dtype))


@contextmanager
def watching(block: AdapterBlock) -> Iterator[list[Flow]]:
    """Records the flow through every adapter factor of the forward made within it; gradients arrive later."""
    flows: list[Flow] = []

    def after(layer: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        flow = Flow(layer, inputs[0].detach())
        flows.append(flow)
        if output.requires_grad:
            output.register_hook(lambda gradient: setattr(flow, "gradient", gradient))

    handles = [layer.register_forward_hook(after) for layer in block.layers]
    try:
        yield flows
    finally:
        for handle in handles:
            handle.remove()


@dataclass
class Cut:
    """A tensor of the forward, held apart from what computed it."""

    below: Tensor | None = None
    above: Tensor | None = None


@contextmanager
def cutting(block: nn.Module) -> Iterator[Cut]:
    """Parts the graph of the forward made within it at the input of `block`."""
    cut = Cut()

    def before(_block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], Any]:
        given = args[0] if args else kwargs["hidden_states"]
        cut.below, cut.above = given, given.detach().requires_grad_()
        if args:
            return (cut.above, *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": cut.above}

    handle = block.register_forward_pre_hook(before, with_kwargs=True)
    try:
        yield cut
    finally:
        handle.remove()
