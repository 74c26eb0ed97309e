"""The rows of `evaluation.json`: one measured number each, with everything needed to read it."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

DEGENERATE: Final = "degenerate"
UNDEFINED: Final = "undefined"
POOLED: Final = "pooled"


@dataclass(frozen=True)
class Row:
    """One number. `value` is None unless `status` is ok, so that nothing else can enter an average."""

    benchmark: str
    metric: str
    value: float | None
    stderr: float | None
    n: int
    status: Literal["ok", "degenerate", "undefined"] = "ok"
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

    def content(self) -> dict[str, Any]:
        """As JSON: the first fields always, the others where they say something."""
        always = ("benchmark", "metric", "value", "stderr", "n", "status")
        return {name: value for name, value in asdict(self).items() if name in always or value is not None}


def contents(rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Rows as JSON."""
    return [row.content() for row in rows]


def describe(row: dict[str, Any]) -> str:
    """One line for a person."""
    name = f"{row['benchmark']}/{row['metric']}"
    if row.get("value") is None:
        return f"{name} {row.get('status', 'no value')}: {row.get('reason', 'no reason was recorded')}"
    error = "" if row.get("stderr") is None else f" ± {row['stderr']:.4f}"
    kind = f" {row['stderr_kind']}" if row.get("subtasks") else ""
    extra = f", {row['shots']} shots" if row.get("shots") is not None else ""
    return f"{name} {row['value']:.4f}{error}{kind} (n={row['n']}{extra})"
