"""The held-out pairs whose chosen answers fell most: what each of their tokens lost or gained by training.

A few pairs only, so both models read them once more, which takes a small part of what all pairs took.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from rcray.data.batch import collate
from rcray.data.encoded import EncodedPair
from rcray.models.adapters import adapters_off
from rcray.models.capabilities import capabilities_of
from rcray.models.inference import budget, token_batches
from rcray.models.likelihood import side_logps
from rcray.models.load import LoadedModel
from rcray.records.displaced import AnswerTokens, DisplacedPair

_CONTEXT = 4  # tokens before one with which it is decoded: what it is as text depends on them


def token_logps(model: Any, pairs: Sequence[EncodedPair], device: torch.device) -> list[tuple[np.ndarray, ...]]:
    """Log-probabilities of the tokens of the chosen and of the rejected answer of each pair."""
    lengths = np.array([pair.sizes for pair in pairs], np.int64).reshape(-1, 3)
    logps: list[tuple[np.ndarray, ...]] = [()] * len(pairs)
    training = model.training
    model.eval()
    try:
        with torch.no_grad(), capabilities_of(model).precision():
            for rows in token_batches(lengths, range(len(pairs)), budget(model, device)):
                batch = collate(pairs, rows).to(device)
                sides = [side_logps(model, side) for side in (batch.chosen, batch.rejected)]
                for at, row in enumerate(rows):
                    logps[row] = tuple(side.logp[at][side.mask[at].bool()].double().cpu().numpy() for side in sides)
    finally:
        model.train(training)
    return logps


def displaced_pairs(
    trained: LoadedModel, base: Callable[[], LoadedModel], pairs: Sequence[EncodedPair], device: torch.device
) -> tuple[DisplacedPair, ...]:
    """Texts and both models' log-probabilities together.

    Args:
        trained: the trained model.
        base: gives what training began with. Full weights then lie beside the trained ones, which takes no more than
            their gradients and moments did.
        pairs: which pairs, the worst first.
        device: where the models are.
    """
    if not pairs:
        return ()
    after, tokenizer = token_logps(trained.model, pairs, device), trained.tokenizer
    start = base()
    with adapters_off(start.model):
        before = token_logps(start.model, pairs, device)
    return tuple(
        DisplacedPair(
            pair.row,
            tokenizer.decode(list(pair.prompt), skip_special_tokens=True).strip(),
            *(
                AnswerTokens(_pieces(tokenizer, ids), old[side], new[side])
                for side, ids in enumerate((pair.chosen, pair.rejected))
            ),
        )
        for pair, old, new in zip(pairs, before, after, strict=True)
    )


def _pieces(tokenizer: Any, ids: Sequence[int]) -> tuple[str, ...]:
    """The text that each token adds to those before it."""

    def text(part: Sequence[int]) -> str:
        return str(tokenizer.decode(list(part), clean_up_tokenization_spaces=False))

    pieces = []
    for i in range(len(ids)):
        before = ids[max(0, i - _CONTEXT) : i]
        pieces.append(text([*before, ids[i]])[len(text(before)) :])
    return tuple(pieces)
