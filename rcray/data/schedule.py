"""Which pairs a step sees.

The order is a function of (seed, epoch), so the position in the data is the step number: nothing else has to be
saved to resume. A micro-batch is dealt out row by row to the workers; they never overlap.

With bucketing by length, a window of shuffled pairs is sorted by length and cut into batches, and the batches are
shuffled again: a batch is padded little, and long pairs do not come together in time.

Pairs made of unpaired rows weigh in a step what repeats.py says.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from rcray.config.calibration import first_looks, looks_at
from rcray.config.schema import RunConfig
from rcray.data.repeats import kept_together, weights_of
from rcray.errors import ConfigError

WINDOW_BATCHES = 64  # batches whose pairs are sorted together: more, less padding; fewer, more mixing


@dataclass(frozen=True)
class Schedule:
    """The order of pairs over a whole run."""

    pairs: int
    batch_size: int
    micro_batch_size: int
    epochs: int
    seed: int
    sizes: np.ndarray | None = field(default=None, repr=False, compare=False)  # [pairs] tokens; None: no bucketing
    # With a budget of tokens in place of a number of pairs: the budget, and the tokens of each pair.
    budget: int | None = None
    tokens: np.ndarray | None = field(default=None, repr=False, compare=False)
    behind: np.ndarray | None = field(default=None, repr=False, compare=False)  # [pairs, 2] rows of unpaired data
    # [pairs, 2] of both answers, numbered; None: no two pairs share one.
    prompts: np.ndarray | None = field(default=None, repr=False, compare=False)
    _kept: dict[int, np.ndarray] = field(default_factory=dict, init=False, repr=False, compare=False)
    _weights: dict[int, np.ndarray] = field(default_factory=dict, init=False, repr=False, compare=False)
    _first: dict[int, np.ndarray] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def of(
        cls,
        config: RunConfig,
        pairs: int,
        lengths: np.ndarray | None = None,
        behind: np.ndarray | None = None,
        prompts: np.ndarray | None = None,
    ) -> "Schedule":
        """The schedule of a run over the pairs that survived encoding; the arrays are those of EncodedPairs."""
        if pairs < config.train.batch_size:
            raise ConfigError(
                f"train.batch_size {config.train.batch_size}: only {pairs} usable pairs, not one step would be made",
                fix="lower train.batch_size or raise data.train_pairs",
            )
        train = config.train
        bucketed, budget = config.data.bucketing == "length", train.micro_batch_tokens
        if lengths is None and (bucketed or budget is not None):
            raise ValueError("bucketing by length and a budget of tokens need the lengths of the pairs")
        tokens = None if lengths is None else lengths @ (2, 1, 1)  # the prompt is read on both sides
        return cls(
            pairs, train.batch_size, train.micro_batch_size, train.epochs, train.seed,
            sizes=tokens if bucketed else None,
            budget=budget,
            tokens=None if budget is None else tokens,
            behind=behind,
            prompts=prompts,
        )  # fmt: skip

    @property
    def steps_per_epoch(self) -> int:
        """Whole batches in one pass; the incomplete last one is left out."""
        return self.pairs // self.batch_size

    @property
    def pairs_per_epoch(self) -> int:
        """The pairs that these have."""
        return self.steps_per_epoch * self.batch_size

    @property
    def total_steps(self) -> int:
        """Optimizer steps of the run."""
        return self.epochs * self.steps_per_epoch

    def micro_batches(self, step: int, rank: int = 0, workers: int = 1) -> list[list[int]]:
        """Positions of this worker's pairs in each micro-batch of a step, counting steps from 0."""
        epoch, position = divmod(step, self.steps_per_epoch)
        start = position * self.batch_size
        rows = self._order(epoch)[start : start + self.batch_size].tolist()
        if self.budget is not None and self.tokens is not None:
            parts = [part[rank::workers] for part in within_budget(rows, self.tokens, self.budget, workers)]
        else:
            micro = self.micro_batch_size
            parts = [rows[i : i + micro][rank::workers] for i in range(0, self.batch_size, micro)]
            if self.sizes is None:
                return parts
        # Sorted rows: without this, every step would go from short to long, and so would the calibrator's EMAs.
        turned = torch.randperm(len(parts), generator=_generator(self.seed, epoch, 1 + position)).tolist()
        return [parts[i] for i in turned]

    def weights(self, step: int) -> np.ndarray | None:
        """[pairs, 2] what the sides of each pair weigh in the step of this epoch that has it; None: 1 each."""
        if self.behind is None:
            return None
        behind, epoch = self.behind, step // self.steps_per_epoch

        def make() -> np.ndarray:
            order = self._order(epoch)[: self.pairs_per_epoch]
            return weights_of(behind, order, self.batch_size, _generator(self.seed, epoch, -1))

        return _once(self._weights, epoch, make)

    def fresh(self, step: int) -> np.ndarray | None:
        """[pairs] whether no pair of an earlier step of this epoch shares a prompt with it; None: all are."""
        epoch, position = divmod(step, self.steps_per_epoch)
        first = self.first_trained(epoch)
        return None if first is None else first >= position * self.batch_size

    def first_trained(self, epoch: int) -> np.ndarray | None:
        """[pairs] where in the order of an epoch a prompt of each pair comes first; None: no two pairs share one."""
        prompts = self.prompts
        if prompts is None:
            return None

        def make() -> np.ndarray:
            order = self._order(epoch)[: self.pairs_per_epoch]
            first = np.full(prompts.max() + 1, len(order))
            np.minimum.at(first, prompts[order], np.arange(len(order))[:, None])
            earliest: np.ndarray = first[prompts].min(1)
            return earliest

        return _once(self._first, epoch, make)

    def _order(self, epoch: int) -> np.ndarray:
        """The rows of one epoch; kept, because every step of the epoch asks for them."""

        def make() -> np.ndarray:
            generator = _generator(self.seed, epoch)
            if self.behind is None:
                order = torch.randperm(self.pairs, generator=generator).numpy()
            else:
                order = kept_together(self.behind, generator)
            if self.sizes is None:
                return order
            return bucketed(order[: self.pairs_per_epoch], self.sizes, self.batch_size, generator)

        return _once(self._kept, epoch, make)


