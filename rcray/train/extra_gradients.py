"""A micro-batch the published way: scores by two extra gradients on a retained graph.

For likelihoods that need the whole next-token distribution, scores over all parameters, and heads that are not a plain
matrix. Chosen and rejected are forwarded apart, so that their branches are, too.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from rcray.calibration.scores import Gradients, SideScores, branch_gradients, plain_scores
from rcray.data.batch import Batch
from rcray.models.adapters import adapters_off
from rcray.models.likelihood import SideLogps, sequential_kl, side_logps
from rcray.objectives import PairLogps, TokenLogps
from rcray.train.micro import Policy, add_gradients, with_reference


class ExtraGradients:
    """A micro-batch after its forward, its graph kept."""

    def __init__(self, policy: Policy, batch: Batch, parameters: Sequence[Tensor]):
        self.parameters = parameters
        with policy.precision():
            self.pairs = pair_logps(policy, batch.to(policy.device))
        self.real_tokens = batch.tokens
        self.computed_tokens = batch.chosen.ids.numel() + batch.rejected.ids.numel()

    def scores(self) -> SideScores:
        """Two gradients on the retained graph: before the backward, which frees it."""
        return self.scores_at(self.parameters)

    def scores_at(self, parameters: Sequence[Tensor]) -> SideScores:
        """The same over other parameters."""
        return SideScores(*plain_scores(self.pairs.z_w, self.pairs.z_l, parameters))

    def backward(self, seed_w: Tensor, seed_l: Tensor) -> None:
        """From both likelihoods at once."""
        torch.autograd.backward([self.pairs.z_w, self.pairs.z_l], [seed_w, seed_l])

    def branches(
        self, seed_w: Tensor, seed_l: Tensor, into: tuple[Gradients, Gradients], parameters: Sequence[nn.Parameter]
    ) -> None:
        """One gradient per side."""
        for buffer, z, seed in zip(into, (self.pairs.z_w, self.pairs.z_l), (seed_w, seed_l), strict=True):
            add_gradients(buffer, branch_gradients(z, parameters, seed))


def pair_logps(policy: Policy, batch: Batch) -> PairLogps:
    """Branch statistics of a micro-batch, with their graph, and the reference's beside them."""
    needs_kl = policy.objective.params.traits.needs_reference_distribution
    chosen = side_logps(policy.model, batch.chosen, keep_distribution=needs_kl)
    rejected = side_logps(policy.model, batch.rejected, keep_distribution=needs_kl)
    tokens = TokenLogps(chosen.logp, rejected.logp, chosen.mask, rejected.mask)
    if policy.live_reference is not None:
        tokens = _with_live_reference(policy, batch, chosen, rejected, tokens)
    return with_reference(policy, batch, policy.objective.statistics(tokens, policy.likelihood))


def _with_live_reference(
    policy: Policy, batch: Batch, chosen: SideLogps, rejected: SideLogps, tokens: TokenLogps
) -> TokenLogps:
    needs_kl = chosen.log_probs is not None
    with torch.no_grad(), adapters_off(policy.live_reference):
        ref_w = side_logps(policy.live_reference, batch.chosen, keep_distribution=needs_kl)
        ref_l = side_logps(policy.live_reference, batch.rejected, keep_distribution=needs_kl)
    tokens = replace(tokens, ref_logp_w=ref_w.logp, ref_logp_l=ref_l.logp)
    if needs_kl:
        tokens = replace(tokens, kl_w=sequential_kl(ref_w, chosen), kl_l=sequential_kl(ref_l, rejected))
    return tokens
