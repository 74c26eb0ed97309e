"""Scores: the directions s_w, s_l in parameter space, through their norms and cosine.

Legend: s_w = gradient of the mean z_w over a batch, s_l likewise. Estimators (paper, "Efficient DB Estimation"):
  head      the output head's weight: exact there, stands for the rest
  sketch    the head's gradient G seen through a random projection: |G R| ~ |G|, k columns in place of all
  adapters  trainable parameters of the last block that has any (LoRA, QLoRA)
  full      every trainable parameter

`plain_scores` is the published way, two extra `autograd.grad` calls on a retained graph. The training step reads the
same numbers off the backward it makes anyway (rcray/train/parts.py); both end in `summarise`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from rcray.calibration.band import Statistics
from rcray.calibration.incentives import LogMean, OneWorker, Reduce
from rcray.errors import ConfigError
from rcray.models.blocks import ADAPTER

Gradients = list[Tensor]
Estimator = Literal["head", "sketch", "adapters", "full"]

#: Columns of the sketch: log r* is off by about 0.02 and rho by 0.01 at 32, on the head of a real model.
SKETCH_COLUMNS = 32


@dataclass(frozen=True)
class Scores:
    """Norms and cosine of the two score directions; logs, because the norms span many decades."""

    log_s_w: float
    log_s_l: float
    rho: float


@dataclass(frozen=True)
class Products:
    """Inner products of the two summed scores: all that norms and cosine need."""

    ww: float
    ll: float
    wl: float


def score_parameters(model: nn.Module, estimator: Estimator) -> list[Tensor]:
    """The tensors whose gradients stand for the scores; `sketch` adds one beside the head, which stays zero."""
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if estimator == "full":
        return list(trainable.values())
    if estimator == "adapters":
        return _last_adapters(trainable)
    head = model.get_output_embeddings()  # type: ignore[operator]
    if head is None or not head.weight.requires_grad:
        raise ConfigError(
            f"calibration.scores: {estimator!r} needs a trainable output head, and this model's head is frozen",
            fix="use calibration.scores: adapters (LoRA) or full",
        )
    return [head.weight] if estimator == "head" else [attach_sketch(head)]


def _last_adapters(trainable: dict[str, nn.Parameter]) -> list[Tensor]:
    """Adapter parameters of the highest-numbered block."""
    numbered = [(int(found.group(2)), p) for name, p in trainable.items() if (found := ADAPTER.match(name))]
    if not numbered:
        raise ConfigError(
            "calibration.scores: 'adapters' needs a model with trainable LoRA adapters, and this one has none",
            fix="use calibration.scores: head or full",
        )
    last = max(block for block, _ in numbered)
    return [p for block, p in numbered if block == last]


@dataclass(frozen=True)
class Sketch:
    """The random projection R [hidden, columns] and the zero tensor U [vocabulary, columns] beside a head."""

    projection: Tensor
    probe: Tensor


def attach_sketch(head: nn.Module, columns: int = SKETCH_COLUMNS, seed: int = 0) -> Tensor:
    """Adds (h R) U^T to the head's output, with R fixed and random and U zero: dz/dU = G R, at columns/hidden the cost.

    U is not a parameter of the model: it is never trained or saved, and the output keeps its value.
    """
    weight: Tensor = head.weight  # type: ignore[assignment]
    projection = sketch_projection(weight, columns, seed)
    probe = torch.zeros(weight.shape[0], columns, dtype=weight.dtype, device=weight.device, requires_grad=True)

    def add_probe(_module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return output + (inputs[0].detach() @ projection) @ probe.T if torch.is_grad_enabled() else output

    head.register_forward_hook(add_probe)
    # For code that does not call the head, see models/head.py.
    head.rcray_sketch = Sketch(projection, probe)  # type: ignore[assignment]
    return probe


def sketch_projection(weight: Tensor, columns: int = SKETCH_COLUMNS, seed: int = 0) -> Tensor:
    """R [hidden, columns], fixed by its seed, with E[R R^T] = 1."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(weight.shape[1], columns, generator=generator, dtype=torch.float32)
    scaled: Tensor = drawn / columns**0.5
    return scaled.to(weight)


def plain_scores(z_w: Tensor, z_l: Tensor, parameters: Sequence[Tensor]) -> tuple[Gradients, Gradients]:
    """Gradients of sum z_w and of sum z_l; the graph is kept for the backward that follows."""
    w, l = (branch_gradients(z, parameters, torch.ones_like(z), keep_graph=True) for z in (z_w, z_l))  # noqa: E741
    return w, l


def branch_gradients(z: Tensor, parameters: Sequence[Tensor], seed: Tensor, *, keep_graph: bool = False) -> Gradients:
    """Gradient of sum(seed z) in every parameter; zero where z does not depend on one."""
    grads = torch.autograd.grad(z, parameters, seed, retain_graph=keep_graph, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for g, p in zip(grads, parameters, strict=True)]


def summarise(grads_w: Gradients, grads_l: Gradients, reduce: Reduce | None = None, *, pairs: int) -> Scores:
    """Norms and cosine of the mean scores over `pairs` pairs of all workers, reduced before they are squared."""
    reduce = reduce or OneWorker()
    products = torch.zeros(3, dtype=torch.float64, device=grads_w[0].device)
    for g_w, g_l in zip(grads_w, grads_l, strict=True):
        # float32 or better holds each product's terms, float64 their sum
        wide = torch.promote_types(g_w.dtype, torch.float32)
        g_w, g_l = reduce.sum(g_w.to(wide)), reduce.sum(g_l.to(wide))
        products += torch.stack(
            [
                (g_w * g_w).sum(dtype=torch.float64),
                (g_l * g_l).sum(dtype=torch.float64),
                (g_w * g_l).sum(dtype=torch.float64),
            ]
        )
    return from_products(Products(*products.tolist()), pairs)


def from_products(products: Products, pairs: int) -> Scores:
    """Norms and cosine of the means over `pairs` pairs."""
    ww, ll, wl = products.ww, products.ll, products.wl
    if not all(map(math.isfinite, (ww, ll, wl))):
        return Scores(math.nan, math.nan, math.nan)
    if ww == 0 or ll == 0:
        return Scores(_half_log(ww) - math.log(pairs), _half_log(ll) - math.log(pairs), math.nan)
    rho = max(-1.0, min(1.0, wl / math.sqrt(ww) / math.sqrt(ll)))
    return Scores(_half_log(ww) - math.log(pairs), _half_log(ll) - math.log(pairs), rho)


def _half_log(square: float) -> float:
    return 0.5 * math.log(square) if square > 0 else -math.inf


def statistics(d_w: LogMean, d_l: LogMean, scores: Scores) -> Statistics:
    """Joins incentives and scores of one batch."""
    return Statistics(d_w.log_abs, d_l.log_abs, d_w.sign, d_l.sign, scores.log_s_w, scores.log_s_l, scores.rho)
