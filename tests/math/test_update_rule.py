"""The rule that steers by the update: what it solves, when it stays, and what a look teaches it."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rcray.calibration.preview import SgdPreview
from rcray.calibration.update import (
    HORIZON,
    WIDEST_LOG_ALPHA,
    Drift,
    Foreseen,
    Move,
    Response,
    UpdateCalibrator,
    products,
)
from tests.math.test_true_update import foreseen_from, trained, whole


def steering(b_w, b_l, share=0.75):
    """A calibrator whose branches move q by b_w and b_l, whatever the share."""
    calibrator = UpdateCalibrator(share)
    calibrator.response = Response(b_w, -b_l, b_w, -b_l)
    return calibrator


SETTLES = 2.0


def descent(rate=0.1):
    """Gradient descent with a momentum of a half."""
    return SgdPreview(torch.zeros(1), rate, momentum=0.5)


def memory(f, rate=0.1):
    """An optimizer whose memory moves q by f."""
    return Move(f, f), descent(rate)


positive = st.floats(1e-6, 10.0)
anything = st.floats(-10.0, 10.0)


@given(b_w=positive, b_l=positive, f=anything, drift_w=anything, drift_l=anything, guarding=st.booleans())
def test_the_rule_solves_its_equation(b_w, b_l, f, drift_w, drift_l, guarding):
    log_alpha = steering(b_w, b_l).decide(*memory(f), Move(drift_w, drift_l), guarding=guarding)
    share = 1.0 if guarding else 0.75
    b_w, b_l = b_w / SETTLES, b_l / SETTLES
    asked = -(share * drift_w + (1 - share) * drift_l) / HORIZON
    given_ = f + math.exp(log_alpha) * b_w - math.exp(-log_alpha) * b_l
    if log_alpha == WIDEST_LOG_ALPHA:
        assert given_ <= asked + 1e-9
    elif log_alpha == -WIDEST_LOG_ALPHA:
        assert given_ >= asked - 1e-9
    else:
        assert given_ == pytest.approx(asked, rel=1e-6, abs=1e-9)


def test_a_fallen_winner_is_weighed_more_and_a_risen_loser_less_so():
    at = {d: steering(1.0, 1.0).decide(*memory(0.0), Move(d, 0.0)) for d in (-4.0, 0.0, 4.0)}
    assert at[-4.0] > 0.1 and at[4.0] < -0.1 and at[0.0] == pytest.approx(0.0)
    loser = steering(1.0, 1.0).decide(*memory(0.0), Move(0.0, -4.0))
    assert 0 < loser < at[-4.0]


@pytest.mark.parametrize(("steps", "horizon"), [(None, HORIZON), (1000, HORIZON), (80, HORIZON), (28, 7.0), (2, 1.0)])
def test_a_short_run_undoes_drift_before_it_ends(steps, horizon):
    rule = UpdateCalibrator(0.75, steps)
    rule.response = Response(1.0, -1.0, 1.0, -1.0)
    log_alpha = rule.decide(*memory(0.0), Move(-0.1, -0.1))
    assert (math.exp(log_alpha) - math.exp(-log_alpha)) / SETTLES == pytest.approx(0.1 / horizon)


def test_the_guard_looks_at_the_winner_alone():
    """The winner lost 2 nats, the loser rose by 6: q stands where it stood, the winner does not."""
    drift = Move(-2.0, 6.0)
    assert steering(1.0, 1.0).decide(*memory(0.0), drift) == pytest.approx(0.0)
    assert steering(1.0, 1.0).decide(*memory(0.0), drift, guarding=True) > 0


@pytest.mark.parametrize(("b_w", "b_l"), [(0.0, 1.0), (-1.0, 1.0), (1.0, 0.0), (1.0, -2.0), (math.nan, 1.0)])
def test_where_the_branches_do_not_pull_apart_the_last_factor_stays(b_w, b_l):
    calibrator = steering(b_w, b_l)
    calibrator.log_alpha = 0.37
    assert calibrator.decide(*memory(1.0), Move(-1.0, -1.0)) == 0.37


def test_before_the_first_look_nothing_is_rescaled():
    assert UpdateCalibrator().decide(*memory(1.0), Move(-5.0, 1.0)) == 0.0


@pytest.mark.parametrize("broken", [Move(math.nan, -1.0), Move(-math.inf, 0.0)])
def test_a_drift_that_is_no_number_is_left_out(broken):
    """In an average that forgets it would stay for good, and no factor would be decided any more."""
    drift = Drift()
    drift.add(8, broken)
    assert drift.mean == Move(0.0, 0.0)
    drift.add(8, Move(-1.0, -2.0))
    before = drift.mean
    drift.add(8, broken)
    assert drift.mean == before and before.w == pytest.approx(-1.0)


rates = st.floats(1e-6, 1.0)


@given(schedule=st.lists(rates, min_size=1, max_size=6), b_w=positive, b_l=positive, f=anything, drift=anything)
def test_the_rule_holds_at_any_learning_rate_whatever_the_rates_of_its_looks(schedule, b_w, b_l, f, drift):
    """Memory and branches move q in proportion to the rate; so must what looks at other rates taught."""
    rule, vector = UpdateCalibrator(), torch.ones(1)
    for rate in schedule:
        branches = -b_w * vector, b_l * vector  # seen by scores of 1, a step moves q by rate * b_w and -rate * b_l
        rule.look(Foreseen(vector, vector, *branches, descent(rate), math.inf, lambda partial: partial))
    rate = schedule[-1]
    log_alpha = rule.decide(*memory(rate * f, rate), Move(drift, drift))
    made = f + math.exp(log_alpha) * b_w - math.exp(-log_alpha) * b_l
    asked = -drift / HORIZON / max(schedule)  # as many more steps as the rate is below the highest
    if abs(log_alpha) < WIDEST_LOG_ALPHA:
        assert made == pytest.approx(asked, rel=1e-4, abs=1e-5 * (abs(f) + b_w + b_l))


def test_a_rate_of_zero_teaches_nothing():
    rule, vector = UpdateCalibrator(), torch.ones(1)
    rule.look(Foreseen(vector, vector, -vector, vector, descent(0.0), math.inf, lambda partial: partial))
    assert rule.response is None and rule.looks == 0
    assert rule.decide(*memory(1.0, 0.0), Move(-1.0, 0.0)) == 0.0


def remembered(foreseen):
    return Move(*products(foreseen.score_w, foreseen.score_l, foreseen.preview.kept(), whole).tolist())


def looked_at(count):
    calibrator = UpdateCalibrator(0.6)
    for seed in range(count):
        parameter, optimizer, preview = trained("adam", seed + 1)
        foreseen = foreseen_from(preview(optimizer, parameter), seed)
        calibrator.look(foreseen)
        calibrator.decide(remembered(foreseen), foreseen.preview, Move(-0.1, -0.2))
    return calibrator, foreseen


def test_looks_are_averaged():
    calibrator, foreseen = looked_at(1)
    expected = [foreseen.preview.settles * b for b in foreseen.response(0.0).values()]
    assert calibrator.response.values() == pytest.approx(expected)
    twice, last = looked_at(2)
    at = [last.preview.settles * b for b in last.response(calibrator.log_alpha).values()]
    assert twice.response.values() == pytest.approx([(a + b) / 2 for a, b in zip(expected, at, strict=True)])


def test_state_goes_round():
    calibrator, foreseen = looked_at(4)
    other = UpdateCalibrator(0.6)
    other.load_state_dict(calibrator.state_dict())
    assert other.state_dict() == calibrator.state_dict() and other.looks == 4
    told = remembered(foreseen), foreseen.preview, Move(-0.3, -0.1)
    ours, theirs = (c.decide(*told) for c in (calibrator, other))
    assert ours == theirs
    fresh = UpdateCalibrator()
    fresh.load_state_dict(UpdateCalibrator().state_dict())
    fresh.load_state_dict(None)
    assert fresh.response is None and fresh.log_alpha == 0.0
