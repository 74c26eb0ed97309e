"""Likelihoods of many pairs without a graph: sorted by length, cut by a budget of tokens, prompts computed once.

For the reference, the probe and the evaluation. Pairs of like length lie in one forward, so little is padding; the
prompt of a pair is shared by its answers where the model allows it and it spares enough. A forward that runs out of
memory is made in halves, and those after it are no larger than these.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rcray.config.shape import WIDE
from rcray.data.batch import Batch, collate
from rcray.data.encoded import EncodedPair
from rcray.data.layout import CHOSEN, REJECTED, Layout, longest_row, packed, two_rows
from rcray.faults import classify
from rcray.models.capabilities import Capabilities, capabilities_of
from rcray.models.distribution import Watch
from rcray.models.forward import answer_logps
from rcray.models.likelihood import side_logps

log = logging.getLogger(__name__)

#: Tokens of one forward, padding included: enough to fill the device, few enough to stay small beside the weights.
TOKENS = {"cpu": 2048, "cuda": 16384}
#: The most where a forward can neither be halved nor made again; what an optimizer step holds is there, too.
FIXED_TOKENS = 4096
#: Of a wide model on a CPU, which fewer fill: those that lie in one forward are then closer in length.
WIDE_TOKENS = 768


def budget(model: Any, device: torch.device) -> int:
    """Of tokens, for this model on this device."""
    if device.type == "cpu" and model.get_output_embeddings().weight.shape[-1] >= WIDE:
        return WIDE_TOKENS
    return TOKENS.get(device.type, TOKENS["cuda"])


def length_order(lengths: np.ndarray) -> np.ndarray:
    """Positions of pairs from the longest to the shortest; `lengths` as in EncodedPairs."""
    return np.argsort(-(lengths @ (1, 1, 1)), kind="stable")


def token_batches(lengths: np.ndarray, index: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Cuts `index`, sorted by length, into forwards of at most `budget` tokens; a longer pair goes alone."""
    sizes = lengths @ (2, 1, 1)  # both rows; shared prompts only make it less
    order = sorted(index, key=lambda i: (-int(sizes[i]), i))
    batch: list[int] = []
    for i in order:
        if batch and (len(batch) + 1) * int(sizes[batch[0]]) > budget:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def pair_sums(
    model: Any,
    pairs: Sequence[EncodedPair],
    lengths: np.ndarray,
    index: Sequence[int],
    device: torch.device,
    on_pairs: Callable[[int], None] | None = None,
    watch: Watch | None = None,
) -> Tensor:
    """Summed log-likelihoods and lengths of both answers, [4, pairs] in double, in the order of `index`.

    `on_pairs` is told after each forward how many pairs are done; `watch` sees the chosen answers' distributions.
    """
    place = {int(i): column for column, i in enumerate(index)}
    all_sums = torch.empty(4, len(place), dtype=torch.float64)
    allowed, done = capabilities_of(model), 0
    most = budget(model, device)
    tokens = min(most, allowed.tokens or most)
    waiting = deque(token_batches(lengths, list(place), tokens))
    with torch.no_grad(), allowed.precision():
        while waiting:
            rows = waiting.popleft()
            sums = _sums_that_fit(model, collate(pairs, rows), device, allowed, watch)
            if sums is None:
                computed = len(rows) * int((lengths[rows] @ (2, 1, 1)).max())
                allowed.tokens = computed // 2
                log.warning("a forward of %d tokens ran out of memory; going on with %d", computed, allowed.tokens)
                waiting = deque(token_batches(lengths, [*rows, *chain(*waiting)], allowed.tokens))
                continue
            all_sums[:, torch.tensor([place[i] for i in rows])] = sums.double().cpu()
            done += len(rows)
            if on_pairs:
                on_pairs(done)
    return all_sums


def _sums_that_fit(
    model: Any, batch: Batch, device: torch.device, allowed: Capabilities, watch: Watch | None
) -> Tensor | None:
    """The sums of a batch; None where it has no room and could be halved."""
    mark = watch.mark() if watch else None
    try:
        return batch_sums(model, batch, device, allowed, watch)
    except Exception as error:
        if len(batch.index) == 1 or classify(error) != "memory":
            raise
    if watch and mark:
        watch.rewind(mark)
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return None


def plain_sums(
    model: Any,
    pairs: Sequence[EncodedPair],
    lengths: np.ndarray,
    index: Sequence[int],
    device: torch.device,
    watch: Watch | None = None,
) -> Tensor:
    """The same with a forward a side, always cut alike: for compiled blocks, and for shards that move together.

    None of them can be halved: it would be another shape, or the other workers would not know. So they are smaller.
    """
    tokens = min(FIXED_TOKENS, budget(model, device))
    place = {int(i): column for column, i in enumerate(index)}
    all_sums = torch.empty(4, len(place), dtype=torch.float64)
    with torch.no_grad(), capabilities_of(model).precision():
        for rows in token_batches(lengths, list(place), tokens):
            sums = _side_sums(model, collate(pairs, rows).to(device), watch)
            all_sums[:, torch.tensor([place[i] for i in rows])] = sums.double().cpu()
    return all_sums


def _side_sums(model: Any, batch: Batch, watch: Watch | None) -> Tensor:
    chosen = side_logps(model, batch.chosen, on_logits=watch.see if watch else None)
    sides = [chosen, side_logps(model, batch.rejected)]
    return torch.stack([*(side.sums for side in sides), *(side.lengths for side in sides)])


def batch_sums(
    model: Any, batch: Batch, device: torch.device, allowed: Capabilities | None = None, watch: Watch | None = None
) -> Tensor:
    """Sums of both answers' log-probabilities and their lengths, [4, pairs], in one forward where the head is plain.

    The batch is on the host, where its rows are laid out, and goes to the device as they lie.
    """
    allowed = allowed or capabilities_of(model)
    if not allowed.plain_head:
        return _side_sums(model, batch.to(device), watch)
    layout = laid_out(batch, allowed).to(device)
    allowed.packed_forwards += layout.packed
    logp, _ = answer_logps(model, layout, on_logits=watch.first(layout.split) if watch else None)
    sums = [layout.matrix(logp, side).sum(1) for side in (CHOSEN, REJECTED)]
    return torch.stack([*sums, *layout.counts.to(logp.dtype)])


def laid_out(batch: Batch, allowed: Capabilities) -> Layout:
    """Packed rows where the model allows them and they spare enough, otherwise two rows a pair."""
    fits = allowed.window is None or longest_row(batch) <= allowed.window
    return packed(batch) if fits and allowed.worth_packing(batch) and allowed.packs_rows else two_rows(batch)
