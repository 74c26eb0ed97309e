"""KTO's baseline K of a micro-batch: how far the policy is from its reference on answers that do not fit their prompts.

Every prompt is read with the answer to another one, the rows of all workers in order and the answers moved on by one
(data/batch.py, `mismatched`), and

    K = max(0, mean of log policy(y'|x) - log reference(y'|x))

without gradient (Ethayarajh et al. 2024, arXiv:2402.01306, as in TRL's KTOTrainer). Workers share these rows, so that
K is the same for any number of them.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from rcray.calibration.scores import Reduce
from rcray.data.batch import Batch
from rcray.models.adapters import adapters_off
from rcray.models.likelihood import side_logps
from rcray.objectives.base import Reduction


def kl_baseline(
    model: Any,
    reference: Any,
    likelihood: Reduction,
    precision: Callable[[], AbstractContextManager[Any]],
    reduce: Reduce | None,
) -> Callable[[Batch], Tensor]:
    """What gives K for a micro-batch; `reference` is a frozen copy, or the model itself with its adapters off."""

    def baseline(batch: Batch) -> Tensor:
        assert batch.mismatched is not None
        side = batch.mismatched.to(next(model.parameters()).device)
        with torch.no_grad(), precision():
            policy = side_logps(model, side)
            with adapters_off(reference):
                frozen = side_logps(reference, side)
        ratios = policy.sums - frozen.sums
        if likelihood == "mean":
            ratios = ratios / policy.lengths
        total = torch.stack([ratios.sum(dtype=torch.float64), ratios.new_full((), len(ratios), dtype=torch.float64)])
        summed, rows = total if reduce is None else reduce.sum(total)
        return (summed / rows).clamp(min=0).to(ratios.dtype)

    return baseline