def _once(kept: dict[int, np.ndarray], epoch: int, make: Callable[[], np.ndarray]) -> np.ndarray:
    """What belongs to an epoch; only the newest is kept. The thread that makes batches may be an epoch ahead."""
    known = kept.get(epoch)
    if known is None:
        known = make()
        kept.clear()
        kept[epoch] = known
    return known


@dataclass(frozen=True)
class LookSchedule:
    """Which pairs a look sees: such as will be trained on late in the epoch, so that they stay fresh until then.

    Until the next look the scores of these pairs judge the optimizer's memory; of one that is trained on meanwhile,
    its own gradient would be part. So it is with another pair of the same prompt: where prompts repeat, pairs are taken
    whose prompts are not trained on either.

    Looks are taken every few steps, late in a long run at half of these, and at each of the first ones (of a short run:
    of its first quarter), while an optimizer's moments build up.
    """

    schedule: Schedule
    every: int
    pairs: int
    workers: int = 1  # each of whom has as many of them
    _taken: dict[int, np.ndarray] = field(default_factory=dict, init=False, repr=False, compare=False)

    def rows(self, step: int) -> list[int] | None:
        """Positions of the pairs of the look at this step; None where there is none. Later looks see later pairs.

        They lie in the last quarter of the epoch, and past what is trained on before the next look. Where too few are
        left there, the last of the epoch and those that it leaves out are taken, then those trained on longest ago;
        never the step's own.
        """
        epoch, position = divmod(step, self.schedule.steps_per_epoch)
        taken = self._positions(epoch)
        number = int(np.searchsorted(taken, position))
        if number == len(taken) or taken[number] != position:
            return None
        order = self.schedule._order(epoch)
        size = self.schedule.batch_size
        used = self.schedule.pairs_per_epoch
        count = min(-(-self.pairs // self.workers), (len(order) - size) // self.workers) * self.workers
        if not count:
            return None  # there are no other pairs
        room = max(count, min(len(taken) * count, used // 4 // count * count))
        until = (taken[number + 1] if number + 1 < len(taken) else self.schedule.steps_per_epoch) * size
        first = max(used - room + number * count % room, until)
        first = max(min(first, used - count), (position + 1) * size)
        others = np.concatenate([order[first:used], order[until:first], order[used:], order[: position * size]])
        trained = self.schedule.first_trained(epoch)
        if trained is None and used < len(order):
            trained = np.argsort(order)
        if trained is not None:
            others = others[np.argsort(trained[others] < until, kind="stable")]
        return [int(row) for row in others[:count]]

    def _positions(self, epoch: int) -> np.ndarray:
        """Where in an epoch looks are taken."""
        steps = self.schedule.steps_per_epoch
        first = min(first_looks(self.schedule.total_steps), steps)

        def make() -> np.ndarray:
            return np.array([p for p in range(steps) if looks_at(epoch * steps + p, p, first, self.every)])

        return _once(self._taken, epoch, make)


def _generator(seed: int, epoch: int, step: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed * 1_000_003 + epoch + step * 2_147_483_647)


def bucketed(order: np.ndarray, sizes: np.ndarray, batch_size: int, generator: torch.Generator) -> np.ndarray:
    """Sorts windows of a shuffled order by size, and shuffles the batches; `order` is whole batches."""
    window = WINDOW_BATCHES * batch_size
    starts = range(0, len(order), window)
    parts = [order[i : i + window] for i in starts]
    arranged = np.concatenate([part[np.argsort(sizes[part], kind="stable")] for part in parts])
    turned = torch.randperm(len(order) // batch_size, generator=generator).numpy()
    return arranged.reshape(-1, batch_size)[turned].reshape(-1)


def within_budget(rows: list[int], tokens: np.ndarray, budget: int, workers: int) -> list[list[int]]:
    """Cuts a step into micro-batches of like lengths whose padded tokens per worker stay within the budget.

    Each has as many pairs for every worker. Pairs too long for the budget go alone, one to a worker.
    """
    longest_first = sorted(rows, key=lambda row: (-int(tokens[row]), row))
    parts: list[list[int]] = []
    for start in range(0, len(longest_first), workers):
        deal = longest_first[start : start + workers]
        if parts and (len(parts[-1]) // workers + 1) * int(tokens[parts[-1][0]]) <= budget:
            parts[-1].extend(deal)
        else:
            parts.append(deal)
    return parts
