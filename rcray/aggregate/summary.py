"""What a run's step records say, as rows of the frame: band, pathways, prediction against probe set, head against full.

Reads only the columns it needs; the rows are few enough to be kept for ten thousand runs.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from rcray.aggregate.frame import SHARE, Measurement
from rcray.errors import StoreError
from rcray.records.columns import DYNAMICS, IN_BAND, PATHWAYS, pathway_of
from rcray.records.states import State
from rcray.store import RunDir

STEPS, SECONDS, RHO = f"{DYNAMICS}steps", f"{DYNAMICS}seconds", f"{DYNAMICS}rho"
SKIPPED = f"{DYNAMICS}skipped"
LOG_R, LOG_R_STAR = f"{DYNAMICS}log_r", f"{DYNAMICS}log_r_star"  # means over the steps
#: The band of the update that is made, in log r: its edges as medians, and the share of steps inside.
TRUE_LOWER, TRUE_UPPER = f"{DYNAMICS}true_band_lower", f"{DYNAMICS}true_band_upper"
IN_TRUE_BAND = f"{DYNAMICS}in_true_band"
LOOKS_III = f"{DYNAMICS}looks_iii"  # share of the looks whose pairs moved along pathway iii
OPEN = "open"  # an edge that is nowhere near
RATIO_COLUMNS = ("log_r", "log_r_star", "true_band_lower", "true_band_upper")
#: Shares by pathway: of the intervals between looks, of those between two probes, of the steps as the head's band sees.
PREDICTED = {name: f"{DYNAMICS}pathway_{name}" for name in PATHWAYS}
REALISED = {name: f"{DYNAMICS}realised_{name}" for name in PATHWAYS}
AT_HEAD = {name: f"{DYNAMICS}head_{name}" for name in PATHWAYS}
AGREEMENT = f"{DYNAMICS}agreement"  # share of the intervals whose realised pathway is the predicted one
AGREEMENT_HEAD = f"{DYNAMICS}agreement_head"  # the same, of the pathway that the head's band names most often
NO_LOOKS = "no looks"
LOOKS = f"{DYNAMICS}looks"  # how many; of records from before looks none, and the head's pathways stand for predicted
CHANGE_W, CHANGE_L = f"{DYNAMICS}probe_change_w", f"{DYNAMICS}probe_change_l"  # last measurement minus first
_CONFUSION = f"{DYNAMICS}intervals/"  # predicted/realised: how many probe intervals

#: Suffix of the columns that a second score estimator, over all parameters, adds to the records.
FULL = "_full"
FULL_COLUMNS = ("log_r_star", "rho", "band_lower", "band_upper", "in_band")
#: The band of the head (or the last adapters) against the band of all parameters.
SAME_SIDE = f"{DYNAMICS}full/same_side"  # share of the steps on which both say inside, or both outside
IN_BAND_FULL = f"{DYNAMICS}full/in_band"
CENTRE_GAP = f"{DYNAMICS}full/centre_gap"  # median |log r* - log r*_full|
WIDTH_GAP = f"{DYNAMICS}full/width_gap"  # median difference of the half-widths where both are bounded
RHO_CORRELATION = f"{DYNAMICS}full/rho_correlation"  # Pearson's, of the two cosines

#: What every report reads; a ledger that is exported has no others but those that figures draw.
SUMMARY_COLUMNS = (
    "step", "in_band", "pathway_head", "pathway_predicted", "pathway_realised", "predicted_dz_w", "predicted_dz_l",
    "probe_z_w", "probe_z_l", "skipped", "rho", "seconds", "fresh_drift_w",
)  # fmt: skip


def dynamics_rows(run: RunDir, probe_every: int, total_steps: int | None, unit: str) -> Iterator[Measurement]:
    """The rows of a run directory; none where nothing is recorded."""
    full = [f"{name}{FULL}" for name in FULL_COLUMNS]
    recorded = set(recorded_columns(run))
    both, ratios = set(full) <= recorded, set(RATIO_COLUMNS) <= recorded
    extra = {*((*full, "log_r_star", "band_lower", "band_upper") if both else ()), *(RATIO_COLUMNS if ratios else ())}
    records = read_columns(run, (*SUMMARY_COLUMNS, *sorted(extra)))
    steps = len(records["step"])
    if steps == 0:
        return
    finished = int(records["step"][-1]) == total_steps
    judged = judged_intervals(records, probe_every, finished)
    foreseen = [interval.predicted for interval in judged if interval.predicted]
    realised = [word for word in records["pathway_realised"] if word]

    def row(metric: str, value: float, unit: str = "", n: int = steps) -> Measurement:
        status = State.OK if math.isfinite(value) else "non-finite"
        return Measurement(run.run_id, metric, float(value), n=n, unit=unit, status=status)

    yield row(STEPS, steps, "steps")
    yield row(LOOKS, np.isfinite(records["predicted_dz_w"]).sum(), "looks")
    yield row(SECONDS, np.nansum(records["seconds"]), "seconds")
    yield row(IN_BAND, np.mean(records["in_band"]), SHARE)
    seen = [word for word in records["pathway_predicted"] if word] if _has_looks(records) else []
    if seen:
        yield row(LOOKS_III, seen.count("iii") / len(seen), SHARE, len(seen))
    said = list(records["pathway_head" if _has_looks(records) else "pathway_predicted"])
    for metrics, words in ((PREDICTED, foreseen), (REALISED, realised), (AT_HEAD, said)):
        counts = Counter(word if word in PATHWAYS else "undefined" for word in words)
        for name, metric in metrics.items():
            if words:
                yield row(metric, counts[name] / len(words), SHARE, len(words))
            else:
                yield Measurement(run.run_id, metric, math.nan, n=0, unit=SHARE, status=NO_LOOKS)
    yield row(SKIPPED, np.mean(records["skipped"] != ""), SHARE)
    rho = records["rho"][np.isfinite(records["rho"])]
    yield row(RHO, np.median(rho) if len(rho) else math.nan)
    for metric, column in ((CHANGE_W, "probe_z_w"), (CHANGE_L, "probe_z_l")):
        measured = records[column][np.isfinite(records[column])]
        if len(measured) > 1:
            yield row(metric, measured[-1] - measured[0], unit, len(measured))
    if foreseen:
        yield row(AGREEMENT, sum(i.predicted == i.realised for i in judged) / len(judged), SHARE, len(judged))
    if judged:
        yield row(AGREEMENT_HEAD, sum(i.at_head == i.realised for i in judged) / len(judged), SHARE, len(judged))
    for (word, came), count in Counter((i.predicted, i.realised) for i in judged if i.predicted).items():
        yield row(f"{_CONFUSION}{word}/{came}", count, "intervals", len(foreseen))
    if ratios:
        yield from ratio_rows(run.run_id, records)
    if both:
        yield from full_rows(run.run_id, records)


@dataclass(frozen=True)
class Interval:
    """What was foreseen and what came, between two looks at the probe set."""

    predicted: str  # "" where nobody looked at fresh pairs
    realised: str
    at_head: str
    rows: tuple[int, int] | None = None  # of the records, where both moves are known
    move: tuple[float, float] = (math.nan, math.nan)  # of z_w and z_l, as foreseen
    change: tuple[float, float] = (math.nan, math.nan)  # as it came

    @property
    def pathways(self) -> tuple[str, str]:
        """As foreseen, and as it came."""
        return self.predicted, self.realised


def judged_intervals(records: Mapping[str, np.ndarray], probe_every: int, finished: bool) -> list[Interval]:
    """The intervals that both looks and probes bound; by probes alone where there were no looks.

    A look that foresees nothing (the first, also after a resumption without the last look's weights) leaves its stretch
    unknown: an interval with one inside is left out. Records from before looks have the head's pathway in place of the
    prediction.
    """
    words = list(records["pathway_realised"])
    if not _has_looks(records):
        said = [word if word in PATHWAYS else "undefined" for word in records["pathway_predicted"]]
        return [Interval(a, b, a) for a, b in intervals(said, words, probe_every, finished)]
    at_head = list(records["pathway_head"])
    looked = np.isfinite(records["predicted_dz_w"])
    if not looked.any():
        return [Interval("", b, a) for a, b in intervals(at_head, words, probe_every, finished)]
    blind = np.isfinite(records["fresh_drift_w"]) & ~looked
    last = len(words) - 1 if finished else len(words)  # probed after its update, where no look is
    ends = [i for i, word in enumerate(words) if i < last and (i == 0 or (word and looked[i]))]
    judged = []
    for start, end in pairwise(ends):
        inside = slice(start + 1, end + 1)
        if blind[inside].any():
            continue
        move, change = (
            [float(np.nansum(records[f"predicted_dz_{side}"][inside])) for side in "wl"],
            [float(records[f"probe_z_{side}"][end] - records[f"probe_z_{side}"][start]) for side in "wl"],
        )
        often = Counter(reversed(at_head[start:end])).most_common(1)[0][0]
        moves = (move[0], move[1]), (change[0], change[1])
        judged.append(Interval(pathway_of(*move), pathway_of(*change), often, (start, end), *moves))
    return judged


def _has_looks(records: Mapping[str, np.ndarray]) -> bool:
    """Whether these records know of looks at all."""
    return any(records["pathway_head"])


def confusion(rows: Iterable[Measurement]) -> dict[str, Counter[str]]:
    """Probe intervals by predicted and realised pathway, of every run that these rows are of."""
    counts: dict[str, Counter[str]] = {}
    for row in rows:
        if row.metric.startswith(_CONFUSION):
            foreseen, seen = row.metric.removeprefix(_CONFUSION).split("/")
            counts.setdefault(foreseen, Counter())[seen] += int(row.value)
    return counts


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


def ratio_rows(run: str, records: Mapping[str, np.ndarray]) -> Iterator[Measurement]:
    """The ratio that is chosen, and where it lies in the band of the update; a look stands for the steps after it."""
    for metric, name in ((LOG_R, "log_r"), (LOG_R_STAR, "log_r_star")):
        known = records[name][np.isfinite(records[name])]
        if len(known):
            yield Measurement(run, metric, float(known.mean()), n=len(known), unit="nats")
    lower, upper = records["true_band_lower"], records["true_band_upper"]
    looks = np.flatnonzero(~(np.isnan(lower) | np.isnan(upper) | np.isnan(records["log_r"])))
    if not len(looks):
        return
    stands_for = np.diff([*looks, len(lower)])
    inside = (lower <= records["log_r"]) & (records["log_r"] <= upper)
    share = float(np.repeat(inside[looks], stands_for).mean())
    yield Measurement(run, IN_TRUE_BAND, share, n=len(looks), unit=SHARE)
    for metric, edge in ((TRUE_LOWER, lower), (TRUE_UPPER, upper)):
        # not the mean of the two in the middle, which may be infinite on both sides
        median = float(np.quantile(np.repeat(edge[looks], stands_for), 0.5, method="lower"))
        status = State.OK if math.isfinite(median) else OPEN
        yield Measurement(run, metric, median, n=len(looks), unit="nats", status=status)


def full_rows(run: str, records: Mapping[str, np.ndarray]) -> Iterator[Measurement]:
    """The two bands compared; nothing where they have no step in common."""
    centre, full = records["log_r_star"], records[f"log_r_star{FULL}"]
    known = np.isfinite(centre) & np.isfinite(full)
    if not known.any():
        return
    inside, inside_full = (records[name][known].astype(bool) for name in ("in_band", f"in_band{FULL}"))
    widths = [(records[f"band_upper{end}"] - records[f"band_lower{end}"])[known] / 2 for end in ("", FULL)]
    bounded = np.isfinite(widths[0]) & np.isfinite(widths[1])
    gaps = np.abs(widths[0][bounded] - widths[1][bounded])
    rho, rho_full = records["rho"][known], records[f"rho{FULL}"][known]
    varies = np.std(rho) > 0 and np.std(rho_full) > 0
    for metric, value, unit, otherwise in (
        (SAME_SIDE, np.mean(inside == inside_full), SHARE, ""),
        (IN_BAND_FULL, np.mean(inside_full), SHARE, ""),
        (CENTRE_GAP, np.median(np.abs(centre - full)[known]), "nats", "unbounded"),
        (WIDTH_GAP, np.median(gaps) if len(gaps) else math.nan, "nats", "unbounded"),
        (RHO_CORRELATION, np.corrcoef(rho, rho_full)[0, 1] if varies else math.nan, "", "no spread"),
    ):
        status = State.OK if math.isfinite(value) else otherwise
        yield Measurement(run, metric, float(value), n=int(known.sum()), unit=unit, status=status)


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
