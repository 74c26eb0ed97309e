"""The pairs of every look of a run, and their likelihoods where training began."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rcray.data.batch import collate
from rcray.data.encoded import EncodedPair
from rcray.data.schedule import LookSchedule
from rcray.models.likelihood import side_logps
from rcray.train.look import Fresh
from rcray.train.micro import Policy


@dataclass(frozen=True)
class FreshPairs:
    """This worker's share of them."""

    plan: LookSchedule
    data: Sequence[EncodedPair]
    portion: int  # pairs of one forward
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
    ) -> "FreshPairs":
        """Reads the start likelihoods from the reference cache, or computes them with the model as it stands."""
        looks = (plan.rows(step) for step in range(plan.schedule.total_steps))
        wanted = list(dict.fromkeys(row for rows in looks if rows for row in rows[rank::workers]))
        start: dict[int, tuple[float, float]] = {}
        for at in range(0, len(wanted), portion):
            rows = wanted[at : at + portion]
            start |= dict(zip(rows, map(tuple, _likelihoods(policy, data, rows).T.tolist()), strict=True))
        return cls(plan, data, portion, rank, workers, start)

    def at(self, step: int) -> Fresh | None:
        """Those of the look at a step, counting from 0; None where there is none."""
        rows = self.plan.rows(step)
        if rows is None:
            return None
        mine = rows[self.rank :: self.workers]
        batches = [collate(self.data, mine[i : i + self.portion]) for i in range(0, len(mine), self.portion)]
        return Fresh(batches, len(rows), torch.tensor([self.start[row] for row in mine], dtype=torch.float64).T)


def _likelihoods(policy: Policy, data: Sequence[EncodedPair], rows: list[int]) -> Tensor:
    """[2, pairs] in the run's reduction."""
    if policy.reference is not None:
        cached, index = policy.reference, torch.tensor(rows)
        sums = torch.stack([cached.sum_w[index], cached.sum_l[index]])
        lengths = torch.stack([cached.n_w[index], cached.n_l[index]])
    else:
        batch = collate(data, rows).to(policy.device)
        with torch.no_grad(), policy.precision():
            sides = [side_logps(policy.model, side) for side in (batch.chosen, batch.rejected)]
        sums, lengths = (torch.stack([getattr(s, name) for s in sides]) for name in ("sums", "lengths"))
    return (sums / lengths if policy.likelihood == "mean" else sums).double().cpu()
