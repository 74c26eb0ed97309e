"""A cell's optimizer step on the pretended device, whole: its own model, objective, calibration and optimizer."""

import gc
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from rcray.config import RunConfig
from rcray.config.models import MODELS
from rcray.data.batch import collate, mismatched
from rcray.data.encoded import EncodedPair, EncodedPairs, EncodeReport
from rcray.data.schedule import Schedule
from rcray.models.capabilities import capabilities_of, use_precision
from rcray.models.inference import budget, pair_sums
from rcray.models.load import LoadedModel
from rcray.models.precision import Precision
from rcray.models.reference import ReferenceLogps
from rcray.sweep.pretend.device import Watch, pretend_device
from rcray.sweep.pretend.models import pretended_model
from rcray.train.look import Fresh
from rcray.train.setup import has_baseline, with_references
from rcray.train.step import optimizer_step


@dataclass(frozen=True)
class Lengths:
    """Tokens of every pair of the step."""

    prompt: int
    chosen: int
    rejected: int

    @classmethod
    def longest(cls, tokens: int) -> "Lengths":
        """The pair that holds most memory within a limit per row: a short prompt, two answers as long as it allows."""
        return cls(20, tokens - 20, tokens - 20)


@dataclass(frozen=True)
class Seen:
    """What the watch counted in one optimizer step, or in one forward without a graph."""

    waits: Mapping[str, int]
    stalls: Mapping[str, int]
    copies: Mapping[str, int]
    products: Mapping[str, int]
    attention: Mapping[str, int]
    weights_bytes: int  # alive before: weights, adapters, references
    peak_bytes: int  # of the second step, which has the optimizer's moments beside its activations

    @classmethod
    def of(cls, watch: Watch, weights: int) -> "Seen":
        """All that was counted since the watch last forgot."""
        return cls(
            waits=dict(watch.waits),
            stalls=dict(watch.stalls),
            copies=dict(watch.copies),
            products=dict(watch.products),
            attention=dict(watch.attention),
            weights_bytes=weights,
            peak_bytes=watch.peak,
        )


def pretended_step(config: RunConfig, lengths: Lengths, *, layers: int | None = None, looking: bool = False) -> Seen:
    """Counts the second step, of two micro-batches. Fewer layers where asked; `looking`: with a look, the second.

    A run that takes looks is counted between two of them otherwise.
    """
    device = pretend_device()
    size = config.train.micro_batch_size
    content = config.model_dump(mode="json")
    content["train"] |= {"batch_size": 2 * size}
    config = RunConfig.model_validate(content)
    gc.collect()
    with Watch() as watch:
        loaded = _known_model(config, layers, device)
        pairs = made_up_pairs(2 * size, lengths)
        data = EncodedPairs(pairs, EncodeReport())
        schedule = Schedule.of(config, len(pairs), data.lengths)
        reference = live = None
        token_level = config.objective.traits.token_level
        if config.needs_reference and (token_level or has_baseline(config)):
            live = loaded.model if config.model.trains_adapters else pretended_model(config.model, layers=layers).model
        if config.needs_reference and not token_level:
            reference = ReferenceLogps(*(torch.full((len(pairs),), -99.0).double() for _ in range(4))).to(device)
        state = with_references(config, loaded.model, data, schedule, device, 1, 0, reference, live)
        state.policy.model.train()
        parts = [range(i, i + size) for i in range(0, len(pairs), size)]
        longest = config.data.max_length if state.policy.baseline else 0
        batches = [collate(pairs, part, None, mismatched(pairs, part, longest) if longest else None) for part in parts]
        fresh = None
        if state.looks is not None:
            # As many micro-batches are walked with their sides apart as hold most: both where two branches are as large
            # as the model; with adapters one, and the other goes the ordinary way, both sides at once.
            portions = parts[:1] if config.model.trains_adapters else parts
            count = len(portions) * size
            shown, start = made_up_pairs(count, lengths), torch.full((2, count), -99.0, dtype=torch.float64)
            fresh = Fresh([collate(shown, portion) for portion in portions], count, start)
        weights = watch.live
        optimizer_step(state, batches[:1], 1, fresh)  # from then on the optimizer has its moments
        watch.forget()
        optimizer_step(state, batches, 2, fresh if looking else None)
        seen = Seen.of(watch, weights)
        del state, loaded, live, reference
        gc.collect()
    return seen


def pretended_forward(config: RunConfig, lengths: Lengths, *, layers: int | None = None) -> Seen:
    """Counts one forward without a graph, as the reference, the probe and the evaluation make them: full of tokens."""
    device = pretend_device()
    gc.collect()
    with Watch() as watch:
        model = _known_model(config, layers, device).model.eval()
        pairs = made_up_pairs(budget(model, device) // (2 * (lengths.prompt + lengths.chosen)), lengths)
        sizes = EncodedPairs(pairs, EncodeReport()).lengths
        pair_sums(model, pairs, sizes, range(1), device)  # what the model allows is tried once
        watch.forget()
        weights = watch.live
        pair_sums(model, pairs, sizes, range(len(pairs)), device)
        seen = Seen.of(watch, weights)
        del model
        gc.collect()
    return seen


def _known_model(config: RunConfig, layers: int | None, device: torch.device) -> LoadedModel:
    """In the run's precision; what a preset's architecture allows is not tried out on numbers that are not there."""
    loaded = pretended_model(config.model, layers=layers)
    use_precision(loaded.model, Precision.of(config, device))
    capabilities_of(loaded.model).untried = config.model.name in MODELS
    return loaded


def made_up_pairs(count: int, lengths: Lengths) -> list[EncodedPair]:
    """Pairs of these lengths; their tokens do not matter."""
    sizes = lengths.prompt, lengths.chosen, lengths.rejected
    return [EncodedPair(str(i), *((1,) * n for n in sizes)) for i in range(count)]
