"""The reference model runs once: its likelihoods are computed per (weights, tokens) and shared by every run.

One Parquet file per content key with sums and lengths of both answers. The key covers weights, tokenizer, template,
data and lengths, because it hashes the weights and the token ids themselves. At every start a sample is checked
against a live forward, as closely as the compute precision allows. A damaged file is built again; one that disagrees
is, too, and is kept beside it.

The file is built from shards of pairs of like length, each under a lock of its own: however many processes ask at
once, on however many machines of a shared store, they divide the shards among themselves, and what a killed one
finished stays.
"""

import logging
import math
import shutil
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout
from torch import Tensor

from rcray.config import content_key
from rcray.data.encode import EncodedPairs
from rcray.extras import explained_imports
from rcray.files import write_parquet
from rcray.models.adapters import adapters_off
from rcray.models.capabilities import capabilities_of
from rcray.models.inference import budget, length_order, pair_sums
from rcray.models.load import LoadedModel
from rcray.records.progress import REFERENCE, report

with explained_imports():
    import pyarrow as pa
    import pyarrow.parquet as pq

log = logging.getLogger(__name__)

SHARD = 128  # pairs a process computes before it looks what is left: the most that a kill costs
SHARD_FORWARDS = 4  # and so many forwards full of tokens: long pairs come in smaller shards
_COLUMNS = ("sum_w", "sum_l", "n_w", "n_l")
_SAMPLE = 4  # pairs checked live at every start


@dataclass(frozen=True)
class ReferenceLogps:
    """Summed log-likelihoods and lengths of every pair of a split, [pairs]."""

    sum_w: Tensor
    sum_l: Tensor
    n_w: Tensor
    n_l: Tensor

    def to(self, device: torch.device) -> "ReferenceLogps":
        """The same on a device: 32 bytes a pair, so that no step waits for its share of them."""
        return ReferenceLogps(*(getattr(self, name).to(device) for name in _COLUMNS))


def reference_logps(loaded: LoadedModel, data: EncodedPairs, cache: Path, device: torch.device) -> ReferenceLogps:
    """Reads the cached likelihoods of `data` under `loaded`, or computes and publishes them."""
    precision = capabilities_of(loaded.model).precision
    path = cache / "reference" / f"{content_key([loaded.fingerprint, data.fingerprint(), precision.name], 24)}.parquet"
    cached = _read(path, len(data.pairs))
    if cached is not None:
        off = _disagreement(cached, loaded, data, device)
        if off is None:
            return cached
        aside = path.with_suffix(f".disagrees-{uuid.uuid4().hex[:8]}")  # a name of its own: none is written over
        log.warning("reference cache %s %s; kept as %s, building it again", path.name, off, aside.name)
        with suppress(FileNotFoundError):  # another process has put it aside
            path.replace(aside)
    shards = _cut(data.lengths, SHARD_FORWARDS * budget(loaded.model, device))
    build = _Build(path, shards, partial(_forward, loaded, data, device=device))
    build.locks.mkdir(parents=True, exist_ok=True)
    while missing := build.missing():
        build.tell(build.pairs - sum(len(shards[i]) for i in missing))
        if not any([build.shard(i, wait=False) for i in missing]):
            build.shard(missing[0], wait=True)  # all under way elsewhere; taken over if its builder dies
    return build.publish()


def _cut(lengths: np.ndarray, tokens: int) -> list[list[int]]:
    """Positions of the pairs from the longest to the shortest, in shards of so many tokens and pairs at most."""
    sizes = lengths @ (2, 1, 1)
    shards: list[list[int]] = []
    room = 0
    for i in length_order(lengths).tolist():
        if not shards or len(shards[-1]) == SHARD or room < sizes[i]:
            shards.append([])
            room = tokens
        shards[-1].append(i)
        room -= int(sizes[i])
    return shards


