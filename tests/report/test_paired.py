"""Differences item by item: their errors against plain formulas, and their intervals against known truths."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from rcray.aggregate import paired
from rcray.aggregate.collect import collect
from rcray.aggregate.displacement import displacement_table
from rcray.aggregate.frame import ACCURACY, MARGIN
from rcray.aggregate.groups import compare, difference
from rcray.aggregate.paired import Weighted, mcnemar
from rcray.aggregate.results import results_table
from rcray.config import Experiment
from rcray.errors import StoreError
from rcray.evaluate.preference import Shifts, preference_rows
from rcray.records.evaluation import Evaluation, write_evaluation
from rcray.records.items import Items, read_items, write_items
from rcray.store import Store
from rcray.sweep.grid import expand
from tests.report.runs import write_status

PAIRS = 200


def weighted(count: int, tasks: int = 1) -> Weighted:
    labels = np.repeat(np.arange(tasks), count // tasks)
    return Weighted(tuple(map(str, range(count))), labels, np.full(count, 1 / count), np.zeros(count), False, True)


def covered(draw, truth: float, error, repeats: int) -> float:
    """How often the 95% interval holds the truth."""
    held = 0
    for _ in range(repeats):
        differences = draw()
        stderr = error(differences)
        held += abs(differences.mean() - truth) <= stats.t.isf(0.025, stderr.degrees) * stderr.stderr
    return held / repeats


@pytest.mark.parametrize(("up", "down"), [(0.05, 0.03), (0.2, 0.1), (0.03, 0.03)])
def test_intervals_of_shares_cover(up, down):
    generator = np.random.default_rng(1)

    def draw():
        return generator.choice([1.0, -1.0, 0.0], size=256, p=[up, down, 1 - up - down])

    assert 0.93 <= covered(draw, up - down, paired._of_shares, 3000) <= 0.97


@pytest.mark.parametrize(
    ("seeds", "pairs", "of_seeds", "rest"), [(3, 200, 0.1, 1), (5, 100, 0.1, 0.5), (5, 256, 0.02, 1)]
)
def test_intervals_over_pairs_and_seeds_cover(seeds, pairs, of_seeds, rest):
    generator = np.random.default_rng(2)

    def draw():
        by_seed, by_pair = generator.normal(0, of_seeds, (seeds, 1)), generator.normal(0, 1, (1, pairs))
        return 0.3 + by_seed + by_pair + generator.normal(0, rest, (seeds, pairs))

    assert 0.93 <= covered(draw, 0.3, lambda d: paired._crossed(d, weighted(pairs)), 2000) <= 0.97


def test_intervals_of_benchmarks_cover():
    generator, items = np.random.default_rng(3), weighted(120, tasks=3)

    def draw():
        return generator.choice([1.0, -1.0, 0.0], size=120, p=[0.2, 0.1, 0.7])

    def error(differences):
        return paired.PairedError(paired._bootstrapped(differences, items), math.inf)

    assert 0.93 <= covered(draw, 0.1, error, 500) <= 0.97


def test_errors_against_plain_formulas():
    generator = np.random.default_rng(4)
    x = generator.normal(0, 1, (4, 50)) + generator.normal(0, 1, (1, 50))
    seeds, count = x.shape
    cells = x - x.mean(0) - x.mean(1)[:, None] + x.mean()
    expected = count * x.mean(1).var(ddof=1) + seeds * x.mean(0).var(ddof=1)
    expected -= (cells**2).sum() / ((seeds - 1) * (count - 1))
    assert paired._crossed(x, weighted(count)).stderr == pytest.approx(math.sqrt(expected / (seeds * count)))
    assert paired._bootstrapped(x[0], weighted(count)) == pytest.approx(stats.sem(x[0]))
    assert mcnemar(9, 3) == pytest.approx(stats.binomtest(3, 12).pvalue)
    assert mcnemar(0, 0) == 1


def test_the_error_of_a_benchmark_is_that_of_drawing_its_documents():
    """Tasks of unequal sizes that weigh the same; drawn here, known there."""
    generator, sizes = np.random.default_rng(6), (40, 90, 250)
    strata = np.repeat(range(3), sizes)
    items = Weighted(
        tuple(map(str, range(380))), strata, 1 / (3 * np.repeat(sizes, sizes)), strata * 1.0, False, is_benchmark=True
    )
    difference = generator.choice([1.0, -1.0, 0.0], size=380, p=[0.2, 0.1, 0.7])
    means = [
        difference[strata == task][generator.integers(0, size, (20_000, size))].mean(axis=1).std(ddof=1)
        for task, size in enumerate(sizes)
    ]
    assert paired._bootstrapped(difference, items) == pytest.approx(math.hypot(*means) / 3, rel=0.02)


@given(
    st.integers(0, 2**32 - 1), st.integers(30, 300), st.floats(0.05, 0.95), st.floats(0, 0.95), st.sampled_from("msb")
)
def test_an_error_item_by_item_is_smaller_where_items_go_together(seed, count, right, alike, kind):
    """m: a mean, s: a share of pairs, b: a benchmark; against the errors that the two rows have by themselves."""
    generator = np.random.default_rng(seed)
    one, other = generator.random((2, count))
    other = np.where(generator.random(count) < alike, one, other)
    if kind != "m":
        one, other = (one < right).astype(float), (other < right).astype(float)
    difference, items = other - one, weighted(count)
    if kind == "s":
        n = count + 2  # half a pair in each of four cells: the same table of two answers, read with and without pairing
        share = [(values.sum() + 1) / n for values in (one, other)]
        together = (one * other).sum() + 0.5
        covariance = together / n - share[0] * share[1]
        plain = math.sqrt(sum(p * (1 - p) for p in share) / n)
        stderr = paired._of_shares(difference).stderr
    else:
        covariance = float(np.cov(one, other)[0, 1])
        plain = math.hypot(stats.sem(one), stats.sem(other))
        stderr = paired._bootstrapped(difference, items) if kind == "b" else stats.sem(difference)
    assert (stderr <= plain + 1e-12) == (covariance >= -1e-12) or abs(covariance) < 1e-9


@pytest.fixture
def store(tmp_path):
    return Store.open(tmp_path / "store")


def cells_of(**grid):
    return expand(Experiment(name="paired", run={"data": {"eval_pairs": PAIRS}}, grid=grid))


def evaluated(store, cell, shift_w, shift_l, *, keep=True):
    """A finished run whose held-out pairs moved so."""
    zeros, lengths = np.full(PAIRS, -20.0), np.full(PAIRS, 8)
    rows = tuple(f"row {i}" for i in range(PAIRS))
    shifts = Shifts(zeros, zeros, zeros + shift_w, zeros + shift_l, lengths, lengths, rows)
    run = store.run(cell.run_id)
    write_status(run, cell, "ok")
    write_evaluation(run.evaluation, Evaluation(tuple(preference_rows(shifts)), {"preference": "key"}))
    if keep:
        write_items(run.items("key"), shifts.items())


@pytest.fixture
def moves():
    """With RC most pairs move as without it."""
    generator = np.random.default_rng(5)
    common = generator.normal(0.4, 1, (2, PAIRS))
    return [common + generator.normal(0, 0.1, (2, PAIRS)) for _ in range(6)]


def differences_of(store, cells):
    (comparison,) = compare(collect(store, cells))
    return {metric: difference(comparison.without, comparison.with_rc[0], metric) for metric in (ACCURACY, MARGIN)}


def test_two_runs_on_the_same_pairs(store, moves):
    cells = cells_of(**{"objective": ["dpo"], "calibration.enabled": [False, True]})
    for cell, (win, lose) in zip(cells, moves, strict=False):
        evaluated(store, cell, win, lose)
    estimates = differences_of(store, cells)
    margins = [win - lose for win, lose in moves[:2]]
    assert estimates[MARGIN].stderr == pytest.approx(stats.sem(margins[1] - margins[0]))
    right = [margin > 0 for margin in margins]
    assert estimates[ACCURACY].p == mcnemar(int((right[1] & ~right[0]).sum()), int((right[0] & ~right[1]).sum()))
    apart = [stats.sem(each.astype(float)) for each in right]
    assert estimates[ACCURACY].stderr < 0.6 * math.hypot(*apart)
    table = results_table("t", collect(store, cells))
    assert any("item by item" in note for note in table.notes)
    assert not any("as if independent" in note for note in table.notes)
    assert {"p", "ranking_percent", "ranking_per_token_percent"} <= {column.key for column in table.columns}


def test_without_items_errors_are_added_and_it_is_said(store, moves):
    cells = cells_of(**{"objective": ["dpo"], "calibration.enabled": [False, True]})
    for cell, (win, lose), keep in zip(cells, moves, (True, False), strict=False):
        evaluated(store, cell, win, lose, keep=keep)
    estimates = differences_of(store, cells)
    assert not estimates[MARGIN].paired
    assert estimates[MARGIN].stderr == pytest.approx(math.hypot(*(stats.sem(win - lose) for win, lose in moves[:2])))
    assert any("as if independent" in note for note in results_table("t", collect(store, cells)).notes)


def test_several_seeds_and_pairs_together(store, moves):
    cells = cells_of(**{"train.seed": [1, 2, 3], "calibration.enabled": [False, True]})
    for cell, (win, lose) in zip(cells, moves, strict=True):
        evaluated(store, cell, win, lose)
    estimates = differences_of(store, cells)
    assert estimates[MARGIN].paired and estimates[MARGIN].seeds == 3
    by_cell = {}
    for cell, (win, lose) in zip(cells, moves, strict=True):
        by_cell[cell.config.train.seed, cell.config.calibration.enabled] = win - lose
    matrix = np.stack([by_cell[seed, True] - by_cell[seed, False] for seed in (1, 2, 3)])
    assert estimates[MARGIN].value == pytest.approx(matrix.mean())
    assert estimates[MARGIN].stderr == pytest.approx(paired._crossed(matrix, weighted(PAIRS)).stderr)
    assert any("items and seeds together" in note for note in results_table("t", collect(store, cells)).notes)


def test_cures_are_held_against_dpo_pair_by_pair(store, moves):
    cells = cells_of(**{"objective": ["dpo", "dpop"]})
    for cell, (win, lose) in zip(cells, moves, strict=False):
        evaluated(store, cell, win, lose)
    table = displacement_table(compare(collect(store, cells)), "nats")
    assert table.columns[-1].key == "accuracy_gain_points"
    alone, cure = (row.entries[-1] for row in table.rows)
    assert alone.words == "–"
    before, after = (((win - lose) > 0).astype(float) for win, lose in moves[:2])
    assert cure.value == pytest.approx((after - before).mean())
    assert cure.spread == pytest.approx(paired._of_shares(after - before).stderr)
    assert "McNemar" in cure.tip
    assert any("Δ DPO is that of the differences item by item" in note for note in table.notes)


def test_items_of_another_measurement_are_not_taken(store, moves):
    """Such as files copied from elsewhere: their mean is not the row's value."""
    cells = cells_of(**{"objective": ["dpo"], "calibration.enabled": [False, True]})
    for cell, (win, lose) in zip(cells, moves, strict=False):
        evaluated(store, cell, win, lose)
    path = store.run(cells[0].run_id).items("key")
    items = read_items(path)
    write_items(path, Items(items.names, items.tasks, {name: column + 1 for name, column in items.columns.items()}))
    assert not differences_of(store, cells)[MARGIN].paired
    path.write_bytes(b"PAR1 is all that is left")
    with pytest.raises(StoreError, match="damaged"):
        read_items(path)
    assert not differences_of(store, cells)[MARGIN].paired
