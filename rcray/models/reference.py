"""The reference model runs once: its likelihoods are computed per (weights, tokens) and shared by every run.

One Parquet file per content key with sums and lengths of both answers. The key covers weights, tokenizer, template,
data and lengths, because it hashes the weights and the token ids themselves. Building is guarded by a file lock and
published whole; at every start a sample is checked against a live forward, and a damaged file is built again.
"""

import logging
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from filelock import FileLock
from torch import Tensor

from rcray.config import content_key
from rcray.data.batch import collate
from rcray.data.encode import EncodedPairs
from rcray.models.likelihood import side_logps
from rcray.models.load import LoadedModel
from rcray.store import write_atomic

log = logging.getLogger(__name__)

_BATCH = 64  # pairs per forward
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
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock"):
        found = _read(path, len(data.pairs)) if path.exists() else None
        if found is not None and not _agrees(found, loaded, data, device):
            log.warning("reference cache %s does not agree with a live forward; building it again", path.name)
            found = None
        if found is None:
            found = _forward(loaded, data, range(len(data.pairs)), device)
            _write(path, found)
    return found


def _forward(loaded: LoadedModel, data: EncodedPairs, index: range, device: torch.device) -> ReferenceLogps:
    parts = []
    training = loaded.model.training
    loaded.model.eval()
    with torch.no_grad():
        for start in range(0, len(index), _BATCH):
            batch = collate(data.pairs, index[start : start + _BATCH]).to(device)
            chosen, rejected = side_logps(loaded.model, batch.chosen), side_logps(loaded.model, batch.rejected)
            parts.append(torch.stack([chosen.sums, rejected.sums, chosen.lengths, rejected.lengths]).double().cpu())
    loaded.model.train(training)
    return ReferenceLogps(*torch.cat(parts, dim=1))


def _agrees(found: ReferenceLogps, loaded: LoadedModel, data: EncodedPairs, device: torch.device) -> bool:
    stride = max(1, len(data.pairs) // _SAMPLE)
    index = range(0, len(data.pairs), stride)[:_SAMPLE]
    live = _forward(loaded, data, index, device)
    rows = list(index)
    gap = torch.stack([found.sum_w[rows] - live.sum_w, found.sum_l[rows] - live.sum_l]).abs().max()
    return bool(gap < _TOLERANCE)


def _write(path: Path, found: ReferenceLogps) -> None:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({name: getattr(found, name).numpy() for name in vars(found)}), sink)
    write_atomic(path, sink.getvalue().to_pybytes())


def _read(path: Path, rows: int) -> ReferenceLogps | None:
    try:
        table = pq.read_table(path)
        columns = [torch.from_numpy(table[name].to_numpy().copy()) for name in ("sum_w", "sum_l", "n_w", "n_l")]
    except (pa.ArrowException, OSError, KeyError) as error:
        log.warning("reference cache %s is damaged (%s); building it again", path.name, error)
        return None
    if table.num_rows != rows:
        log.warning("reference cache %s holds %d rows, not %d; building it again", path.name, table.num_rows, rows)
        return None
    return ReferenceLogps(*columns)
