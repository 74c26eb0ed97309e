"""From lm-eval's results to rows: the counted metric, subtasks made into one value, both standard errors.

Two definitions of a group's standard error are in use, also within one table of the paper, and differ by a factor of
about five on BBH. Rows carry both, and `stderr` is the pooled one:
    pooled        sqrt( sum (n_i - 1) n_i se_i^2 / (sum n_i - k) / sum n_i ), as if all documents were one task
    subtask mean  sum se_i / k, the typical error of a single subtask
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rcray.config.benchmarks import Benchmark
from rcray.errors import RcrayError, did_you_mean
from rcray.records.evaluation import POOLED, MetricRow
from rcray.records.items import Items


@dataclass(frozen=True)
class Score:
    """A metric of one benchmark over its subtasks (one, if it is a single task)."""

    weighted: float
    unweighted: float
    stderr_pooled: float | None
    stderr_subtask_mean: float | None
    n: int
    subtasks: int


def combine(values: Sequence[float], stderrs: Sequence[float | None], sizes: Sequence[int]) -> Score:
    """Both aggregates and both standard errors of subtasks."""
    known = [stderr for stderr in stderrs if stderr is not None]
    pooled = mean = None
    total, count = sum(sizes), len(sizes)
    if len(known) == count:
        mean = sum(known) / count
        spread = sum((n - 1) * n * stderr**2 for n, stderr in zip(sizes, known, strict=True))
        pooled = math.sqrt(spread / (total - count) / total) if total > count else mean
    return Score(
        weighted=sum(value * n for value, n in zip(values, sizes, strict=True)) / total,
        unweighted=sum(values) / count,
        stderr_pooled=pooled,
        stderr_subtask_mean=mean,
        n=total,
        subtasks=count,
    )


def benchmark_rows(
    benchmark: Benchmark, results: Mapping[str, Any], leaves: Sequence[str], common: MetricRow
) -> list[MetricRow]:
    """Rows of one benchmark; `common` carries what they share, `leaves` are its single tasks."""
    tasks = {name: results["results"][name] for name in leaves}
    metrics = _metrics(tasks)
    if benchmark.metric is not None:
        wanted = (benchmark.metric, benchmark.filter)
        if wanted not in metrics:
            known = [f"{metric},{kind}" for metric, kind in metrics]
            raise RcrayError(f"{benchmark.name}: no metric {','.join(wanted)!r}{did_you_mean(','.join(wanted), known)}")
        metrics = [wanted]
    versions = sorted({str(results["versions"].get(name)) for name in leaves})
    asked = {results["n-shot"].get(name) for name in leaves}
    shots = asked.pop() if len(asked) == 1 else benchmark.shots
    rows = []
    for metric, kind in metrics:
        key, stderr_key = f"{metric},{kind}", f"{metric}_stderr,{kind}"
        having = [name for name in leaves if key in tasks[name]]
        score = combine(
            [float(tasks[name][key]) for name in having],
            [_number(tasks[name].get(stderr_key)) for name in having],
            [int(results["n-samples"][name]["effective"]) for name in having],
        )
        value = score.unweighted if benchmark.aggregate == "unweighted" else score.weighted
        shown = metric if kind == "none" or benchmark.metric is not None else f"{metric}.{kind}"
        row = replace(
            common,
            metric=shown,
            value=value,
            stderr=score.stderr_pooled,
            n=score.n,
            filter=kind,
            task_version=", ".join(versions),
            shots=shots,
            stderr_kind=POOLED,
            stderr_pooled=score.stderr_pooled,
            stderr_subtask_mean=score.stderr_subtask_mean,
        )
        if len(leaves) > 1:
            row = replace(
                row,
                aggregate=benchmark.aggregate,
                subtasks=score.subtasks,
                value_weighted=score.weighted,
                value_unweighted=score.unweighted,
                note=None if len(having) == len(leaves) else f"{len(leaves) - len(having)} subtasks have no {key}",
            )
        rows.append(row)
    return rows


def documents_of(samples: Mapping[str, Sequence[Mapping[str, Any]]], rows: Sequence[MetricRow]) -> Items:
    """The scores of every document behind the rows; lm-eval logs a document once for each answer extraction."""
    scores: dict[str, dict[str, float]] = {}
    tasks: dict[str, str] = {}
    for task, logged in samples.items():
        for sample in logged:
            name = f"{task}/{sample['doc_id']}/{sample['doc_hash'][:12]}"
            tasks[name], of_document = task, scores.setdefault(name, {})
            for row in rows:
                metric = row.metric.removesuffix(f".{row.filter}")
                if sample["filter"] == row.filter and (score := _number(sample.get(metric))) is not None:
                    of_document[row.metric] = score
    columns = {row.metric: np.array([of.get(row.metric, math.nan) for of in scores.values()]) for row in rows}
    return Items(tuple(scores), tuple(tasks.values()), columns)


def _metrics(tasks: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """(metric, filter) of every number the tasks report, in their order."""
    metrics: dict[tuple[str, str], None] = {}
    for values in tasks.values():
        for key, value in values.items():
            metric, comma, kind = key.partition(",")
            if comma and not metric.endswith("_stderr") and _number(value) is not None:
                metrics[(metric, kind)] = None
    return list(metrics)


def _number(value: Any) -> float | None:
    """lm-eval mixes floats, numpy's, and the string 'N/A'."""
    try:
        return None if isinstance(value, str | dict | list) or value is None else float(value)
    except (TypeError, ValueError):
        return None
