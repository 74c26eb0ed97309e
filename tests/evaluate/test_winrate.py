"""Win rates: the raw one is a mean, the length-controlled one recovers a known answer."""

import numpy as np
import pytest

from rcray.config.alpaca_eval import MODES
from rcray.errors import DataError, RcrayError
from rcray.evaluate.alpaca_eval.judge import Judgement
from rcray.evaluate.alpaca_eval.outputs import Match
from rcray.evaluate.alpaca_eval.winrate import Annotations, _fit, annotations, win_rate_rows

N = 805


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def drawn(theta, phi, seed, *, psi=0.0, longer=300.0, hard=True):
    """Annotations from the model itself: the candidate's answers are longer, and the judge likes that."""
    rng = np.random.default_rng(seed)
    difference = rng.normal(longer, 400, N)
    difficulty = rng.normal(0, 1, N)
    p = sigmoid(theta + phi * np.tanh(difference / difference.std()) + psi * difficulty)
    preference = (rng.random(N) < p).astype(float) if hard else p
    return Annotations(preference, difference, difficulty if psi else None, 0, 0.0)


def rates(annotated):
    return {row.metric: row for row in win_rate_rows(annotated, "other", "judge", "both_orders")}


@pytest.mark.parametrize("phi", [0.0, 1.0, 2.0])
def test_length_bias_is_removed(phi):
    """The truth lies in the interval in nearly all repetitions, and the raw rate misses it where there is a bias."""
    inside, biased, errors = 0, 0, []
    for i, theta in enumerate((-0.5, 0.0, 0.4)):
        for j in range(4):
            rows = rates(drawn(theta, phi, seed=100 * int(phi) + 10 * i + j))  # draws of their own, not shared ones
            lc, truth = rows["lc_win_rate"], sigmoid(theta)
            inside += lc.ci_low <= truth <= lc.ci_high
            biased += rows["win_rate"].ci_low > truth
            errors.append((lc.value - truth) / lc.stderr)
    assert inside >= 10  # of twelve 95% intervals; 10 or more in 98% of such dozens, and the seeds are fixed
    assert abs(np.mean(errors)) < 1
    assert biased == 12 if phi >= 1 else biased <= 2


def test_parameters_are_recovered_from_soft_preferences():
    annotated = drawn(0.3, 1.5, seed=1, psi=0.7, hard=False)
    theta, phi, psi = _fit(annotated, np.arange(len(annotated.preference))[None])[0]
    assert theta == pytest.approx(0.3, abs=0.01)
    assert phi == pytest.approx(1.5, abs=0.01)
    assert psi == pytest.approx(0.7, abs=0.01)


def test_difficulty_is_averaged_over():
    annotated = drawn(0.3, 1.5, seed=1, psi=0.7, hard=False)
    truth = sigmoid(0.3 + 0.7 * annotated.difficulty).mean()
    rows = rates(annotated)
    assert rows["lc_win_rate"].value == pytest.approx(truth, abs=2e-3)
    assert "without instruction difficulty" not in rows["lc_win_rate"].note


def test_equal_lengths_leave_the_raw_rate():
    rng = np.random.default_rng(0)
    for preference in (rng.random(N), (rng.random(N) < 0.7).astype(float)):
        for difference in (np.zeros(N), np.full(N, 120.0) - 120.0):
            rows = rates(Annotations(preference, difference, None, 0, 0.0))
            assert rows["lc_win_rate"].value == pytest.approx(rows["win_rate"].value, abs=1e-9)
            assert rows["lc_win_rate"].ci_low == pytest.approx(rows["win_rate"].ci_low, abs=1e-9)
            assert rows["lc_win_rate"].ci_high == pytest.approx(rows["win_rate"].ci_high, abs=1e-9)


def test_lengths_that_do_not_matter_leave_the_raw_rate():
    annotated = drawn(0.4, 0.0, seed=3)
    rows = rates(annotated)
    assert rows["lc_win_rate"].value == pytest.approx(rows["win_rate"].value, abs=0.03)


@pytest.mark.parametrize("won", [0.0, 1.0])
def test_all_won_or_lost_is_finite(won):
    rng = np.random.default_rng(0)
    rows = rates(Annotations(np.full(50, won), rng.normal(0, 10, 50), None, 0, 0.0))
    assert rows["lc_win_rate"].value == pytest.approx(won, abs=1e-6)


def test_a_win_of_the_longer_answer_every_time():
    """Separable: length explains everything, and nothing speaks for the candidate."""
    difference = np.linspace(-100, 100, 200)
    rows = rates(Annotations((difference > 0).astype(float), difference, None, 0, 0.0))
    assert rows["lc_win_rate"].value == pytest.approx(0.5, abs=0.05)


def test_raw_rate_and_interval():
    rng = np.random.default_rng(2)
    preference = (rng.random(N) < 0.6).astype(float)
    row = rates(Annotations(preference, rng.normal(0, 1, N), None, 3, 0.02))["win_rate"]
    assert row.value == preference.mean()
    assert row.stderr == pytest.approx((0.24 / N) ** 0.5, rel=0.1)
    assert row.ci_low < row.value < row.ci_high and row.n == N
    assert "3 judgements failed" in row.note and "+0.020" in row.note


# -- from judgements to annotations


MATCHES = [Match("a", "long answer", "short"), Match("b", "x", "yyy"), Match("c", "1", "2")]


def test_orders_are_averaged_and_position_bias_measured():
    judgements = [Judgement(i, first, 0.9 if first else 0.5) for i in range(3) for first in (True, False)]
    annotated = annotations(MATCHES, judgements, MODES["both_orders"])
    assert annotated.preference == pytest.approx([0.7] * 3)
    assert annotated.length_difference.tolist() == [6, -2, 0]
    assert annotated.position_bias == pytest.approx(0.2)


def test_failures_by_mode():
    judgements = [Judgement(0, False, 1.0), Judgement(1, False, None, "HTTP 500"), Judgement(2, False, 0.0)]
    annotated = annotations(MATCHES, judgements, MODES["published"])
    assert annotated.preference.tolist() == [1.0, 0.5, 0.0] and annotated.failures == 1
    both = [Judgement(0, True, 1.0), Judgement(0, False, None, "x"), Judgement(1, True, 0.4), Judgement(1, False, 0.6)]
    annotated = annotations(MATCHES, both, MODES["both_orders"])
    assert annotated.preference.tolist() == [0.5], "one order alone would carry the judge's liking for a position"
    with pytest.raises(RcrayError, match="HTTP 500"):
        annotations(MATCHES, [judgements[1]], MODES["both_orders"])


def test_difficulties_must_fit():
    with pytest.raises(DataError, match="2 difficulties for 3"):
        annotations(MATCHES, [], MODES["both_orders"], [1.0, 2.0])
