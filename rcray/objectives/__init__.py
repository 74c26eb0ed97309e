"""The objective zoo: pure functions of pair likelihoods.

Use it in a loop of your own::

    from rcray.objectives import PairLogps, objective
    loss = objective("dpo", beta=0.1).loss(PairLogps(z_w, z_l, n_w, n_l, ref_w, ref_l)).mean()
"""

from rcray.objectives import cures, margin, ratio, token, trl  # noqa: F401  registration
from rcray.objectives.base import Objective, PairLogps, TokenLogps, build_objective, objective, reduce_tokens

__all__ = ["Objective", "PairLogps", "TokenLogps", "build_objective", "objective", "reduce_tokens"]
