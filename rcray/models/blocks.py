"""The blocks of a transformer, and the last one that is trained through adapters."""

import re
from dataclasses import dataclass
from typing import Any

from torch import nn

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


@dataclass(frozen=True)
class LastAdapters:
    """Trainable adapter parameters of the highest-numbered block that has any."""

    block: str  # its name in the model
    number: int
    parameters: dict[str, nn.Parameter]  # by their names in the model


def last_adapters(model: nn.Module) -> LastAdapters | None:
    """Those of a model; None without adapters that are trained."""
    adapters = [
        (int(match.group(2)), match.group(1), name, p)
        for name, p in model.named_parameters()
        if p.requires_grad and (match := ADAPTER.match(name))
    ]
    if not adapters:
        return None
    number, block = max((number, block) for number, block, _, _ in adapters)
    return LastAdapters(block, number, {name: p for n, b, name, p in adapters if (n, b) == (number, block)})


def last_adapter_block(model: Any) -> AdapterBlock | None:
    """The highest-numbered block that has trainable adapters, if they are plain linear factors."""
    adapters = last_adapters(model)
    if adapters is None:
        return None
    names = list(adapters.parameters)
    layers = tuple(model.get_submodule(name.rpartition(".")[0]) for name in names if name.endswith(".weight"))
    if len(layers) != len(names) or any(type(layer) is not nn.Linear or layer.bias is not None for layer in layers):
        return None
    siblings = model.get_submodule(adapters.block.rpartition(".")[0])
    return AdapterBlock(model.get_submodule(adapters.block), layers, adapters.number == len(siblings) - 1)
