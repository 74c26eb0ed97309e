"""A micro-batch on its way through the model: likelihoods, incentives and scores, then its backward.

Two ways, one result:
  ReadOff    scores are read off the backward that training needs anyway (parts.py); pairs may be packed
  Plain      the published way, two extra gradients on a retained graph: for likelihoods that need the whole
             next-token distribution, scores over all parameters, and heads that are not a plain matrix
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from rcray.calibration import plain_scores
from rcray.calibration.scores import Gradients, Products, branch_gradients
from rcray.data.batch import Batch
from rcray.data.layout import CHOSEN, REJECTED, Layout, longest_row, one_side, packed, two_rows, worth_packing
from rcray.models.adapters import adapters_off
from rcray.models.forward import answer_logps
from rcray.models.likelihood import SideLogps, sequential_kl, side_logps
from rcray.objectives import PairLogps, TokenLogps
from rcray.train.parts import CutPart, HeadPart, Part, SideScores, WatchedPart

if TYPE_CHECKING:
    from rcray.train.step import StepState


class Micro(Protocol):
    """A micro-batch after its forward."""

    pairs: PairLogps
    scores_need_graph: bool  # they are taken before the backward, which frees it
    computed_tokens: int  # by the forward, padding included
    real_tokens: int

    def scores(self) -> SideScores | Products:
        """Gradients of the summed likelihoods, or their inner products."""
        ...

    def backward(self, seed_w: Tensor, seed_l: Tensor) -> None:
        """Adds the gradient of sum_i seed_i z_i to the parameters."""
        ...

    def branches(self, seed_w: Tensor, seed_l: Tensor, into: tuple[Gradients, Gradients]) -> None:
        """Adds each side's gradient to its own buffer; only for a micro-batch taken in with its sides apart."""
        ...


def take_in(state: "StepState", batch: Batch, *, apart: bool, alone: bool) -> Micro:
    """Forwards a micro-batch. `apart`: each side in a graph of its own; `alone`: no other joins its statistics."""
    return Plain(state, batch) if state.source is None else ReadOff(state, batch, apart=apart, alone=alone)


class ReadOff:
    """Scores as by-products."""

    scores_need_graph = False

    def __init__(self, state: "StepState", batch: Batch, *, apart: bool, alone: bool):
        self.state = state
        made = _layouts(state, batch, apart)
        self.real_tokens = sum(layout.tokens for layout in made)  # counted here: on a GPU it would wait for it
        self.computed_tokens = sum(layout.padded for layout in made)
        layouts = [layout.to(state.device) for layout in made]
        known = state.objective.formula.statistics is None
        weights = [_token_weights(layout, state) if known else None for layout in layouts]
        self.parts = [_part(state, layout, v, alone) for layout, v in zip(layouts, weights, strict=True)]
        leaves = [part.logp.requires_grad_(not known) for part in self.parts]
        pairs = state.objective.statistics(_token_logps(state, layouts, leaves), state.likelihood)
        if not known:
            (*found,) = torch.autograd.grad(pairs.z_w.sum() + pairs.z_l.sum(), leaves)
            pairs = pairs.with_z(pairs.z_w.detach(), pairs.z_l.detach())
            weights = list(found)
        for part, v in zip(self.parts, weights, strict=True):
            assert v is not None
            part.begin(v)
        self.pairs = with_reference(state, batch, pairs)

    def scores(self) -> SideScores | Products:
        """Of all parts: one for both sides, or one for each."""
        return _of_both([part.scores() for part in self.parts])

    def exact_scores(self) -> SideScores:
        """The head's scores that a sketch stands for."""
        found = _of_both([part.exact_scores() for part in self.parts if isinstance(part, HeadPart)])
        assert isinstance(found, SideScores)
        return found

    def backward(self, seed_w: Tensor, seed_l: Tensor) -> None:
        """Part by part."""
        for part in self.parts:
            part.backward(seed_w, seed_l)

    def branches(self, seed_w: Tensor, seed_l: Tensor, into: tuple[Gradients, Gradients]) -> None:
        """The parameters' gradients are exchanged for the buffer of each side while its part goes backward."""
        for part, buffer in zip(self.parts, into, strict=True):
            before = [p.grad for p in self.state.parameters]
            for i, p in enumerate(self.state.parameters):
                p.grad = buffer[i] if buffer else None
            part.backward(seed_w, seed_l)
            buffer[:] = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.state.parameters]
            for p, grad in zip(self.state.parameters, before, strict=True):
                p.grad = grad


def _of_both(found: Sequence[SideScores | Products]) -> SideScores | Products:
    if len(found) == 1:
        return found[0]
    w, l = found  # noqa: E741
    assert isinstance(w, SideScores) and isinstance(l, SideScores)
    return SideScores(w.w, l.l)


def _layouts(state: "StepState", batch: Batch, apart: bool) -> list[Layout]:
    if apart:
        return [one_side(batch, CHOSEN), one_side(batch, REJECTED)]
    asked = state.share_prompts == "on" or (state.share_prompts == "auto" and worth_packing(batch))
    if asked and (state.window is None or longest_row(batch) <= state.window):
        return [packed(batch)]
    return [two_rows(batch)]


