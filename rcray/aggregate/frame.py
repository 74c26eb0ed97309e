"""The tidy frame behind every table and figure: one row per run and metric, whatever measured it.

A metric has one key from its file to its table: `preference/accuracy`, `arc/acc_norm`, as evaluation.json, the tracker
and a search spell it; what the step records say stands under `dynamics/`. Values keep their own unit: a share lies
between 0 and 1, and only a renderer makes percent of it.
"""

import csv
import io
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from rcray.config import RunConfig
from rcray.config.benchmarks import ALPACA_EVAL, PREFERENCE, PREFERENCE_ACCURACY, SAMPLES, is_share
from rcray.records.columns import DYNAMICS
from rcray.records.evaluation import MetricRow
from rcray.records.states import State

ACCURACY, MARGIN = PREFERENCE_ACCURACY, f"{PREFERENCE}/margin"
DRIFT_W, DRIFT_L = "preference/drift_w", "preference/drift_l"
RANKING, RANKING_PER_TOKEN = "preference/ranking", "preference/ranking_per_token"
SHARE = "share"

#: What must be equal for two measurements of a benchmark to stand in one mean or one difference.
PROTOCOL = ("task_version", "shots", "chat_template", "harness", "limit", "filter", "aggregate", "stderr_kind")


@dataclass(frozen=True)
class Measurement:
    """One row: a metric of a run."""

    run: str
    metric: str
    value: float  # nan: no score, and `status` says why
    error: float = math.nan  # standard error
    n: int = 0
    unit: str = ""  # share, nats, nats/token, seconds, ...; empty for a plain number
    status: str = State.OK  # or a word for why there is no value, such as `open` or `unbounded`
    reason: str = ""
    interval: tuple[float, float] = (math.nan, math.nan)  # 95%
    protocol: tuple[tuple[str, str], ...] = ()  # task version, shots and so on, where they were written down
    errors: tuple[tuple[str, float], ...] = ()  # standard errors by the name of their definition
    note: str = ""

    @property
    def ok(self) -> bool:
        """Whether this is a score."""
        return self.status == State.OK and math.isfinite(self.value)


def likelihood_unit(configs: Iterable[RunConfig]) -> str:
    """The unit of likelihoods under the runs' reduction; both names where there are sums and means."""
    units = {"nats/token" if config.likelihood == "mean" else "nats" for config in configs}
    return " or ".join(sorted(units)) or "nats"


def scores_at(configs: Iterable[RunConfig]) -> str:
    """Where the runs' band as the paper plots it is measured; both places where they differ."""
    places = {config.calibration.scores_at for config in configs}
    return places.pop() if len(places) == 1 else "head or adapters"


def evaluation_rows(run: str, config: RunConfig, rows: Iterable[MetricRow]) -> Iterator[Measurement]:
    """What `evaluation.json` says of a run."""
    for row in rows:
        errors = {"pooled": row.stderr_pooled, "subtask_mean": row.stderr_subtask_mean}
        yield Measurement(
            run,
            row.name,
            _number(row.value),
            _number(row.stderr),
            row.n,
            _unit(row, config),
            row.status,
            row.reason or "",
            (_number(row.ci_low), _number(row.ci_high)),
            tuple((key, str(value)) for key in PROTOCOL if (value := getattr(row, key)) is not None),
            tuple((name, value) for name, value in errors.items() if value is not None),
            row.note or "",
        )


def by_metric(rows: Iterable[Measurement]) -> dict[str, Measurement]:
    """The rows of one run by their keys; a key that stands twice is no number, else one would win silently."""
    metrics: dict[str, Measurement] = {}
    for row in rows:
        if row.metric in metrics:
            row = Measurement(row.run, row.metric, math.nan, status="ambiguous", reason="several rows have this name")
        metrics[row.metric] = row
    return metrics


def is_benchmark(metric: str) -> bool:
    """Whether a key is a benchmark's: not of held-out pairs or samples, nor of step records."""
    return not metric.startswith(("preference/", f"{SAMPLES}/", DYNAMICS))


def frame_csv(rows: Iterable[Measurement]) -> str:
    """The frame for other programs."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["run", "metric", "value", "error", "n", "unit", "status"])
    for row in rows:
        numbers = ["" if math.isnan(number) else repr(number) for number in (row.value, row.error)]
        writer.writerow([row.run, row.metric, *numbers, row.n, row.unit, row.status])
    return out.getvalue()


def _unit(row: MetricRow, config: RunConfig) -> str:
    if row.name in (MARGIN, DRIFT_W, DRIFT_L):
        return likelihood_unit([config])
    if row.benchmark == SAMPLES:
        return "tokens" if row.metric.startswith("tokens") else SHARE
    shares = row.name in (ACCURACY, RANKING, RANKING_PER_TOKEN) or row.benchmark == ALPACA_EVAL
    return SHARE if shares or is_share(row.metric) else ""


def _number(value: float | None) -> float:
    return math.nan if value is None else value
