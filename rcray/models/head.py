"""Log-probabilities straight from hidden states: the head is applied in chunks, and its gradient comes with it.

Legend
  h [tokens, hidden], W [vocabulary, hidden], y [tokens] target ids; logp = log softmax(h W^T + b)[y]
  residual   d logp / d logits = onehot(y) - p, [tokens, vocabulary]
  unit       d logp / d h = residual W, [tokens, hidden]

A token's log-probability is one number, so its gradient in h is `unit` times the seed of the backward, whatever the
seed will be: `unit` is computed while the logits are at hand, and a frozen head needs no second look at them. A trained
head's gradient needs the residuals once more. They are kept where they fit a budget, and recomputed chunk by chunk
where they do not: a [batch, time, vocabulary] tensor of the whole batch never exists.

The scores of the head, G = sum_t v_t residual_t h_t^T per side, are by-products of the same residuals.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

#: Bytes of float32 logits alive at once: on a CPU, and as a share of a GPU's memory, where a chunk too small would
#: read a large head again and again.
CHUNK_BYTES = 32 * 2**20
_SHARE_OF_GPU, _USUAL_GPU = 128, 48 * 10**9
#: Bytes of residuals kept for the backward of a trained head; beyond it they are recomputed.
KEEP_BYTES = 512 * 2**20


def chunk_tokens(vocabulary: int) -> int:
    """Tokens per chunk within the budget; never so few that the matrix product becomes a loop of vectors."""
    return max(16, CHUNK_BYTES // (4 * vocabulary))


@dataclass
class HeadPass:
    """One application of the head to answer tokens, and what can be read off it afterwards."""

    h: Tensor  # detached
    weight: Tensor  # detached, in the dtype of the products
    bias: Tensor | None
    y: Tensor
    wants_residuals: bool  # for the gradient of a trained head, or for scores
    #: Called with this pass and each chunk's rows and residuals while they are at hand.
    on_residuals: "OnResiduals | None" = None
    on_logits: "OnLogits | None" = None  # the same with the logits, which it must leave as they are
    logp: Tensor = field(init=False)
    normaliser: Tensor = field(init=False)
    unit: Tensor | None = field(init=False, default=None)
    kept: Tensor | None = field(init=False, default=None)

    def run(self, *, with_unit: bool) -> None:
        """Fills logp, and `unit` and the kept residuals where a backward will follow."""
        tokens, vocabulary = self.h.shape[0], self.weight.shape[0]
        wide = _wide(self.h)
        self.logp = self.h.new_empty(tokens, dtype=wide)
        self.normaliser = torch.empty_like(self.logp)
        keep = with_unit and self.wants_residuals and tokens * vocabulary * self.h.element_size() <= KEEP_BYTES
        if with_unit:
            self.unit = torch.empty_like(self.h)
        if keep:
            self.kept = self.h.new_empty(tokens, vocabulary)
        in_place = self.kept is not None and wide == self.h.dtype
        buffer = None if in_place else _buffer(self.h, self.weight)
        for rows in _chunks(self.h, self.weight):
            block = self.kept[rows] if buffer is None else buffer  # type: ignore[index]
            logits = _logits(block, self.h[rows], self.weight, self.bias)
            if self.on_logits:
                self.on_logits(self, rows, logits)
            target = self.y[rows, None]
            picked = logits.gather(1, target).squeeze(1)
            top = logits.amax(-1)
            total = logits.sub_(top[:, None]).exp_().sum(-1)
            self.normaliser[rows] = total.log() + top
            self.logp[rows] = picked - self.normaliser[rows]
            if not with_unit:
                continue
            residual = logits.mul_(-1 / total[:, None]).scatter_add_(1, target, torch.ones_like(logits[:, :1]))
            narrow = residual.to(self.h.dtype)
            torch.mm(narrow, self.weight, out=self.unit[rows])  # type: ignore[index]
            if keep and not in_place:
                self.kept[rows] = narrow  # type: ignore[index]
            if self.on_residuals:
                self.on_residuals(self, rows, narrow)

    def of(self, tokens: Tensor) -> "HeadPass":
        """The same pass of some of its tokens; their residuals are recomputed."""
        part = HeadPass(self.h[tokens], self.weight, self.bias, self.y[tokens], wants_residuals=True)
        part.logp, part.normaliser = self.logp[tokens], self.normaliser[tokens]
        return part

    def residuals(self) -> Iterator[tuple[slice, Tensor]]:
        """All residuals, chunk by chunk: kept or recomputed."""
        if self.kept is not None:
            yield slice(0, len(self.kept)), self.kept
            return
        buffer = _buffer(self.h, self.weight)
        for rows in _chunks(self.h, self.weight):
            logits = _logits(buffer, self.h[rows], self.weight, self.bias)
            residual = logits.sub_(self.normaliser[rows, None]).exp_().neg_()
            yield (
                rows,
                residual.scatter_add_(1, self.y[rows, None], torch.ones_like(residual[:, :1])).to(self.h.dtype),
            )

    def products(self, right: Tensor) -> Tensor:
        """sum_t residual_t right_t^T, [vocabulary, columns]; the seeds are in `right`, the narrower factor."""
        total = right.new_zeros(self.weight.shape[0], right.shape[1], dtype=_wide(right))
        for rows, residual in self.residuals():
            add_product(total, residual, right[rows])
        return total


OnResiduals = Callable[[HeadPass, slice, Tensor], None]
OnLogits = Callable[[HeadPass, slice, Tensor], None]

#: Columns of a sketch: log r* is off by about 0.02 and rho by 0.01 at 32, on the head of a real model.
SKETCH_COLUMNS = 32


@dataclass(frozen=True)
class Sketch:
    """The random projection R [hidden, columns] and the zero tensor U [vocabulary, columns] beside a head."""

    projection: Tensor
    probe: Tensor

    @classmethod
    def of(cls, head: nn.Module, columns: int = SKETCH_COLUMNS, seed: int = 0) -> "Sketch":
        """A sketch of this head."""
        weight: Tensor = head.weight  # type: ignore[assignment]
        probe = torch.zeros(weight.shape[0], columns, dtype=weight.dtype, device=weight.device, requires_grad=True)
        return cls(sketch_projection(weight, columns, seed), probe)


def sketch_projection(weight: Tensor, columns: int = SKETCH_COLUMNS, seed: int = 0) -> Tensor:
    """R [hidden, columns], fixed by its seed, with E[R R^T] = 1."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(weight.shape[1], columns, generator=generator, dtype=torch.float32)
    scaled: Tensor = drawn / columns**0.5
    return scaled.to(weight)


