"""Token log-probabilities of answers under a model.

Legend: logp[i, t] = log p(token t of answer i | prompt, earlier tokens); zero outside the answer.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rcray.data.batch import Side


@dataclass(frozen=True)
class SideLogps:
    """Log-probabilities of one side, [pairs, tokens - 1]: position t predicts token t + 1."""

    logp: Tensor
    mask: Tensor
    log_probs: Tensor | None = None  # full next-token distribution at every position, where asked for

    @property
    def sums(self) -> Tensor:
        """Summed log-likelihood per answer, [pairs]."""
        return self.logp.sum(-1)

    @property
    def lengths(self) -> Tensor:
        """Tokens per answer, [pairs]."""
        return self.mask.sum(-1)


def side_logps(model: Any, side: Side, *, keep_distribution: bool = False) -> SideLogps:
    """One forward of prompt + answer; softmax in float32 whatever the model's dtype."""
    logits = model(input_ids=side.ids, attention_mask=side.attention, use_cache=False).logits[:, :-1]
    mask = side.response[:, 1:]
    log_probs = logits.float().log_softmax(-1) if logits.dtype != torch.float64 else logits.log_softmax(-1)
    picked = log_probs.gather(-1, side.ids[:, 1:, None]).squeeze(-1)
    # where, not a product: a non-finite logit on a prompt or pad position must not leak in as nan * 0
    logp = torch.where(mask.bool(), picked, torch.zeros_like(picked))
    return SideLogps(logp, mask, log_probs if keep_distribution else None)


def sequential_kl(reference: SideLogps, policy: SideLogps) -> Tensor:
    """KL(reference || policy) at every answer position, [pairs, tokens - 1]."""
    assert reference.log_probs is not None and policy.log_probs is not None
    kl = (reference.log_probs.exp() * (reference.log_probs - policy.log_probs)).sum(-1)
    return torch.where(policy.mask.bool(), kl, torch.zeros_like(kl))
