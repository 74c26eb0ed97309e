"""What became of whole next-token distributions: read chunk by chunk as the head's logits pass, none of which is kept.

Legend, at every token of a chosen answer, with pi the model as it stands and pi_0 the model where training began
  KL        sum_v pi(v) (log pi(v) - log pi_0(v))
  entropy   -sum_v pi(v) log pi(v)
  greedy    max_v log pi(v): where it rises while the answer itself falls, mass is squeezed into what is said anyway
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from rcray.models.head import HeadPass, OnLogits


@dataclass(frozen=True)
class TokenMeans:
    """Means over the tokens watched, in nats."""

    kl: float
    entropy: float
    greedy: float


class Watch:
    """Compares distributions with those of the start model, which is kept as hidden states and a head.

    Hidden states are a few megabytes where logits would be gigabytes, and the start model need not run again: one more
    product with its head gives its logits. A head that is trained is copied, a frozen one is shared.

    The first reading, between `begin` and `end`, records; every later one must see the same tokens in the same order.
    """

    def __init__(self, head: nn.Module):
        weight: Tensor = head.weight  # type: ignore[assignment]
        bias: Tensor | None = getattr(head, "bias", None)
        self._weight = _kept(weight)
        self._bias = None if bias is None else _kept(bias)
        self._start: list[Tensor] = []  # one, once they are recorded
        self._recorded = False

    def begin(self) -> None:
        """Starts a reading."""
        self._sums: list[Tensor] = []
        self._tokens = 0

    def mark(self) -> tuple[int, int]:
        """Where a reading is."""
        return len(self._sums), self._tokens

    def rewind(self, mark: tuple[int, int]) -> None:
        """Forgets what was read since: that forward is made again, in other portions."""
        portions, self._tokens = mark
        del self._sums[portions:]
        if not self._recorded:
            del self._start[portions:]

    def first(self, count: int) -> OnLogits:
        """What reads the first `count` tokens of a forward: the chosen ones of both sides."""
        return partial(self._read, count)

    def see(self, applied: HeadPass, rows: slice, logits: Tensor) -> None:
        """Reads every token of a forward."""
        self._read(rows.stop, applied, rows, logits)

    def end(self) -> TokenMeans:
        """Ends a reading; what it saw stays in `means`."""
        if not self._recorded:
            self._start, self._recorded = [torch.cat(self._start)], True
        kl, entropy, greedy = (torch.stack(self._sums).sum(0) / self._tokens).tolist()
        self.means = TokenMeans(max(kl, 0.0), entropy, greedy)  # below zero by rounding alone; NaN stays NaN
        return self.means

    def _read(self, count: int, applied: HeadPass, rows: slice, logits: Tensor) -> None:
        count = min(rows.stop, count) - rows.start
        if count <= 0:
            return
        log_p = logits[:count].log_softmax(-1)
        hidden = applied.h[rows][:count]
        if not self._recorded:
            self._start.append(hidden.clone())
        start = self._start[0][self._tokens :][:count] if self._recorded else hidden
        assert start.shape == hidden.shape, "another set of tokens than the one recorded"
        log_q = start @ self._weight.to(start.dtype).T
        log_q = (log_q if self._bias is None else log_q + self._bias).to(log_p.dtype).log_softmax(-1)
        p = log_p.exp()
        parts = ((p * (log_p - log_q)).sum(-1), -(p * log_p).sum(-1), log_p.amax(-1))
        self._sums.append(torch.stack([part.sum(dtype=torch.float64) for part in parts]))
        self._tokens += count


def _kept(weight: Tensor) -> Tensor:
    return weight.detach().clone() if weight.requires_grad else weight.detach()