class _HeadLogp(torch.autograd.Function):
    """logp(h, W, b); `probe` is the zero tensor of a sketch, `projected` = h R."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        h: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        projected: Tensor | None,
        probe: Tensor | None,
        applied: HeadPass,
        grad: bool,
    ) -> Tensor:
        applied.run(with_unit=grad and any(ctx.needs_input_grad))
        ctx.applied, ctx.dtypes = applied, (h.dtype, weight.dtype)
        ctx.save_for_backward(projected)
        return applied.logp.clone()  # the same tensor would hold, by its graph, the pass that holds it, until collected

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        applied: HeadPass = ctx.applied
        (projected,) = ctx.saved_tensors
        h_dtype, weight_dtype = ctx.dtypes
        wants_h, wants_weight, wants_bias, _, wants_probe, *_ = ctx.needs_input_grad
        seed = grads[0].to(applied.h.dtype)[:, None]
        grad_h = (applied.unit * seed).to(h_dtype) if wants_h and applied.unit is not None else None
        grad_weight = applied.products(applied.h * seed).to(weight_dtype) if wants_weight else None
        grad_bias = applied.products(seed).squeeze(1).to(weight_dtype) if wants_bias else None
        grad_probe = applied.products(projected * seed).to(weight_dtype) if wants_probe else None
        return grad_h, grad_weight, grad_bias, None, grad_probe, None, None


def head_logps(
    head: nn.Module,
    hidden: Tensor,
    targets: Tensor,
    sketch: Sketch | None = None,
    on_logits: OnLogits | None = None,
) -> Tensor:
    """Log-probability of each target under the head, [tokens]; float32 or better."""
    return head_pass(head, hidden, targets, sketch=sketch, on_logits=on_logits)[0]


def head_pass(
    head: nn.Module,
    hidden: Tensor,
    targets: Tensor,
    *,
    scores: bool = False,
    on_residuals: OnResiduals | None = None,
    on_logits: OnLogits | None = None,
    sketch: Sketch | None = None,
) -> tuple[Tensor, HeadPass]:
    """Log-probabilities with their graph, and the pass they came from; `scores`: its residuals will be read."""
    weight: Tensor = head.weight  # type: ignore[assignment]
    bias: Tensor | None = getattr(head, "bias", None)
    dtype = torch.get_autocast_dtype(hidden.device.type) if _autocast(hidden) else weight.dtype
    hidden = hidden.to(dtype)
    grad = torch.is_grad_enabled()
    probe = projected = None
    if sketch is not None and grad:
        probe, projected = sketch.probe, (hidden.detach() @ sketch.projection.to(dtype))
    wants = scores or weight.requires_grad or probe is not None or (bias is not None and bias.requires_grad)
    applied = HeadPass(
        hidden.detach(),
        weight.detach().to(dtype),
        None if bias is None else bias.detach(),
        targets,
        wants,
        on_residuals,
        on_logits,
    )
    with torch.autocast(hidden.device.type, enabled=False):
        return _HeadLogp.apply(hidden, weight, bias, projected, probe, applied, grad), applied


def _autocast(tensor: Tensor) -> bool:
    return torch.is_autocast_enabled(tensor.device.type) and tensor.dtype != torch.float64


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def _chunk(h: Tensor, weight: Tensor) -> int:
    """Tokens per chunk on this device."""
    tokens = chunk_tokens(weight.shape[0])
    if h.device.type == "cpu":
        return tokens
    memory = torch.cuda.get_device_properties(h.device).total_memory if h.device.type == "cuda" else _USUAL_GPU
    return max(tokens, memory // _SHARE_OF_GPU // (4 * weight.shape[0]))


def _chunks(h: Tensor, weight: Tensor) -> Iterator[slice]:
    step = _chunk(h, weight)
    return (slice(start, min(start + step, h.shape[0])) for start in range(0, h.shape[0], step))


def _buffer(h: Tensor, weight: Tensor) -> Tensor:
    """One block of logits, used by every chunk in turn."""
    rows = min(h.shape[0], _chunk(h, weight))
    return h.new_empty(rows, weight.shape[0], dtype=_wide(h))


def _logits(buffer: Tensor, h: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    logits = buffer[: h.shape[0]]
    if h.dtype == buffer.dtype:
        torch.mm(h, weight.T, out=logits)
    else:
        logits.copy_(h @ weight.T)
    return logits if bias is None else logits.add_(bias)


def add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left^T right, without a second matrix of that size where the dtypes agree."""
    if total.dtype == left.dtype:
        total.addmm_(left.T, right)
    else:
        total += left.T @ right
