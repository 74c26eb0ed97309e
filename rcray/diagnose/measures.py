"""What one forward of the start model says of every pair.

Legend, of one pair; h_t is the hidden state that predicts answer token t, G the score dz/dW of an answer at the head
  margin         z_w / n_w - z_l / n_l: how much likelier the chosen answer is, per token
  CHES           <H_w, H_l> - |H_w|^2, H = sum_t h_t (Razin et al. 2024): high, the pair drags its chosen answer down
  CHES per token <H_w, H_l> / (n_w n_l) - |H_w|^2 / n_w^2: the same with means, so that length does not decide
  entanglement   |G_w|^2 - <G_w, G_l> and |G_l|^2 - <G_w, G_l> (Yuan et al. 2024): where the first is negative, DPO's
                 own gradient on the pair lowers its chosen answer; where the second is, it raises the rejected one
  cosine         <G_w, G_l> / |G_w| |G_l|
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rcray.calibration.head_scores import pair_products
from rcray.config.objectives import ObjectiveParams
from rcray.data.batch import collate
from rcray.data.encoded import EncodedPairs
from rcray.data.layout import CHOSEN, REJECTED, Layout
from rcray.errors import ModelError
from rcray.models.capabilities import capabilities_of
from rcray.models.forward import answer_logps
from rcray.models.head import HeadPass
from rcray.models.inference import TOKENS, laid_out, token_batches
from rcray.objectives import PairLogps, build_objective
from rcray.objectives.base import Reduction, incentives
from rcray.records.columns import Pathway, pathway_of

NOT_PREDICTED = "token weights"  # of objectives whose likelihoods depend on more than sums


@dataclass(frozen=True)
class Measures:
    """Numbers per pair, [pairs] each, in double."""

    sum_w: np.ndarray
    sum_l: np.ndarray
    n_w: np.ndarray
    n_l: np.ndarray
    ches: np.ndarray
    ches_per_token: np.ndarray
    score_w: np.ndarray  # |G_w|^2
    score_l: np.ndarray  # |G_l|^2
    score_wl: np.ndarray  # <G_w, G_l>

    @property
    def margin(self) -> np.ndarray:
        """How much likelier the chosen answer is, per token."""
        return self.sum_w / self.n_w - self.sum_l / self.n_l

    @property
    def cosine(self) -> np.ndarray:
        """Of the two scores."""
        return self.score_wl / np.sqrt(self.score_w * self.score_l)

    @property
    def entanglement_w(self) -> np.ndarray:
        """|G_w|^2 - <G_w, G_l>."""
        return self.score_w - self.score_wl

    @property
    def entanglement_l(self) -> np.ndarray:
        """|G_l|^2 - <G_w, G_l>."""
        return self.score_l - self.score_wl


def measure_pairs(
    model: Any,
    data: EncodedPairs,
    index: Sequence[int],
    device: torch.device,
    likelihood: Reduction,
    on_pairs: Callable[[int], None] | None = None,
) -> Measures:
    """One forward of every pair at `index`, in that order.

    Raises:
        ModelError: the model does more than apply its head, so that head scores are not what they should be.
    """
    allowed = capabilities_of(model)
    if not allowed.plain_head:
        raise ModelError(
            f"{type(model).__name__} does more than apply its output head, and scores are read off there",
            fix="diagnose with another model of the same tokenizer",
        )
    place = {int(i): column for column, i in enumerate(index)}
    columns = np.empty((9, len(place)))
    done = 0
    with torch.no_grad(), allowed.precision():
        for rows in token_batches(data.lengths, list(place), TOKENS.get(device.type, TOKENS["cuda"])):
            layout = laid_out(collate(data.pairs, rows), allowed).to(device)
            logp, applied = answer_logps(model, layout, scores=True)
            columns[:, [place[i] for i in rows]] = _of_layout(layout, logp, applied, likelihood)
            done += len(rows)
            if on_pairs:
                on_pairs(done)
    return Measures(*columns)


def _of_layout(layout: Layout, logp: Tensor, applied: HeadPass, likelihood: Reduction) -> np.ndarray:
    """[9, pairs]."""
    sums = [layout.matrix(logp, side).sum(1, dtype=torch.float64) for side in (CHOSEN, REJECTED)]
    n_w, n_l = layout.counts.double()
    hidden = applied.h.new_zeros(2, layout.pairs, applied.h.shape[1], dtype=torch.float64)
    for side, part in ((CHOSEN, slice(None, layout.split)), (REJECTED, slice(layout.split, None))):
        hidden[side].index_add_(0, layout.pair[part], applied.h[part].double())
    across, own = (hidden[0] * hidden[1]).sum(1), hidden[0].square().sum(1)
    weights = torch.ones_like(logp) if likelihood == "sum" else layout.token_seeds(1 / n_w, 1 / n_l).to(logp.dtype)
    products = pair_products(applied, layout, weights)
    scores = torch.stack([p.values for p in products]).T.cpu()  # <w, w>, <l, l>, <w, l> of every pair
    ches, normalised = across - own, across / (n_w * n_l) - own / n_w**2
    return torch.stack([*(x.cpu() for x in (*sums, n_w, n_l, ches, normalised)), *scores]).numpy()


def predicted_pathways(measures: Measures, params: ObjectiveParams, likelihood: Reduction) -> list[Pathway] | str:
    """The pathway of every pair under one plain gradient step at the head on that pair alone, where training begins.

    A proxy: training moves all parameters by an optimizer with memory, on all pairs together. What it will really do
    is recorded while it does it (`pathway_predicted`).
    """
    objective = build_objective(params)
    if objective.formula.statistics is not None:
        return NOT_PREDICTED
    n_w, n_l = torch.from_numpy(measures.n_w), torch.from_numpy(measures.n_l)
    z_w, z_l = torch.from_numpy(measures.sum_w), torch.from_numpy(measures.sum_l)
    if likelihood == "mean":
        z_w, z_l = z_w / n_w, z_l / n_l
    at_start = {"kl_baseline": z_w.new_zeros(())}  # KTO's, of a policy that is its own reference
    pairs = PairLogps(z_w, z_l, n_w, n_l, z_w.clone(), z_l.clone(), likelihood, at_start)
    given = incentives(objective, pairs)
    d_w, d_l = given.d_w.numpy(), given.d_l.numpy()
    change_w = d_w * measures.score_w - d_l * measures.score_wl
    change_l = d_w * measures.score_wl - d_l * measures.score_l
    return [pathway_of(*change) for change in zip(change_w.tolist(), change_l.tolist(), strict=True)]
