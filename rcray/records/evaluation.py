"""`evaluation.json`: what was measured on a run, one row per number, with everything needed to read it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from rcray.files import read_json, recover_json, write_json
from rcray.records.parsing import parser
from rcray.records.states import State

POOLED: Final = "pooled"


@dataclass(frozen=True)
class MetricRow:
    """One number. `value` is None unless `status` is ok, so that nothing else can enter an average."""

    benchmark: str
    metric: str
    value: float | None = None
    stderr: float | None = None
    n: int = 0
    status: State = State.OK
    reason: str | None = None  # why there is no value
    ci_low: float | None = None  # 95%, bootstrap
    ci_high: float | None = None
    # benchmarks
    task: str | None = None  # as lm-eval names it
    task_version: str | None = None
    shots: int | None = None
    filter: str | None = None  # which of the task's answer extractions
    chat_template: bool | None = None
    harness: str | None = None  # lm-eval's version
    backend: str | None = None
    limit: int | None = None  # documents per task; None: all
    aggregate: str | None = None  # how subtasks make one value
    subtasks: int | None = None
    stderr_kind: str | None = None  # which of the two definitions `stderr` is
    stderr_pooled: float | None = None
    stderr_subtask_mean: float | None = None
    value_weighted: float | None = None  # subtasks by size
    value_unweighted: float | None = None
    observed: float | None = None  # what the harness said of a degenerate model; never a score
    note: str | None = None

    @property
    def name(self) -> str:
        """As a search and the tracker name it."""
        return f"{self.benchmark}/{self.metric}"

    @property
    def score(self) -> float | None:
        """The value, where it may be compared: finite, and of a model whose numbers mean something."""
        usable = self.status is State.OK and self.value is not None and math.isfinite(self.value)
        return self.value if usable else None

    def content(self) -> dict[str, Any]:
        """As JSON: the first fields always, the others where they say something."""
        always = ("benchmark", "metric", "value", "stderr", "n", "status")
        return {name: value for name, value in asdict(self).items() if name in always or value is not None}

    def describe(self) -> str:
        """One line for a person."""
        if self.value is None:
            return f"{self.name} {self.status}: {self.reason or 'no reason was recorded'}"
        error = "" if self.stderr is None else f" ± {self.stderr:.4f}"
        kind = f" {self.stderr_kind}" if self.subtasks else ""
        extra = "" if self.shots is None else f", {self.shots} shots"
        return f"{self.name} {self.value:.4f}{error}{kind} (n={self.n}{extra})"


@dataclass(frozen=True)
class Evaluation:
    """Everything measured on a run, and the keys it came from: same key, same number."""

    rows: tuple[MetricRow, ...] = ()
    keys: Mapping[str, str] = field(default_factory=dict)

    def scores(self) -> dict[str, float]:
        """Every score by its name; what is degenerate or undefined has none."""
        return {row.name: score for row in self.rows if (score := row.score) is not None}

    def updated(self, keys: Mapping[str, str], rows: Mapping[str, Sequence[MetricRow]]) -> "Evaluation":
        """With rows by benchmark, in the order of their keys, in place of earlier ones; the others stay behind them."""
        others = (row for row in self.rows if row.benchmark not in rows)
        return Evaluation((*(row for name in keys for row in rows[name]), *others), {**self.keys, **keys})


_parse = parser(Evaluation)


def read_evaluation(path: Path) -> Evaluation:
    """What was measured; an error that names the file where it is damaged."""
    return read_json(path, Evaluation(), "evaluate again", _parse)


def recover_evaluation(path: Path) -> Evaluation:
    """What was measured; a damaged file is set aside."""
    return recover_json(path, Evaluation(), "the run is evaluated again", _parse)


def write_evaluation(path: Path, evaluation: Evaluation) -> None:
    """Writes what was measured."""
    write_json(path, {"rows": [row.content() for row in evaluation.rows], "keys": dict(evaluation.keys)})


@dataclass(frozen=True)
class Measured:
    """One measurement as the cache keeps it, for every run that asks for the same."""

    name: str
    rows: tuple[MetricRow, ...]
    fault: str | None = None  # why no number of this model means anything
    seconds: float = 0.0


_parse_measured = parser(Measured)


def recover_measured(path: Path) -> Measured | None:
    """A measurement that was made before, if it was."""
    return recover_json(path, None, "measured again", _parse_measured)


def write_measured(path: Path, measured: Measured) -> None:
    """Keeps a measurement."""
    rows = [row.content() for row in measured.rows]
    write_json(path, {"name": measured.name, "rows": rows, "fault": measured.fault, "seconds": measured.seconds})
