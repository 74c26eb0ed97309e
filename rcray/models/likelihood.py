"""Token log-probabilities of answers under a model.

Legend: logp[i, t] = log p(token t of answer i | prompt, earlier tokens); zero outside the answer.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rcray.data.batch import Side
from rcray.models.capabilities import capabilities_of
from rcray.models.forward import body_of, one_a_row
from rcray.models.head import OnLogits, head_logps


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


def side_logps(
    model: Any, side: Side, *, keep_distribution: bool = False, on_logits: OnLogits | None = None
) -> SideLogps:
    """One forward of prompt + answer; softmax in float32 whatever the model's dtype.

    The head is applied to answer positions only, in chunks, unless the whole distribution is asked for or the model
    does more after its body than apply a head.
    """
    mask = side.response[:, 1:]
    allowed = capabilities_of(model)
    if keep_distribution or not allowed.plain_head:
        return _logps_from_logits(model, side, mask, keep_distribution)
    with one_a_row():
        hidden = body_of(model)(**_inputs(side), use_cache=False).last_hidden_state
    places, head = side.predicts, model.get_output_embeddings()
    before = hidden.reshape(-1, hidden.shape[-1]).index_select(0, places)
    picked = head_logps(head, before, side.ids.flatten().index_select(0, places + 1), allowed.sketch, on_logits)
    logp = torch.zeros(side.ids.numel(), dtype=picked.dtype, device=picked.device).index_copy(0, places, picked)
    return SideLogps(logp.view(side.ids.shape)[:, :-1].contiguous(), mask)


def _inputs(side: Side) -> dict[str, Tensor]:
    """Off the CPU without a mask: padding is behind what is read, and a mask is asked whether it hides anything."""
    if side.ids.device.type != "cpu":
        return {"input_ids": side.ids}
    return {"input_ids": side.ids, "attention_mask": side.attention}


def _logps_from_logits(model: Any, side: Side, mask: Tensor, keep_distribution: bool) -> SideLogps:
    with one_a_row():
        logits = model(**_inputs(side), use_cache=False).logits[:, :-1]
    log_probs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
    picked = log_probs.gather(-1, side.ids[:, 1:, None]).squeeze(-1)
    # where, not a product: a non-finite logit on a prompt or pad position must not leak in as nan * 0
    logp = torch.where(mask.bool(), picked, torch.zeros_like(picked))
    return SideLogps(logp, mask, log_probs if keep_distribution else None)


def sequential_kl(reference: SideLogps, policy: SideLogps) -> Tensor:
    """KL(reference || policy) at every answer position, [pairs, tokens - 1]."""
    assert reference.log_probs is not None and policy.log_probs is not None
    kl = (reference.log_probs.exp() * (reference.log_probs - policy.log_probs)).sum(-1)
    return torch.where(policy.mask.bool(), kl, torch.zeros_like(kl))
