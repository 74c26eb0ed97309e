"""The fixed probe set: likelihoods of held-out pairs, and where the probability went that training moved.

Some of its prompts are also asked about answers that belong to nothing: the chosen answer of another prompt, and their
own with its words shuffled. Where those rise, the mass went to no better answer. They are few, so that all that is
measured beside the likelihoods stays below a fiftieth of the steps between two probes (benchmarks/during.py).

Nothing here draws from a generator that training uses, and nothing has a graph.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from rcray.config import RunConfig
from rcray.data.encoded import EncodedPair, EncodedPairs
from rcray.models.capabilities import capabilities_of
from rcray.models.distribution import TokenMeans, Watch
from rcray.models.inference import pair_sums, plain_sums
from rcray.train.micro import Policy

MISPLACED_PAIRS = 8  # prompts with answers that belong to nothing; a quarter of the default probe set

#: What a probe measures; NaN at the steps between.
PROBE_COLUMNS = (
    "probe_z_w", "probe_z_l", "probe_ranked", "probe_accuracy", "probe_kl", "probe_entropy", "probe_logp_w",
    "probe_logp_greedy", "probe_logp_other", "probe_logp_shuffled",
)  # fmt: skip
NOT_PROBED = {**dict.fromkeys(PROBE_COLUMNS, math.nan), "pathway_realised": ""}


@dataclass(frozen=True)
class Reading:
    """One look at the probe pairs."""

    z_w: Tensor  # [pairs] in the run's reduction
    z_l: Tensor
    per_token: float  # mean log-probability of the chosen answers' tokens
    seen: TokenMeans | None  # of their distributions, where those are watched

    @property
    def margin(self) -> Tensor:
        """[pairs]."""
        return self.z_w - self.z_l


@dataclass(frozen=True)
class Probe:
    """The probe set of a run, and the start model's distributions on it."""

    policy: Policy
    data: EncodedPairs
    misplaced: EncodedPairs  # chosen: another prompt's chosen answer; rejected: the own one, shuffled
    sums: Callable[..., Tensor]
    watch: Watch | None  # None: the model does more than apply its head, and distributions are not measured
    start: Reading | None = None  # where training began

    @classmethod
    def of(cls, config: RunConfig, policy: Policy, held_out: EncodedPairs, tokenizer: Any) -> "Probe":
        """Before anything is trained or restored: the model as it stands is the start model."""
        pairs = held_out.pairs[: config.train.probe_pairs]
        one_shape = config.execution.compile or config.execution.parallel == "fsdp"  # by way of the plain rows
        model = policy.model
        watch = Watch(model.get_output_embeddings()) if capabilities_of(model).plain_head else None
        misplaced = EncodedPairs(misplaced_answers(pairs, tokenizer, config.data.max_length), held_out.report)
        probe = cls(
            policy,
            EncodedPairs(pairs, held_out.report),
            misplaced,
            plain_sums if one_shape else pair_sums,
            watch,
        )
        return replace(probe, start=probe._read())  # the first reading of a watch records

    def measure(self, *, at_start: bool = False) -> dict[str, float]:
        """The columns of a record, of the model as it stands; `at_start`: nothing was trained yet, and it was read."""
        reading = self.start if at_start and self.start else self._read()
        z_w, z_l, seen = reading.z_w, reading.z_l, reading.seen
        grown = reading.margin - (self.start.margin if self.start else 0)
        other = shuffled = math.nan
        if len(self.misplaced.pairs):
            sums = self._sums(self.misplaced, None).sum(1)
            other, shuffled = (sums[:2] / sums[2:]).tolist()
        return {
            "probe_z_w": z_w.mean().item(),
            "probe_z_l": z_l.mean().item(),
            "probe_ranked": (z_w > z_l).double().mean().item(),
            "probe_accuracy": (grown.sign() + 1).double().mean().item() / 2,  # one that did not move is a toss
            "probe_kl": seen.kl if seen else math.nan,
            "probe_entropy": seen.entropy if seen else math.nan,
            "probe_logp_w": reading.per_token,
            "probe_logp_greedy": seen.greedy if seen else math.nan,
            "probe_logp_other": other,
            "probe_logp_shuffled": shuffled,
        }

    def _read(self) -> Reading:
        """A watch reads along."""
        if self.watch:
            self.watch.begin()
        sum_w, sum_l, n_w, n_l = self._sums(self.data, self.watch)
        seen = self.watch.end() if self.watch else None
        z = (sum_w / n_w, sum_l / n_l) if self.policy.likelihood == "mean" else (sum_w, sum_l)
        return Reading(*z, (sum_w.sum() / n_w.sum()).item(), seen)

    def _sums(self, data: EncodedPairs, watch: Watch | None) -> Tensor:
        policy, pairs = self.policy, data.pairs
        with torch.no_grad(), policy.precision():
            return self.sums(policy.model, pairs, data.lengths, range(len(pairs)), policy.device, watch=watch)


def misplaced_answers(pairs: Sequence[EncodedPair], tokenizer: Any, max_length: int) -> list[EncodedPair]:
    """The first prompts with two answers each that belong to nothing; none where all prompts are the same."""
    misplaced = []
    for i, pair in enumerate(pairs[:MISPLACED_PAIRS]):
        others = (*pairs[i + 1 :], *pairs[:i])
        other = next((other.chosen for other in others if other.prompt != pair.prompt), None)
        shuffled = shuffled_words(pair.chosen, tokenizer, f"shuffled/{i}")
        room = max_length - len(pair.prompt)
        if other and shuffled and room > 0:
            misplaced.append(EncodedPair(pair.row, pair.prompt, other[:room], shuffled[:room]))
    return misplaced


def shuffled_words(answer: Sequence[int], tokenizer: Any, seed: str) -> tuple[int, ...]:
    """The words of an answer in another order, between the special tokens that it begins and ends with."""
    special = set(tokenizer.all_special_ids)
    inner = [i for i, token in enumerate(answer) if token not in special]
    if not inner:
        return ()
    first, last = inner[0], inner[-1] + 1
    words = tokenizer.decode(list(answer[first:last]), skip_special_tokens=True).split()
    random.Random(seed).shuffle(words)
    ids = tokenizer.encode(" ".join(words), add_special_tokens=False)
    return (*answer[:first], *ids, *answer[last:])
