"""What a run's step records look like on the page: few points, nothing lost that an eye would look for.

What is recorded at every step is gathered in buckets of equal width, each with its mean and, where a spike matters, its
least and greatest value. What is measured only now and then (looks, probes) is kept as it is. Numbers travel as
little-endian float32 in base64: half of what decimal digits take, and infinities pass.
"""

import base64
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rcray.aggregate.summary import SUMMARY_COLUMNS, judged_intervals, read_columns
from rcray.records.columns import BY_NAME, EMPTY, PATHWAYS
from rcray.records.live import read_live
from rcray.store import RunDir

POINTS = 240  # of a curve
FEWER_POINTS = 120  # where a page has very many curves
_SPIKY = ("log_r", "loss")  # columns whose extremes are kept beside the means
_EVERY_STEP = (*_SPIKY, "rho", "grad_norm", "in_band", "band_lower", "band_upper")
_LOOKS = ("true_band_lower", "true_band_upper")
_PROBES = ("probe_z_w", "probe_z_l", "probe_accuracy", "probe_kl", "probe_entropy")
_SINCE_START = ("probe_z_w", "probe_z_l")  # shown as changes since the first probe
_LARGEST = 3e38  # of a float32
COLUMNS = tuple(dict.fromkeys((*SUMMARY_COLUMNS, *_EVERY_STEP, *_LOOKS, *_PROBES)))


@dataclass(frozen=True)
class Choice:
    """A curve that the page offers."""

    key: str
    title: str
    help: str
    unit: str = ""


#: In the order of the menu; the first one is shown at first.
CHOICES = (
    Choice("probe_z_w", "Δz_w, probe set", "chosen log-likelihood on the probe set, since the first probe"),
    Choice("probe_z_l", "Δz_l, probe set", "rejected log-likelihood on the probe set, since the first probe"),
    Choice("probe_accuracy", "margins that grew, probe set", BY_NAME["probe_accuracy"].meaning, "share of pairs"),
    Choice("root_kl", "√KL, probe set", "root of the KL to the start model per token of the probe's chosen answers",
           "√nats"),
    Choice("probe_entropy", "entropy, probe set", BY_NAME["probe_entropy"].meaning, "nats/token"),
    Choice("loss", "loss", BY_NAME["loss"].meaning),
    Choice("log_r", "log r", BY_NAME["log_r"].meaning),
    Choice("rho", "ρ at the head or the last adapters", BY_NAME["rho"].meaning),
    Choice("in_band", "in band at the head or the last adapters", BY_NAME["in_band"].meaning, "share of steps"),
    Choice("grad_norm", "gradient norm", BY_NAME["grad_norm"].meaning),
)  # fmt: skip


def offered(unit: str) -> list[Choice]:
    """The choices, with the unit of the runs' likelihoods."""
    return [replace(choice, unit=unit) if choice.key in _SINCE_START else choice for choice in CHOICES]


def pack(values: Any) -> str:
    """Numbers as the page unpacks them."""
    array = np.array(values, float)
    known = np.isfinite(array)
    array[known] = np.clip(array[known], -_LARGEST, _LARGEST)
    return base64.b64encode(array.astype("<f4").tobytes()).decode()


def step_records(run: RunDir, *, live: bool = False) -> dict[str, np.ndarray]:
    """Columns of a run's records; `live`: with the rows that no part has yet."""
    rows = read_live(run.path) if live else []  # first: what goes into a part meanwhile is found there
    records = read_columns(run, COLUMNS)
    last = int(records["step"][-1]) if len(records["step"]) else 0
    fresh = [row for row in rows if row["step"] > last]
    if not fresh:
        return records
    for name in COLUMNS:
        kind = BY_NAME[name].kind
        added = np.array([row.get(name, EMPTY[kind]) for row in fresh], dtype=object if kind == "str" else None)
        records[name] = np.concatenate([records[name], added])
    return records


def curves_of(
    records: Mapping[str, np.ndarray], total_steps: int | None, probe_every: int, points: int = POINTS
) -> dict[str, Any]:
    """The curves of one run as the page reads them; nothing where nothing is recorded.

    `x` has the steps of each kind of column: every one (`d`), looks (`l`) and probes (`p`); `y` has for each column its
    kind, its values, and perhaps the least and the greatest of each bucket. `i` are the intervals between two probes
    whose move was foreseen: both steps, the move of z_w and z_l as foreseen and as it came, both pathways by number.
    """
    steps = np.asarray(records["step"], float)
    if not len(steps):
        return {}
    width = max(1, math.ceil(max(total_steps or 0, steps[-1]) / points))
    starts = np.flatnonzero(np.diff((steps - 1) // width, prepend=-1))
    x = {"d": pack(np.maximum.reduceat(steps, starts))}
    y: dict[str, list[str]] = {}
    for name in _EVERY_STEP:
        values = np.asarray(records[name], float)
        y[name] = ["d", pack(_means(values, starts))]
        if width > 1 and name in _SPIKY:
            y[name] += [pack(np.fmin.reduceat(values, starts)), pack(np.fmax.reduceat(values, starts))]
    for kind, names in (("l", _LOOKS), ("p", _PROBES)):
        known = np.flatnonzero(~np.isnan(np.asarray(records[names[0]], float)))
        if len(known) > 2 * points:  # the first and the last stay
            known = known[np.linspace(0, len(known) - 1, 2 * points).round().astype(int)]
        x[kind] = pack(steps[known])
        for name in names:
            values = np.asarray(records[name], float)[known]
            y[name] = [kind, pack(values - values[:1] if name in _SINCE_START else values)]
    return {"x": x, "y": y, "i": pack(_intervals(records, total_steps, probe_every)), "width": width}


def _means(values: np.ndarray, starts: np.ndarray) -> np.ndarray:
    known = ~np.isnan(values)
    count = np.add.reduceat(known.astype(float), starts)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.add.reduceat(np.where(known, values, 0.0), starts) / count


def _intervals(records: Mapping[str, np.ndarray], total_steps: int | None, probe_every: int) -> np.ndarray:
    words: list[str] = list(PATHWAYS)
    finished = int(records["step"][-1]) == total_steps
    intervals = [each for each in judged_intervals(records, probe_every, finished) if each.rows]
    steps = records["step"]
    return np.array(
        [
            [*(steps[row] for row in each.rows or ()), *each.move, *each.change, *map(words.index, each.pathways)]
            for each in intervals
        ],
        float,
    ).reshape(-1)
