"""The batches of the next step, made by a thread while a GPU works on this one; on a CPU they are made when needed."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from rcray.data.batch import Batch, Side, collate, mismatched
from rcray.data.encoded import EncodedPair
from rcray.data.layout import LaidOut
from rcray.data.schedule import Schedule
from rcray.train.micro import Policy, lay_out


@dataclass
class Ahead:
    """This worker's micro-batches by step, counting from 0."""

    policy: Policy
    pairs: Sequence[EncodedPair]
    schedule: Schedule
    rank: int = 0
    workers: int = 1
    _coming: dict[int, Future[list[Batch]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # A thread beside a CPU's own arithmetic would only take turns with it.
        on_cpu = self.policy.device.type == "cpu"
        self._thread = None if on_cpu else ThreadPoolExecutor(1, thread_name_prefix="rcray-batches")

    def at(self, step: int) -> list[Batch]:
        """Those of a step; the next one's are begun."""
        if self._thread is None:
            return self._make(step)
        ready = self._coming.pop(step, None) or self._thread.submit(self._make, step)
        if step + 1 < self.schedule.total_steps:
            self._coming[step + 1] = self._thread.submit(self._make, step + 1)
        return ready.result()

    def tokens(self, step: int) -> int:
        """Real ones that all workers read in a step: the schedule tells, and nobody waits for the others' counts."""
        return sum(self.pairs[row].tokens for part in self.schedule.micro_batches(step) for row in part)

    def _make(self, step: int) -> list[Batch]:
        dealt = self.schedule.micro_batches(step, self.rank, self.workers)
        weights, fresh = self.schedule.weights(step), self.schedule.fresh(step)
        others: list[Side | None] = [None] * len(dealt)
        if self.policy.baseline is not None:
            others = [self._mismatched(index, weights) for index in self.schedule.micro_batches(step)]
        batches = [
            collate(self.pairs, index, weights, other, fresh) for index, other in zip(dealt, others, strict=True)
        ]
        return batches if self._thread is None else [self._laid_out(batch) for batch in batches]

    def _mismatched(self, index: list[int], weights: np.ndarray | None) -> Side:
        """This worker's share of what the baseline of a micro-batch reads."""
        return mismatched(self.pairs, index, self.policy.longest, weights, rank=self.rank, workers=self.workers)

    def _laid_out(self, batch: Batch) -> Batch:
        (layout,) = lay_out(self.policy, batch, apart=False)
        return LaidOut(**{**vars(batch), "index": batch.index.pin_memory(), "layout": layout.pinned()})
