"""The reference model runs once: its likelihoods are computed per (weights, tokens) and shared by every run.

One Parquet file per content key with sums and lengths of both answers. The key covers weights, tokenizer, template,
data and lengths, because it hashes the weights and the token ids themselves. At every start a sample is checked
against a live forward, and a damaged file is built again.

The file is built from shards, each under a lock of its own: however many processes ask at once, on however many
machines of a shared store, they divide the shards among themselves, and what a killed one finished stays.
"""

import logging
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from filelock import FileLock, Timeout
from torch import Tensor

from rcray.config import content_key
from rcray.data.batch import collate
from rcray.data.encode import EncodedPairs
from rcray.files import write_atomic
from rcray.models.adapters import adapters_off
from rcray.models.likelihood import side_logps
from rcray.models.load import LoadedModel

log = logging.getLogger(__name__)

SHARD = 2048  # pairs a process computes before it looks what is left
_BATCH = 64  # pairs per forward
_COLUMNS = ("sum_w", "sum_l", "n_w", "n_l")
_SAMPLE = 4  # pairs checked live at every start
_TOLERANCE = 1e-2  # nats on a summed log-likelihood: far above rounding, far below another model


@dataclass(frozen=True)
class ReferenceLogps:
    """Summed log-likelihoods and lengths of every pair of a split, [pairs]."""

    sum_w: Tensor
    sum_l: Tensor
    n_w: Tensor
    n_l: Tensor


def reference_logps(loaded: LoadedModel, data: EncodedPairs, cache: Path, device: torch.device) -> ReferenceLogps:
    """Reads the cached likelihoods of `data` under `loaded`, or computes and publishes them."""
    dtype = str(next(loaded.model.parameters()).dtype)
    path = cache / "reference" / f"{content_key([loaded.fingerprint, data.fingerprint(), dtype], 24)}.parquet"
    cached = _read(path, len(data.pairs))
    if cached is not None and _agrees(cached, loaded, data, device):
        return cached
    if cached is not None:
        log.warning("reference cache %s does not agree with a live forward; building it again", path.name)
        path.unlink(missing_ok=True)
    ranges = [range(i, min(i + SHARD, len(data.pairs))) for i in range(0, len(data.pairs), SHARD)]
    build = _Build(path, ranges, partial(_forward, loaded, data, device=device))
    build.locks.mkdir(parents=True, exist_ok=True)
    while missing := build.missing():
        if not any([build.shard(i, wait=False) for i in missing]):
            build.shard(missing[0], wait=True)  # all under way elsewhere; taken over if its builder dies
    return build.publish()


@dataclass(frozen=True)
class _Build:
    """One file in the making: its shards, and the locks by which processes divide them."""

    path: Path
    ranges: list[range]
    forward: Callable[[range], ReferenceLogps]

    @property
    def locks(self) -> Path:
        return self.path.with_suffix(".locks")  # kept: whoever waits on a lock must find it

    def part(self, number: int) -> Path:
        return self.path.with_suffix(".shards") / f"{number:06d}.parquet"

    @property
    def rows(self) -> int:
        return sum(map(len, self.ranges))

    def missing(self) -> list[int]:
        """Shards nobody has finished; none once the file itself is there."""
        if _read(self.path, self.rows) is not None:
            return []
        return [i for i, rows in enumerate(self.ranges) if _read(self.part(i), len(rows)) is None]

    def shard(self, number: int, *, wait: bool) -> bool:
        """Computes one shard unless another process holds it; False if it does."""
        try:
            with FileLock(self.locks / f"{number:06d}", timeout=-1 if wait else 0):
                if number in self.missing():
                    _write(self.part(number), self.forward(self.ranges[number]))
        except Timeout:
            return False
        return True

    def publish(self) -> ReferenceLogps:
        """Joins the shards into the one file everybody reads."""
        with FileLock(self.locks / "publish"):
            logps = _read(self.path, self.rows)
            if logps is None:
                parts = [_read(self.part(i), len(rows)) for i, rows in enumerate(self.ranges)]
                logps = ReferenceLogps(*(torch.cat([getattr(part, name) for part in parts]) for name in _COLUMNS))
                _write(self.path, logps)
            shutil.rmtree(self.part(0).parent, ignore_errors=True)
        return logps


def _forward(loaded: LoadedModel, data: EncodedPairs, index: range, device: torch.device) -> ReferenceLogps:
    with adapters_off(loaded.model):  # of a LoRA run: the model its adapter starts from
        return pair_logps(loaded.model, data, index, device)


def pair_logps(model: Any, data: EncodedPairs, index: range, device: torch.device) -> ReferenceLogps:
    """Likelihoods of the answers at `index` under any model, in batches, without a graph."""
    parts = []
    training = model.training
    model.eval()
    with torch.no_grad():
        for start in range(0, len(index), _BATCH):
            batch = collate(data.pairs, index[start : start + _BATCH]).to(device)
            chosen, rejected = side_logps(model, batch.chosen), side_logps(model, batch.rejected)
            parts.append(torch.stack([chosen.sums, rejected.sums, chosen.lengths, rejected.lengths]).double().cpu())
    model.train(training)
    return ReferenceLogps(*torch.cat(parts, dim=1))


def _agrees(logps: ReferenceLogps, loaded: LoadedModel, data: EncodedPairs, device: torch.device) -> bool:
    """Compares a sample with a live forward; another batch shape rounds differently, another model is far off."""
    stride = max(1, len(data.pairs) // _SAMPLE)
    index = range(0, len(data.pairs), stride)[:_SAMPLE]
    live = _forward(loaded, data, index, device)
    rows = list(index)
    exact = next(loaded.model.parameters()).dtype in (torch.float32, torch.float64)
    relative = 1e-4 if exact else 2e-2
    return all(
        torch.allclose(getattr(logps, name)[rows], getattr(live, name), atol=_TOLERANCE, rtol=relative)
        for name in ("sum_w", "sum_l")
    )


def _write(path: Path, logps: ReferenceLogps) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.table({name: getattr(logps, name).numpy() for name in vars(logps)}), sink, write_page_checksum=True
    )
    write_atomic(path, sink.getvalue().to_pybytes())


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
