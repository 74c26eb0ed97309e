"""Log-probabilities straight from hidden states: the head is applied in chunks and no logits are kept.

Legend: h [tokens, hidden], W [vocabulary, hidden], y [tokens] target ids; logp = log softmax(h W^T + b)[y].
The backward recomputes each chunk's logits: d logp / d logits = onehot(y) - p.

A [batch, time, vocabulary] tensor never exists: at 1,024 answer tokens and 50k words it alone would be 200 MB, and the
plain path keeps several.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

#: Bytes of float32 logits alive at once.
CHUNK_BYTES = 32 * 2**20


def chunk_tokens(vocabulary: int) -> int:
    """Tokens per chunk within the budget; never so few that the matrix product becomes a loop of vectors."""
    return max(16, CHUNK_BYTES // (4 * vocabulary))


class _ChunkedLogp(torch.autograd.Function):
    """logp(h, W, b) with logits in chunks; `probe` is the zero tensor of a sketch, `projected` = h R."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,
        h: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        projected: Tensor | None,
        probe: Tensor | None,
        y: Tensor,
    ) -> Tensor:
        logp = h.new_empty(h.shape[0], dtype=_wide(h))
        normaliser = torch.empty_like(logp)
        buffer = _buffer(h, weight)
        for rows in _chunks(h, weight):
            logits = _fill(buffer, h[rows], weight, bias)
            picked = logits.gather(1, y[rows, None]).squeeze(1)
            top = logits.amax(-1)
            normaliser[rows] = logits.sub_(top[:, None]).exp_().sum(-1).log_().add_(top)
            logp[rows] = picked - normaliser[rows]
        ctx.save_for_backward(h, weight, bias, projected, probe, y, normaliser)
        return logp

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        h, weight, bias, projected, probe, y, normaliser = ctx.saved_tensors
        seed = grads[0]
        wants_h, wants_weight, wants_bias, _, wants_probe, _ = ctx.needs_input_grad
        grad_h = torch.empty_like(h) if wants_h else None
        grad_weight = torch.zeros_like(weight, dtype=_wide(weight)) if wants_weight else None
        grad_bias = torch.zeros_like(bias, dtype=_wide(weight)) if wants_bias else None
        grad_probe = torch.zeros_like(probe, dtype=_wide(weight)) if wants_probe else None
        buffer = _buffer(h, weight)
        for rows in _chunks(h, weight):
            # onehot(y) - p, times the seed
            residual = _fill(buffer, h[rows], weight, bias).sub_(normaliser[rows, None]).exp_()
            residual.mul_(-seed[rows, None]).scatter_add_(1, y[rows, None], seed[rows, None])
            narrow = residual.to(h.dtype)
            if grad_h is not None:
                torch.mm(narrow, weight, out=grad_h[rows])
            if grad_weight is not None:
                _add_product(grad_weight, narrow, h[rows])
            if grad_bias is not None:
                grad_bias += residual.sum(0)
            if grad_probe is not None:
                _add_product(grad_probe, narrow, projected[rows])
        return (
            grad_h,
            None if grad_weight is None else grad_weight.to(weight.dtype),
            None if grad_bias is None else grad_bias.to(bias.dtype),
            None,
            None if grad_probe is None else grad_probe.to(probe.dtype),
            None,
        )


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def _chunks(h: Tensor, weight: Tensor) -> Iterator[slice]:
    step = chunk_tokens(weight.shape[0])
    return (slice(start, min(start + step, h.shape[0])) for start in range(0, h.shape[0], step))


def _buffer(h: Tensor, weight: Tensor) -> Tensor:
    """One block of logits, used by every chunk in turn."""
    rows = min(h.shape[0], chunk_tokens(weight.shape[0]))
    return h.new_empty(rows, weight.shape[0], dtype=_wide(h))


def _fill(buffer: Tensor, h: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    logits = buffer[: h.shape[0]]
    if h.dtype == buffer.dtype:
        torch.mm(h, weight.T, out=logits)
    else:
        logits.copy_(h @ weight.T)
    return logits if bias is None else logits.add_(bias)


def _add_product(total: Tensor, residual: Tensor, right: Tensor) -> None:
    """total += residual^T right, without a second matrix of that size where the dtypes agree."""
    if total.dtype == residual.dtype:
        total.addmm_(residual.T, right)
    else:
        total += residual.T @ right


def head_logps(head: nn.Module, hidden: Tensor, targets: Tensor) -> Tensor:
    """Log-probability of each target under the head, [tokens]; float32 or better."""
    weight: Tensor = head.weight  # type: ignore[assignment]
    bias: Tensor | None = getattr(head, "bias", None)
    hidden = hidden.to(weight.dtype)
    sketch = getattr(head, "rcray_sketch", None)
    probe = projected = None
    if sketch is not None and torch.is_grad_enabled():
        probe, projected = sketch.probe, (hidden.detach() @ sketch.projection)
    return _ChunkedLogp.apply(hidden, weight, bias, projected, probe, targets)
