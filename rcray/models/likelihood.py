"""Token log-probabilities of answers under a model.

Legend: logp[i, t] = log p(token t of answer i | prompt, earlier tokens); zero outside the answer.
"""

import logging
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rcray.data.batch import Side
from rcray.models.head import head_logps

log = logging.getLogger(__name__)

#: Settings by which architectures scale or cap their logits after the head; small logits would hide a cap.
_LOGIT_SHAPING = ("final_logit_softcapping", "logit_scale", "logits_scaling", "lm_head_multiplier")


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
    """One forward of prompt + answer; softmax in float32 whatever the model's dtype.

    The head is applied to answer positions only, in chunks, unless the whole distribution is asked for or the model
    does more after its body than apply a head.
    """
    mask = side.response[:, 1:]
    if keep_distribution or not has_plain_head(model):
        return _logps_from_logits(model, side, mask, keep_distribution)
    hidden = body_of(model)(input_ids=side.ids, attention_mask=side.attention, use_cache=False).last_hidden_state
    answer = mask.bool()
    picked = head_logps(model.get_output_embeddings(), hidden[:, :-1][answer], side.ids[:, 1:][answer])
    return SideLogps(
        torch.zeros(mask.shape, dtype=picked.dtype, device=picked.device).masked_scatter(answer, picked), mask
    )


def _logps_from_logits(model: Any, side: Side, mask: Tensor, keep_distribution: bool) -> SideLogps:
    logits = model(input_ids=side.ids, attention_mask=side.attention, use_cache=False).logits[:, :-1]
    log_probs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
    picked = log_probs.gather(-1, side.ids[:, 1:, None]).squeeze(-1)
    # where, not a product: a non-finite logit on a prompt or pad position must not leak in as nan * 0
    logp = torch.where(mask.bool(), picked, torch.zeros_like(picked))
    return SideLogps(logp, mask, log_probs if keep_distribution else None)


def body_of(model: Any) -> Any:
    """The transformer below the head; LoRA layers are inside it."""
    causal = model.get_base_model() if hasattr(model, "get_base_model") else model
    return causal.base_model


def has_plain_head(model: Any) -> bool:
    """Whether logits are the head applied to the body's output and nothing more; tried once per model.

    Some architectures scale, cap or project their logits afterwards. They take the plain path.
    """
    known = model.__dict__.get("rcray_plain_head")
    if known is None:
        head = model.get_output_embeddings()
        config = getattr(model, "config", None)
        shaped = any(getattr(config, name, None) not in (None, 0, 1) for name in _LOGIT_SHAPING)
        known = not shaped and _is_linear(head) and _head_is_last(model, head)
        model.rcray_plain_head = known
        if not known:
            log.info("%s does more than apply its head; likelihoods take the plain path", type(model).__name__)
    return bool(known)


def _is_linear(head: Any) -> bool:
    """Whether it is a matrix product with its weight as it stands: not one kept in 4 bits, not one with an adapter."""
    return isinstance(head, nn.Linear) and head.weight.is_floating_point()


def _head_is_last(model: Any, head: nn.Linear) -> bool:
    ids = torch.arange(1, 5, device=head.weight.device)[None] % head.weight.shape[0]
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits
        hidden = body_of(model)(input_ids=ids, use_cache=False).last_hidden_state
        # Dropout is off, so the two forwards agree but for rounding.
        return torch.allclose(logits.float(), head(hidden.to(head.weight.dtype)).float(), atol=1e-3, rtol=1e-3)


def sequential_kl(reference: SideLogps, policy: SideLogps) -> Tensor:
    """KL(reference || policy) at every answer position, [pairs, tokens - 1]."""
    assert reference.log_probs is not None and policy.log_probs is not None
    kl = (reference.log_probs.exp() * (reference.log_probs - policy.log_probs)).sum(-1)
    return torch.where(policy.mask.bool(), kl, torch.zeros_like(kl))
