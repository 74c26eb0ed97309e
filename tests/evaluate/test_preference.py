"""Preference metrics against plain definitions, and their intervals against known distributions."""

import numpy as np
import pytest
from scipy import stats

from rcray.evaluate.bootstrap import bootstrap
from rcray.evaluate.preference import Shifts, preference_rows

RNG = np.random.default_rng(5)
N = 400


def shifts(margin_mean=0.5, beta=2.0, **changes):
    shift_l = RNG.normal(-1, 1, N)
    fields = {
        "shift_w": shift_l + RNG.normal(margin_mean, 1, N),
        "shift_l": shift_l,
        "n_w": RNG.integers(5, 50, N),
        "n_l": RNG.integers(5, 50, N),
        "beta": beta,
    }
    return moved(**(fields | changes))


def moved(shift_w, shift_l, n_w, n_l, **more):
    """From start likelihoods of a typical size."""
    start_w, start_l = (-3.0 * n + RNG.normal(0, 5, len(n)) for n in (n_w, n_l))
    rows = tuple(map(str, range(len(n_w))))
    return Shifts(start_w, start_l, start_w + shift_w, start_l + shift_l, n_w, n_l, rows, **more)


def by_name(rows):
    return {row.metric: row for row in rows}


def test_plain_definitions():
    given = shifts()
    rows = by_name(preference_rows(given))
    margin = given.shift_w - given.shift_l
    p = 1 / (1 + np.exp(-2.0 * margin))
    assert rows["accuracy"].value == np.mean(margin > 0)
    assert rows["margin"].value == pytest.approx(margin.mean())
    assert rows["margin"].stderr == pytest.approx(stats.sem(margin))
    assert rows["drift_w"].value == pytest.approx(given.shift_w.mean())
    assert rows["drift_l"].value == pytest.approx(given.shift_l.mean())
    assert rows["brier"].value == pytest.approx(np.mean((1 - p) ** 2))
    assert rows["length_correlation"].value == pytest.approx(stats.pearsonr(margin, given.n_w - given.n_l).statistic)
    assert rows["ranking"].value == np.mean(given.trained_w > given.trained_l)
    assert rows["ranking_per_token"].value == np.mean(given.trained_w / given.n_w > given.trained_l / given.n_l)
    assert {row.status for row in rows.values()} == {"ok"} and {row.n for row in rows.values()} == {N}
    for row in rows.values():
        assert row.ci_low < row.value < row.ci_high or row.metric == "ece"


def test_calibration_error_bin_by_bin():
    given = shifts()
    margin = given.margin
    p = 1 / (1 + np.exp(-2.0 * margin))
    confidence, right = np.maximum(p, 1 - p), p > 0.5
    expected = 0.0
    for low in np.arange(0.5, 1.0, 0.05):
        inside = (confidence >= low) & ((confidence < low + 0.05) | (low > 0.94))
        if inside.any():
            expected += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    assert by_name(preference_rows(given))["ece"].value == pytest.approx(expected, abs=1e-9)


def test_calibrated_probabilities_have_a_small_error_and_overconfident_ones_a_large_one():
    log_odds = RNG.normal(0, 2, 4000)
    chosen_better = RNG.random(4000) < 1 / (1 + np.exp(-log_odds))
    margin = np.where(chosen_better, log_odds, -log_odds)  # seen from the answer that was chosen
    zeros = np.zeros(4000)
    lengths = {"n_w": zeros + 5, "n_l": zeros + 5}
    error = {
        beta: by_name(preference_rows(moved(margin, zeros, beta=beta, **lengths)))["ece"].value for beta in (1.0, 5.0)
    }
    assert error[1.0] < 0.03 < 0.1 < error[5.0]


def test_equal_lengths_have_no_correlation():
    row = by_name(preference_rows(shifts(n_w=np.full(N, 8), n_l=np.full(N, 8))))["length_correlation"]
    assert (row.value, row.status, row.reason) == (None, "undefined", "all length differences are equal")


def test_a_non_finite_likelihood_has_no_score():
    given = shifts()
    given.trained_w[3] = np.nan
    rows = preference_rows(given)
    assert {row.status for row in rows} == {"degenerate"} and {row.value for row in rows} == {None}
    assert "1 of 400 held-out pairs" in rows[0].reason


def test_huge_margins_do_not_overflow():
    with np.errstate(all="raise"):
        rows = by_name(preference_rows(shifts(shift_w=np.full(N, 1e6), shift_l=RNG.normal(0, 1, N))))
    assert rows["brier"].value == pytest.approx(0)


def test_the_interval_of_a_mean_is_the_normal_one():
    values = RNG.normal(3, 2, 1000)
    interval = bootstrap(len(values), lambda draws: values[draws].mean(axis=1))
    sem = stats.sem(values)
    assert interval.stderr == pytest.approx(sem, rel=0.1)
    assert interval.low == pytest.approx(values.mean() - 1.96 * sem, abs=0.4 * sem)
    assert interval.high == pytest.approx(values.mean() + 1.96 * sem, abs=0.4 * sem)
    assert bootstrap(len(values), lambda draws: values[draws].mean(axis=1)) == interval, "seeded"
