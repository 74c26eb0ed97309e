"""Group aggregates against values worked out by hand from saved results of real runs of the leaderboard's groups.

`results/*.json` is what lm-eval returned for its unmodified groups on a few documents each, with a scripted model that
is right now and then. The right answers per subtask are counted out here.
"""

import json
import math
from fractions import Fraction
from pathlib import Path

import pytest

from rcray.config.benchmarks import BENCHMARKS
from rcray.evaluate.harness_rows import benchmark_rows
from rcray.records.evaluation import MetricRow

#: (right, documents) of every subtask, in lm-eval's order.
COUNTS = {
    "bbh": [
        (1, 3),
        (1, 3),
        (0, 2),
        (1, 4),
        (1, 3),
        (0, 3),
        (1, 3),
        (1, 2),
        (1, 3),
        (1, 3),
        (0, 4),
        (2, 4),
        (0, 2),
        (0, 3),
        (0, 3),
        (1, 3),
        (0, 4),
        (1, 2),
        (3, 4),
        (1, 2),
        (0, 4),
        (1, 2),
        (1, 2),
        (2, 4),
    ],
    "musr": [(1, 5), (1, 3), (1, 4)],
    "math": [(2, 3), (0, 2), (3, 4), (2, 4), (2, 3), (1, 3), (3, 4)],
}
EXPECTED = {
    "bbh": (Fraction(5, 18), Fraction(41, 144)),
    "musr": (Fraction(1, 4), Fraction(47, 180)),
    "math": (Fraction(13, 23), Fraction(11, 21)),
}


def saved(name):
    results = json.loads((Path(__file__).parent / "results" / f"{name}.json").read_text())
    leaves = [task for task in results["results"] if task not in results["groups"]]
    (row,) = benchmark_rows(BENCHMARKS[name], results, leaves, MetricRow(name, "", None, None, 0))
    return results, leaves, row


@pytest.mark.parametrize("name", COUNTS)
def test_values_by_hand(name):
    _, leaves, row = saved(name)
    weighted, unweighted = EXPECTED[name]
    counts = COUNTS[name]
    assert len(leaves) == len(counts) == row.subtasks
    assert Fraction(sum(right for right, _ in counts), sum(n for _, n in counts)) == weighted
    assert sum(Fraction(right, n) for right, n in counts) / len(counts) == unweighted
    assert row.value_weighted == pytest.approx(float(weighted), abs=1e-12)
    assert row.value_unweighted == pytest.approx(float(unweighted), abs=1e-12)
    chosen = {"bbh": unweighted, "math": unweighted, "musr": weighted}[name]
    assert row.value == pytest.approx(float(chosen), abs=1e-12)
    assert row.n == sum(n for _, n in counts)


@pytest.mark.parametrize("name", COUNTS)
def test_both_standard_errors_by_hand(name):
    """Of right-or-wrong answers: se_i^2 = p_i (1 - p_i) / (n_i - 1)."""
    _, _, row = saved(name)
    counts = COUNTS[name]
    total = sum(n for _, n in counts)
    within = sum(right * (n - right) / n for right, n in counts)
    errors = [math.sqrt(right * (n - right) / n**2 / (n - 1)) for right, n in counts]
    assert row.stderr_pooled == pytest.approx(math.sqrt(within / (total - len(counts)) / total), abs=1e-12)
    assert row.stderr_subtask_mean == pytest.approx(sum(errors) / len(errors), abs=1e-12)
    assert (row.stderr, row.stderr_kind) == (row.stderr_pooled, "pooled")
    assert row.stderr_subtask_mean > 1.5 * row.stderr_pooled, "the two definitions are not interchangeable"


@pytest.mark.parametrize("name", COUNTS)
def test_the_harness_agrees_on_what_it_computes_itself(name):
    results, _, row = saved(name)
    (group,) = results["groups"].values()
    metric = BENCHMARKS[name].metric
    assert row.value_weighted == pytest.approx(group[f"{metric},none"], abs=1e-12)
    assert row.stderr_pooled == pytest.approx(group[f"{metric}_stderr,none"], abs=1e-12)


@pytest.mark.parametrize(("name", "shots", "version"), [("bbh", 3, "1.0"), ("musr", 0, "1.0"), ("math", 4, "3.0")])
def test_rows_say_how_it_was_asked(name, shots, version):
    _, _, row = saved(name)
    assert (row.shots, row.task_version, row.aggregate) == (shots, version, BENCHMARKS[name].aggregate)


def test_a_missing_metric_is_named():
    from dataclasses import replace

    results = json.loads((Path(__file__).parent / "results" / "musr.json").read_text())
    leaves = [task for task in results["results"] if task not in results["groups"]]
    with pytest.raises(Exception, match=r"no metric 'acc_nrom,none'; did you mean 'acc_norm,none'"):
        benchmark_rows(
            replace(BENCHMARKS["musr"], metric="acc_nrom"), results, leaves, MetricRow("musr", "", None, None, 0)
        )