@dataclass(frozen=True)
class _Build:
    """One file in the making: its shards, and the locks by which processes divide them."""

    path: Path
    shards: list[list[int]]  # positions of their pairs
    forward: Callable[..., ReferenceLogps]  # of positions; told what to call with the number of pairs done

    @property
    def locks(self) -> Path:
        return self.path.with_suffix(".locks")  # kept: whoever waits on a lock must find it

    def part(self, number: int) -> Path:
        """Named by its first pair, too: whoever cuts otherwise, on another device, makes other parts."""
        return self.path.with_suffix(".shards") / f"{number:06d}-{self.shards[number][0]}.parquet"

    def tell(self, done: int) -> None:
        """Says how many pairs are done."""
        report(REFERENCE, done, self.pairs)

    @property
    def pairs(self) -> int:
        return sum(map(len, self.shards))

    def missing(self) -> list[int]:
        """Shards nobody has finished; none once the file itself is there."""
        if _read(self.path, self.pairs) is not None:
            return []
        return [i for i in range(len(self.shards)) if self._lacks(i)]

    def _lacks(self, number: int) -> bool:
        return _read(self.part(number), len(self.shards[number])) is None

    def shard(self, number: int, *, wait: bool) -> bool:
        """Computes one shard unless another process holds it; False if it does."""
        try:
            with FileLock(self.locks / f"{number:06d}", timeout=-1 if wait else 0):
                if self._lacks(number) and _read(self.path, self.pairs) is None:
                    before = sum(map(len, self.shards[:number]))
                    logps = self.forward(self.shards[number], on_pairs=lambda done: self.tell(before + done))
                    _write(self.part(number), logps)
        except Timeout:
            return False
        return True

    def publish(self) -> ReferenceLogps:
        """Joins the shards into the one file everybody reads."""
        with FileLock(self.locks / "publish"):
            logps = _read(self.path, self.pairs)
            if logps is None:
                parts = [_read(self.part(i), len(rows)) for i, rows in enumerate(self.shards)]
                place = torch.tensor([row for rows in self.shards for row in rows]).argsort()  # back into their order
                logps = ReferenceLogps(
                    *(torch.cat([getattr(part, name) for part in parts])[place] for name in _COLUMNS)
                )
                _write(self.path, logps)
            shutil.rmtree(self.part(0).parent, ignore_errors=True)
        return logps


def _forward(
    loaded: LoadedModel,
    data: EncodedPairs,
    index: Sequence[int],
    device: torch.device,
    on_pairs: Callable[[int], None] | None = None,
) -> ReferenceLogps:
    with adapters_off(loaded.model):  # of a LoRA run: the model its adapter starts from
        return summed_logps(loaded.model, data, index, device, on_pairs)


def summed_logps(
    model: Any,
    data: EncodedPairs,
    index: Sequence[int],
    device: torch.device,
    on_pairs: Callable[[int], None] | None = None,
) -> ReferenceLogps:
    """Likelihoods of the answers at `index` under any model, without a graph."""
    training = model.training
    model.eval()
    try:
        return ReferenceLogps(*pair_sums(model, data.pairs, data.lengths, index, device, on_pairs))
    finally:
        model.train(training)


def _disagreement(logps: ReferenceLogps, loaded: LoadedModel, data: EncodedPairs, device: torch.device) -> str | None:
    """Compares a sample with a live forward; another batch shape rounds differently, another model is far off.

    The sample is judged as a whole, by the root of its mean square: in bfloat16 one sum in thirty of a real model is
    further off than a sum is allowed, and a reference that is computed again for it takes hours.
    """
    stride = max(1, len(data.pairs) // _SAMPLE)
    index = range(0, len(data.pairs), stride)[:_SAMPLE]
    live = _forward(loaded, data, index, device)
    rows = list(index)
    precision = capabilities_of(loaded.model).precision
    kept = torch.cat([logps.sum_w[rows], logps.sum_l[rows]])
    tokens = torch.cat([live.n_w, live.n_l])
    off, allowed = (kept - torch.cat([live.sum_w, live.sum_l])).abs(), precision.tolerance(tokens)
    share = off / allowed
    if float(share.square().mean().sqrt()) <= 1:  # NaN is not
        return None
    worst = int(share.nan_to_num(nan=math.inf).argmax())
    return (
        f"is {off[worst]:.3g} nats off a live forward over {int(tokens[worst])} tokens, where {precision.name} "
        f"allows {allowed[worst]:.2g}"
    )


def _write(path: Path, logps: ReferenceLogps) -> None:
    write_parquet(path, pa.table({name: getattr(logps, name).numpy() for name in vars(logps)}))


def _read(path: Path, rows: int) -> ReferenceLogps | None:
    """The stored columns; None, with a warning, where the file is damaged, and without one where there is none."""
    if not path.exists():
        return None
    try:
        table = pq.read_table(path, page_checksum_verification=True)
        columns = [torch.from_numpy(table[name].to_numpy().copy()) for name in _COLUMNS]
    except FileNotFoundError:  # joined and removed by another process since
        return None
    except (pa.ArrowException, OSError, KeyError) as error:
        log.warning("reference cache %s is damaged (%s); building it again", path.name, error)
        return None
    if table.num_rows != rows:
        log.warning("reference cache %s holds %d rows, not %d; building it again", path.name, table.num_rows, rows)
        return None
    return ReferenceLogps(*columns)
