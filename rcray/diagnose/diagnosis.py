"""From an experiment's start model and pairs to a diagnosis: numbers per pair, and which pairs are worst by what."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from rcray.config import RunConfig
from rcray.data.encoded import EncodedPair
from rcray.data.pairs import row_numbers
from rcray.data.prepare import prepare_data
from rcray.diagnose.measures import Measures, measure_pairs, predicted_pathways
from rcray.diagnose.text import TextMeasures, measure_text
from rcray.errors import ConfigError, did_you_mean
from rcray.records.columns import PATHWAYS
from rcray.store import Store


@dataclass(frozen=True)
class Criterion:
    """A column by which pairs are bad: a yes or no, or a number of which the largest are worst."""

    name: str
    title: str
    help: str
    values: Callable[["Diagnosis"], np.ndarray]  # over the sample
    ranked: bool = True


CRITERIA = (
    Criterion("ches", "CHES per token", "the higher, the more the pair drags its own chosen answer down",
              lambda d: d.measures.ches_per_token),
    Criterion("misranked", "Misranked (nats/token)", "how much likelier the start model finds the rejected answer",
              lambda d: -d.measures.margin),
    Criterion("entangled", "Cosine of the scores", "at the head: the nearer to 1, the narrower the band",
              lambda d: d.measures.cosine),
    Criterion("overlap", "Overlap of the answers", "neighbouring tokens that both answers share, 0 to 1",
              lambda d: d.text.overlap[d.sample]),
    Criterion("longer", "Chosen longer (tokens)", "how many tokens longer the chosen answer is",
              lambda d: d.measures.n_w - d.measures.n_l),
    Criterion("duplicate", "Duplicate", "an earlier row is the same",
              lambda d: d.text.duplicate[d.sample], ranked=False),
    Criterion("contradictory", "Contradictory", "a row of the same prompt says the opposite",
              lambda d: d.text.contradictory[d.sample], ranked=False),
)  # fmt: skip
BY_NAME = {criterion.name: criterion for criterion in CRITERIA}
#: What a filter leaves out unless told otherwise.
DROPPED = ("duplicate", "contradictory", "misranked", "entangled")


@dataclass(frozen=True)
class Diagnosis:
    """One start model on one dataset."""

    config: RunConfig
    configs: tuple[RunConfig, ...]  # of all cells that begin like this, for their objectives
    tokenizer: Any
    pairs: Sequence[EncodedPair]  # of the whole training split
    account: str  # what became of the rows
    truncated: int
    sample: np.ndarray  # positions of the pairs that the model has read
    measures: Measures
    text: TextMeasures

    @cached_property
    def numbers(self) -> list[int]:
        """Row numbers of the sample, as `data.exclude_rows` counts them; of labelled answers, numbers of the pairs."""
        if self.config.data.format == "unpaired":
            return [int(i) for i in self.sample]
        names = [self.pairs[i].row for i in self.sample.tolist()]
        numbers = row_numbers(self.config.data, names)
        return [numbers[name] for name in names]

    def pathways(self) -> dict[str, dict[str, float] | str]:
        """For each objective, the share of the sample's pairs on each pathway; or why it is not predicted."""
        shares: dict[str, dict[str, float] | str] = {}
        for config in self.configs:
            words = predicted_pathways(self.measures, config.objective, config.likelihood)
            if isinstance(words, str):
                shares[config.objective_title] = words
            else:
                shares[config.objective_title] = {word: words.count(word) / len(words) for word in PATHWAYS}
        return shares

    def worst(self, name: str, share: float) -> np.ndarray:
        """Places in the sample of the worst pairs by a criterion, the worst first: all that are marked, or a share."""
        values = BY_NAME[name].values(self)
        order = np.argsort(-values.astype(float), kind="stable")
        if not BY_NAME[name].ranked:
            return order[: int(values.sum())]
        return order[: max(1, round(share * len(order)))]

    def dropped(self, names: Sequence[str], share: float) -> dict[int, list[str]]:
        """Row numbers that a filter leaves out, and why."""
        reasons: dict[int, list[str]] = {}
        for name in names:
            for place in self.worst(name, share).tolist():
                reasons.setdefault(self.numbers[place], []).append(name)
        return dict(sorted(reasons.items()))


def check_criteria(names: Sequence[str]) -> None:
    """Refuses a criterion that there is none of."""
    for name in names:
        if name not in BY_NAME:
            raise ConfigError(f"--drop {name}: no such column{did_you_mean(name, list(BY_NAME))}")


def diagnose(
    configs: Sequence[RunConfig],
    store: Store,
    pairs: int | None,
    on_pairs: Callable[..., None] = lambda done, total: None,
) -> Diagnosis:
    """Diagnoses cells that begin with the same model on the same pairs, of which the model reads `pairs`, or all.

    `on_pairs` is told how many it has read, of how many.
    """
    from rcray.models.attention import read_with_attention
    from rcray.models.capabilities import use_precision
    from rcray.models.device import asked_device
    from rcray.models.load import load_model
    from rcray.models.precision import Precision

    config = configs[0]
    device = asked_device(config.execution.gpus_per_worker)
    loaded = load_model(config.model, store.cache, device=device)
    use_precision(loaded.model, Precision.of(config, device))
    read_with_attention(loaded.model, device, config.execution)
    loaded.model.eval()
    data = prepare_data(config.data, loaded.tokenizer, store.cache).train
    sample = np.arange(len(data.pairs))
    if pairs is not None and pairs < len(sample):
        sample = np.array(sorted(random.Random(0).sample(range(len(sample)), pairs)))
    say = partial(on_pairs, total=len(sample))
    say(0)
    measures = measure_pairs(loaded.model, data, sample.tolist(), device, config.likelihood, say)
    truncated = data.report.kinds["truncated"].count if "truncated" in data.report.kinds else 0
    return Diagnosis(
        config,
        tuple({c.objective_title: c for c in configs}.values()),
        loaded.tokenizer,
        data.pairs,
        data.report.summary(),
        truncated,
        sample,
        measures,
        measure_text(data.pairs),
    )


def same_start(config: RunConfig) -> tuple[str, str, str]:
    """Equal for cells that begin with the same model on the same pairs, reduced alike."""
    return config.model.model_dump_json(), config.data.model_dump_json(), config.likelihood
