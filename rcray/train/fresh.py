"""The pairs of every look of a run, and their likelihoods where training began."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rcray.data.batch import collate
from rcray.data.encoded import EncodedPair
from rcray.data.schedule import LookSchedule, within_budget
from rcray.errors import ConfigError
from rcray.models.inference import pair_sums
from rcray.models.likelihood import side_logps
from rcray.train.look import Fresh
from rcray.train.micro import Policy
from rcray.train.sharded import has_shards


@dataclass(frozen=True)
class FreshPairs:
    """This worker's share of them."""

    plan: LookSchedule
    data: Sequence[EncodedPair]
    portion: int  # pairs of one forward, where no budget of tokens says
    rank: int
    workers: int
    start: dict[int, tuple[float, float]]  # position of a pair: its likelihoods

    @classmethod
    def of(
        cls,
        policy: Policy,
        data: Sequence[EncodedPair],
        plan: LookSchedule,
        portion: int,
        *,
        rank: int = 0,
        workers: int = 1,
        steers: bool = False,
    ) -> "FreshPairs":
        """Reads the start likelihoods from the reference cache, or computes them with the model as it stands.

        `steers`: the run is calibrated by its looks, so there must be some.
        """
        looks = (_parts(plan, step, portion, rank, workers) for step in range(plan.schedule.total_steps))
        wanted = list(dict.fromkeys(row for parts in looks for part in parts for row in part))
        start: dict[int, tuple[float, float]] = {}
        # By a budget of tokens; but shards move together, so their workers must make equally many forwards.
        at_once = portion if has_shards(policy.model) else len(wanted)
        for at in range(0, len(wanted), max(1, at_once)):
            rows = wanted[at : at + at_once]
            start |= dict(zip(rows, map(tuple, _likelihoods(policy, data, rows).T.tolist()), strict=True))
        if steers and plan.schedule.total_steps and not start:
            size = plan.schedule.batch_size
            raise ConfigError(
                f"calibration.kind 'update' judges a step of train.batch_size {size} by pairs beside it, and of "
                f"{plan.schedule.pairs} usable ones too few are left",
                fix="lower train.batch_size, raise data.train_pairs, or use calibration.kind published",
            )
        return cls(plan, data, portion, rank, workers, start)

    def at(self, step: int) -> Fresh | None:
        """Those of the look at a step, counting from 0; None where there is none."""
        parts = _parts(self.plan, step, self.portion, self.rank, self.workers)
        if not parts:
            return None
        start = torch.tensor([self.start[row] for part in parts for row in part], dtype=torch.float64).T
        return Fresh([collate(self.data, part) for part in parts], start.shape[1] * self.workers, start)


def _parts(plan: LookSchedule, step: int, portion: int, rank: int, workers: int) -> list[list[int]]:
    """This worker's pairs of the look at a step, forward by forward; as a step of the run, within its budget."""
    rows, schedule = plan.rows(step) or [], plan.schedule
    if schedule.budget is not None and schedule.tokens is not None:
        return [part[rank::workers] for part in within_budget(rows, schedule.tokens, schedule.budget, workers)]
    mine = rows[rank::workers]
    return [mine[i : i + portion] for i in range(0, len(mine), portion)]


def _likelihoods(policy: Policy, data: Sequence[EncodedPair], rows: list[int]) -> Tensor:
    """[2, pairs] in the run's reduction."""
    if policy.reference is not None:
        cached, index = policy.reference, torch.tensor(rows)
        sums = torch.stack([cached.sum_w[index], cached.sum_l[index]])
        lengths = torch.stack([cached.n_w[index], cached.n_l[index]])
    elif not has_shards(policy.model):
        pairs = [data[row] for row in rows]
        sizes = np.array([pair.sizes for pair in pairs])
        sums, lengths = pair_sums(policy.model, pairs, sizes, range(len(pairs)), policy.device).split(2)
    else:
        batch = collate(data, rows).to(policy.device)
        with torch.no_grad(), policy.precision():
            sides = [side_logps(policy.model, side) for side in (batch.chosen, batch.rejected)]
        sums, lengths = (torch.stack([getattr(s, name) for s in sides]) for name in ("sums", "lengths"))
    return (sums / lengths if policy.likelihood == "mean" else sums).double().cpu()
