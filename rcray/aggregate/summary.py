"""What a run's step records say, in a few numbers: band, pathways, prediction against probe set, head against full.

Reads only the columns it needs; a summary is small enough to be kept for ten thousand runs.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rcray.errors import StoreError
from rcray.records.columns import PATHWAYS
from rcray.store import RunDir

#: Suffix of the columns that a second score estimator, over all parameters, adds to the records.
FULL = "_full"
FULL_COLUMNS = ("log_r_star", "rho", "band_lower", "band_upper", "in_band")

_COLUMNS = (
    "step", "in_band", "pathway_predicted", "pathway_realised", "probe_z_w", "probe_z_l", "skipped", "rho", "seconds",
)  # fmt: skip


@dataclass(frozen=True)
class HeadFull:
    """The band of the head (or the last adapters) against the band of all parameters, over the recorded steps."""

    steps: int
    same_side: float  # share of steps on which both say inside, or both outside
    inside_full: float  # share of steps inside the band of all parameters
    centre_gap: float  # median |log r* - log r*_full|, nats
    width_gap: float  # median difference of the half-widths, nats, where both are bounded; nan without any
    rho_correlation: float  # Pearson's, of the two cosines; nan where one of them does not vary


@dataclass(frozen=True)
class DynamicsSummary:
    """Shares are of the recorded steps, between 0 and 1."""

    steps: int
    in_band: float
    pathways: Mapping[str, float]  # predicted, by pathway; sums to 1
    agreement: float  # share of probe intervals whose realised pathway is the predicted one; nan without any
    intervals: int  # probe intervals behind `agreement`
    confusion: Mapping[str, Mapping[str, int]]  # predicted -> realised -> intervals
    change_w: float  # probe z_w, last measurement minus first, nats; nan with fewer than two
    change_l: float
    skipped: float  # steps that calibration left alone
    rho: float  # median cosine of the scores
    seconds: float  # wall clock of the steps together
    head_full: HeadFull | None = None


def summarise(run: RunDir, probe_every: int, total_steps: int | None) -> DynamicsSummary | None:
    """The summary of a run directory; None where nothing is recorded."""
    extra = [f"{name}{FULL}" for name in FULL_COLUMNS]
    both = set(extra) <= set(recorded_columns(run))
    records = read_columns(run, (*_COLUMNS, *extra, "log_r_star", "band_lower", "band_upper") if both else _COLUMNS)
    steps = len(records["step"])
    if steps == 0:
        return None
    predicted = [word if word in PATHWAYS else "undefined" for word in records["pathway_predicted"]]
    counts = Counter(predicted)
    finished = int(records["step"][-1]) == total_steps
    pairs = intervals(predicted, list(records["pathway_realised"]), probe_every, finished)
    confusion: dict[str, dict[str, int]] = {}
    for foreseen, seen in pairs:
        row = confusion.setdefault(foreseen, {})
        row[seen] = row.get(seen, 0) + 1
    rho = records["rho"][np.isfinite(records["rho"])]
    return DynamicsSummary(
        steps=steps,
        in_band=float(np.mean(records["in_band"])),
        pathways={name: counts[name] / steps for name in PATHWAYS},
        agreement=sum(a == b for a, b in pairs) / len(pairs) if pairs else math.nan,
        intervals=len(pairs),
        confusion=confusion,
        change_w=_change(records["probe_z_w"]),
        change_l=_change(records["probe_z_l"]),
        skipped=float(np.mean(records["skipped"] != "")),
        rho=float(np.median(rho)) if len(rho) else math.nan,
        seconds=float(np.nansum(records["seconds"])),
        head_full=head_full(records) if both else None,
    )


def intervals(
    predicted: Sequence[str], realised: Sequence[str], probe_every: int, finished: bool
) -> list[tuple[str, str]]:
    """Pairs (predicted, realised) of pathways, one per probe interval.

    Predicted is the word given most often to the updates of the interval; a tie goes to the later. A row describes the
    model before its update, so a pathway realised in row i is that of the rows since the last look up to i - 1. Only
    the last row of a finished run is probed after its update, and so counts itself; where it was due for a look before
    it as well, it counts only itself.
    """
    pairs = []
    start = 0
    for i, word in enumerate(realised):
        if word == "":
            continue
        last = finished and i == len(realised) - 1
        window = predicted[i if last and i % probe_every == 0 else start : i + last]
        start = i
        if window:
            pairs.append((Counter(reversed(window)).most_common(1)[0][0], word))  # insertion order decides ties
    return pairs


def head_full(records: Mapping[str, np.ndarray]) -> HeadFull | None:
    """The two bands compared; None where they have no step in common."""
    centre, full = records["log_r_star"], records[f"log_r_star{FULL}"]
    known = np.isfinite(centre) & np.isfinite(full)
    if not known.any():
        return None
    inside, inside_full = (records[name][known].astype(bool) for name in ("in_band", f"in_band{FULL}"))
    widths = [
        (records[f"band_upper{end}"][known] - records[f"band_lower{end}"][known]) / 2 for end in ("", FULL)
    ]  # fmt: skip
    bounded = np.isfinite(widths[0]) & np.isfinite(widths[1])
    gaps = np.abs(widths[0][bounded] - widths[1][bounded])
    rho, rho_full = records["rho"][known], records[f"rho{FULL}"][known]
    varies = np.std(rho) > 0 and np.std(rho_full) > 0
    return HeadFull(
        steps=int(known.sum()),
        same_side=float(np.mean(inside == inside_full)),
        inside_full=float(np.mean(inside_full)),
        centre_gap=float(np.median(np.abs(centre - full)[known])),
        width_gap=float(np.median(gaps)) if len(gaps) else math.nan,
        rho_correlation=float(np.corrcoef(rho, rho_full)[0, 1]) if varies else math.nan,
    )


def _change(series: np.ndarray) -> float:
    measured = series[np.isfinite(series)]
    return float(measured[-1] - measured[0]) if len(measured) > 1 else math.nan


def recorded_columns(run: RunDir) -> tuple[str, ...]:
    """The columns that every part of a run's records has; none for a run without records."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schemas = []
    for path in sorted(run.dynamics.glob("part-*.parquet")):
        try:
            schemas.append(set(pq.read_schema(path).names))
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(path, error) from None
    return tuple(sorted(set.intersection(*schemas))) if schemas else ()


def read_columns(run: RunDir, columns: Sequence[str]) -> dict[str, np.ndarray]:
    """Columns of a run's step records as arrays, sorted by step."""
    import pyarrow as pa

    from rcray.train.dynamics import read_dynamics

    try:
        table = read_dynamics(run.dynamics, list(columns))
    except (pa.ArrowException, OSError, KeyError) as error:
        raise _unreadable(run.dynamics, error) from None
    return {name: _to_numpy(table.column(name)) for name in columns}


def _unreadable(path: Path, error: Exception) -> StoreError:
    reason = " ".join(str(error).split())
    return StoreError(f"{path}: cannot be read as step records: {reason}", fix="run the cell again")


def _to_numpy(column: Any) -> np.ndarray:
    import pyarrow as pa

    if pa.types.is_boolean(column.type):
        return np.array([bool(value) for value in column.to_pylist()], dtype=bool)
    words = (pa.types.is_string, pa.types.is_large_string, pa.types.is_dictionary)
    if any(is_kind(column.type) for is_kind in words):
        return np.array([value or "" for value in column.to_pylist()], dtype=object)
    return column.to_numpy()
