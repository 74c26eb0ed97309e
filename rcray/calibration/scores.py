"""Scores: the directions s_w, s_l in parameter space, through their norms and cosine.

Legend: s_w = gradient of the mean z_w over a batch, s_l likewise. Estimators (paper, "Efficient DB Estimation"):
  head      the output head's weight: exact there, stands for the rest
  sketch    the head's gradient G seen through a random projection: |G R| ~ |G|, k columns in place of all
  adapters  trainable parameters of the last block that has any (LoRA, QLoRA)
  full      every trainable parameter

`plain_scores` is the published way, two extra `autograd.grad` calls on a retained graph. The training step reads the
same numbers off the backward it makes anyway (rcray/train/micro.py, parts.py); both end in `summarise`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from rcray.errors import ConfigError
from rcray.models.blocks import last_adapters
from rcray.models.capabilities import capabilities_of
from rcray.models.head import SKETCH_COLUMNS, Sketch

Gradients = list[Tensor]
Estimator = Literal["head", "sketch", "adapters", "full"]


class Reduce(Protocol):
    """How workers share what each of them saw; None in its place stands for a worker on its own."""

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over workers."""
        ...

    def gather(self, values: Tensor) -> Tensor:
        """All workers' values, [workers, ...]."""
        ...


@dataclass(frozen=True)
class Products:
    """Inner products of the two summed scores, <w, w>, <l, l>, <w, l>: all that norms and cosine need."""

    values: Tensor  # [3] on the device


@dataclass(frozen=True)
class SideScores:
    """Gradients of the summed likelihoods of one side or both; empty for a side that is not there."""

    w: Gradients
    l: Gradients  # noqa: E741  the paper's letter


def score_parameters(model: nn.Module, estimator: Estimator) -> list[Tensor]:
    """The tensors whose gradients stand for the scores; `sketch` adds one beside the head, which stays zero."""
    if estimator == "full":
        return [p for p in model.parameters() if p.requires_grad]
    if estimator == "adapters":
        return _last_adapters(model)
    head = model.get_output_embeddings()  # type: ignore[operator]
    if head is None or not head.weight.requires_grad:
        raise ConfigError(
            f"calibration.scores: {estimator!r} needs a trainable output head, and this model's head is frozen",
            fix="use calibration.scores: adapters (LoRA) or full",
        )
    return [head.weight] if estimator == "head" else [attach_sketch(model)]


def _last_adapters(model: nn.Module) -> list[Tensor]:
    adapters = last_adapters(model)
    if adapters is None:
        raise ConfigError(
            "calibration.scores: 'adapters' needs a model with trainable LoRA adapters, and this one has none",
            fix="use calibration.scores: head or full",
        )
    return list(adapters.parameters.values())


def attach_sketch(model: nn.Module, columns: int = SKETCH_COLUMNS, seed: int = 0) -> Tensor:
    """Adds (h R) U^T to the head's output, with R fixed and random and U zero: dz/dU = G R, at columns/hidden the cost.

    U is not a parameter of the model: it is never trained or saved, and the output keeps its value.
    """
    head: nn.Module = model.get_output_embeddings()  # type: ignore[operator]
    sketch = Sketch.of(head, columns, seed)

    def add_probe(_module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return output + (inputs[0].detach() @ sketch.projection) @ sketch.probe.T if torch.is_grad_enabled() else output

    head.register_forward_hook(add_probe)
    capabilities_of(model).sketch = sketch  # for likelihoods that are computed without calling the head
    return sketch.probe


def plain_scores(z_w: Tensor, z_l: Tensor, parameters: Sequence[Tensor]) -> tuple[Gradients, Gradients]:
    """Gradients of sum z_w and of sum z_l; the graph is kept for the backward that follows."""
    w, l = (branch_gradients(z, parameters, torch.ones_like(z), keep_graph=True) for z in (z_w, z_l))  # noqa: E741
    return w, l


def branch_gradients(z: Tensor, parameters: Sequence[Tensor], seed: Tensor, *, keep_graph: bool = False) -> Gradients:
    """Gradient of sum(seed z) in every parameter; zero where z does not depend on one."""
    grads = torch.autograd.grad(z, parameters, seed, retain_graph=keep_graph, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for g, p in zip(grads, parameters, strict=True)]