def _part(state: "StepState", layout: Layout, weights: Tensor | None, alone: bool) -> Part:
    source = state.source
    assert source is not None
    with state.precision():
        if source.block is None:
            return HeadPart(state.model, layout, source, weights, alone=alone)
        return (CutPart if state.calibrator else WatchedPart)(state.model, layout, source.block, source.mlp)


def _token_weights(layout: Layout, state: "StepState") -> Tensor:
    """dz / d logp of each answer token where z is a plain sum or mean."""
    counts = layout.counts.to(torch.promote_types(torch.float32, state.parameters[0].dtype))
    per_pair = torch.ones_like(counts) if state.likelihood == "sum" else 1 / counts
    first, last = per_pair[0], per_pair[-1]  # one side alone: the same row
    return layout.token_seeds(first, last)


def _token_logps(state: "StepState", layouts: list[Layout], logps: list[Tensor]) -> TokenLogps:
    """Log-probabilities as [pairs, longest] per side, and the reference's where tokens of it are needed."""
    reference: list[Tensor | None] = [None] * len(layouts)
    if state.live_reference is not None:
        with torch.no_grad(), adapters_off(state.live_reference), state.precision():
            reference = [answer_logps(state.live_reference, layout)[0] for layout in layouts]
    sides: dict[str, Any] = {}
    for side, letter in ((CHOSEN, "w"), (REJECTED, "l")):
        i = next(i for i, layout in enumerate(layouts) if side in layout.sides)
        layout, ref = layouts[i], reference[i]
        sides[f"logp_{letter}"] = layout.matrix(logps[i], side)
        sides[f"mask_{letter}"] = layout.matrix(torch.ones_like(logps[i]), side)
        sides[f"ref_logp_{letter}"] = None if ref is None else layout.matrix(ref, side)
    return TokenLogps(**sides)


def with_reference(state: "StepState", batch: Batch, pairs: PairLogps) -> PairLogps:
    """The cached likelihoods of the reference beside the policy's, where they are read from the cache."""
    if state.reference is None or state.live_reference is not None:
        return pairs
    index = batch.index.cpu()
    ref_w, ref_l = state.reference.sum_w[index].to(pairs.z_w), state.reference.sum_l[index].to(pairs.z_l)
    if state.likelihood == "mean":
        ref_w, ref_l = ref_w / pairs.n_w, ref_l / pairs.n_l
    return replace(pairs, ref_w=ref_w, ref_l=ref_l)


class Plain:
    """The published way; chosen and rejected are forwarded apart, so that their branches are too."""

    scores_need_graph = True

    def __init__(self, state: "StepState", batch: Batch):
        self.state = state
        with state.precision():
            self.pairs = pair_logps(state, batch.to(state.device))
        self.real_tokens = batch.tokens
        self.computed_tokens = batch.chosen.ids.numel() + batch.rejected.ids.numel()

    def scores(self) -> SideScores:
        """Two gradients on the retained graph."""
        return SideScores(*plain_scores(self.pairs.z_w, self.pairs.z_l, self.state.score_parameters))

    def backward(self, seed_w: Tensor, seed_l: Tensor) -> None:
        """From both likelihoods at once."""
        torch.autograd.backward([self.pairs.z_w, self.pairs.z_l], [seed_w, seed_l])

    def branches(self, seed_w: Tensor, seed_l: Tensor, into: tuple[Gradients, Gradients]) -> None:
        """One gradient per side."""
        for buffer, z, seed in zip(into, (self.pairs.z_w, self.pairs.z_l), (seed_w, seed_l), strict=True):
            add_up(buffer, branch_gradients(z, self.state.parameters, seed))


def add_up(total: Gradients, part: Gradients) -> None:
    """total += part, tensor by tensor; an empty total becomes the part."""
    if total:
        for kept, new in zip(total, part, strict=True):
            kept += new
    else:
        total.extend(part)


def pair_logps(state: "StepState", batch: Batch) -> PairLogps:
    """Branch statistics of a micro-batch, with their graph, and the reference's beside them."""
    needs_kl = state.objective.params.traits.needs_reference_distribution
    chosen = side_logps(state.model, batch.chosen, keep_distribution=needs_kl)
    rejected = side_logps(state.model, batch.rejected, keep_distribution=needs_kl)
    tokens = TokenLogps(chosen.logp, rejected.logp, chosen.mask, rejected.mask)
    if state.live_reference is not None:
        tokens = _with_live_reference(state, batch, chosen, rejected, tokens)
    return with_reference(state, batch, state.objective.statistics(tokens, state.likelihood))


def _with_live_reference(
    state: "StepState", batch: Batch, chosen: SideLogps, rejected: SideLogps, tokens: TokenLogps
) -> TokenLogps:
    needs_kl = chosen.log_probs is not None
    with torch.no_grad(), adapters_off(state.live_reference):
        ref_w = side_logps(state.live_reference, batch.chosen, keep_distribution=needs_kl)
        ref_l = side_logps(state.live_reference, batch.rejected, keep_distribution=needs_kl)
    tokens = replace(tokens, ref_logp_w=ref_w.logp, ref_logp_l=ref_l.logp)
    if needs_kl:
        tokens = replace(tokens, kl_w=sequential_kl(ref_w, chosen), kl_l=sequential_kl(ref_l, rejected))
    return tokens
