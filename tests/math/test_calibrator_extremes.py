"""Reward calibration where there is nothing to balance, and at the ends of the float range."""

import math
from itertools import product

import pytest
import torch

from rcray.calibration import Calibrator, Statistics, calibrate, observe
from rcray.calibration.band import MAX_LOG_ALPHA
from rcray.objectives import objective
from tests.math.linear_pairs import VARIANTS, Linear

# --- batches with nothing to balance ----------------------------------------------------------------------------

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("reason", "stats"),
    [
        ("inactive_loser", Statistics(0, -INF, 1, 0, 0, 0, 0.5)),
        ("inactive_winner", Statistics(-INF, 0, 0, 1, 0, 0, 0.5)),
        ("both_inactive", Statistics(-INF, -INF, 0, 0, 0, 0, 0.5)),
        ("zero_score", Statistics(0, 0, 1, 1, -INF, 0, NAN)),
        ("zero_score", Statistics(0, 0, 1, 1, 0, -INF, NAN)),
        ("zero_score", Statistics(0, 0, 1, 1, -INF, -INF, NAN)),
        ("opposite_signs", Statistics(0, 0, 1, -1, 0, 0, 0.5)),
        ("opposite_signs", Statistics(0, 0, -1, 1, 0, 0, 0.5)),
        ("non_finite", Statistics(NAN, 0, 0, 1, 0, 0, 0.5)),
        ("non_finite", Statistics(0, NAN, 1, 0, 0, 0, 0.5)),
        ("non_finite", Statistics(INF, 0, 1, 1, 0, 0, 0.5)),
        ("non_finite", Statistics(0, 0, 1, 1, NAN, NAN, NAN)),
    ],
)
@pytest.mark.parametrize("clip", [True, False])
def test_a_batch_without_a_ratio_is_left_alone_counted_and_not_averaged(reason, stats, clip):
    calibrator = Calibrator(0.5, clip=clip)
    fresh = calibrator.update(stats)
    assert (fresh.log_alpha, fresh.alpha, fresh.skipped) == (0.0, 1.0, reason)
    assert calibrator.state_dict() is None
    calibrator.update(Statistics(1, 2, 1, 1, 3, 4, 0.5))
    before = calibrator.state_dict()
    again = calibrator.update(stats)
    assert (again.log_alpha, again.skipped, again.clipped) == (0.0, reason, False)
    assert calibrator.state_dict() == before
    assert observe(stats).skipped == reason
    if reason in ("zero_score", "both_inactive"):
        assert fresh.in_band is None


@pytest.mark.parametrize(
    ("name", "hyperparameters", "z_w", "z_l", "s_w", "s_l", "reason"),
    [
        ("rrhf", {}, -1.0, -5.0, [1.0, 0.0], [1.0, 1.0], "inactive_loser"),
        ("slic-hf", {}, -1.0, -5.0, [1.0, 0.0], [1.0, 1.0], "inactive_loser"),
        ("slic-hf", {"lam": 0.0}, -1.0, -5.0, [1.0, 0.0], [1.0, 1.0], "both_inactive"),
        ("bpo", {"beta": 2.0}, -1.0, -5.0, [1.0, 0.0], [1.0, 1.0], "both_inactive"),
        ("ipo", {"tau": 0.125}, -1.0, -5.0, [1.0, 0.0], [1.0, 1.0], "both_inactive"),
        ("dpo", {}, -1.0, -5.0, [0.0, 0.0], [1.0, 1.0], "zero_score"),
        ("dpo", {}, -1.0, -5.0, [1.0, 0.0], [0.0, 0.0], "zero_score"),
        ("dpo", {}, -1.0, -5.0, [NAN, 0.0], [1.0, 1.0], "non_finite"),
        ("dpo", {}, NAN, -5.0, [1.0, 0.0], [1.0, 1.0], "non_finite"),
        ("dpo", {}, -INF, -5.0, [1.0, 0.0], [1.0, 1.0], "non_finite"),
    ],
)
def test_the_reason_is_found_from_the_batch_itself(name, hyperparameters, z_w, z_l, s_w, s_l, reason):
    calibrator = Calibrator()
    done = Linear([z_w], [z_l], [s_w], [s_l]).calibrate(objective(name, **hyperparameters), calibrator)
    assert done.report.skipped == reason and done.report.alpha == 1.0 and calibrator.ema is None


def test_opposite_signs_are_found_from_the_batch():
    batch = Linear([-1.0], [-5.0], [[1.0, 0.0]], [[1.0, 1.0]])
    done = calibrate(lambda w, lose: w + lose, batch.z_w, batch.z_l, parameters=[batch.theta], calibrator=Calibrator())
    assert done.report.skipped == "opposite_signs" and done.report.alpha == 1.0


def test_reversed_incentives_are_calibrated_and_flagged():
    """IPO past its target: d_w = d_l < 0, the ratio is still 1 and can still be moved to r*."""
    done = Linear([0.0], [-30.0], [[1.0, 0.0]], [[1.0, 2.0]]).calibrate(objective("ipo"), Calibrator())
    assert done.report.stats.reversed and done.report.skipped is None
    assert done.report.stats.log_r == 0.0
    assert done.report.calibrated.log_r == pytest.approx(math.log(math.sqrt(5)))


# --- the ends of the range --------------------------------------------------------------------------------------

FORWARD, ACROSS, BACKWARD = [1.0, 0.0, 0.5], [0.5, 1.0, 0.0], [-1.0, 0.2, -0.5]
#: name: (z_w, z_l, s_w, s_l) of two pairs; the reference is at 0
EXTREMES = {
    "both at -1e4": ([-1e4, -1e4], [-1e4, -1e4], FORWARD, ACROSS),
    "winner at -1e4": ([-1e4, -1e4], [-1.0, -2.0], FORWARD, ACROSS),
    "loser at -1e4": ([-1.0, -2.0], [-1e4, -1e4], FORWARD, ACROSS),
    "winner at 1e4": ([1e4, 1e4], [-1.0, -2.0], FORWARD, ACROSS),
    "loser at 1e4": ([-1.0, -2.0], [1e4, 1e4], FORWARD, ACROSS),
    "one pair at -1e4": ([-1e4, -2.0], [-1.0, -1e4], FORWARD, ACROSS),
    "equal sequences": ([-3.0, -4.0], [-3.0, -4.0], FORWARD, FORWARD),
    "rho is 1": ([-3.0, -4.0], [-5.0, -4.5], FORWARD, [3 * x for x in FORWARD]),
    "rho below 0": ([-3.0, -4.0], [-5.0, -4.5], FORWARD, BACKWARD),
    "scores of 1e-18": ([-3.0, -4.0], [-5.0, -4.5], [1e-18 * x for x in FORWARD], ACROSS),
    "scores of 1e15": ([-3.0, -4.0], [-5.0, -4.5], [1e15 * x for x in FORWARD], ACROSS),
    "inactive hinges": ([-1.0, -1.0], [-90.0, -80.0], FORWARD, ACROSS),
    "no winner score": ([-1.0, -1.0], [-2.0, -3.0], [0.0, 0.0, 0.0], ACROSS),
}
SKIPS = {None, "inactive_loser", "inactive_winner", "both_inactive", "zero_score", "opposite_signs"}


@pytest.mark.parametrize("variant", VARIANTS)
def test_extremes_have_a_defined_outcome(variant):
    for extreme, clip in product(EXTREMES, (True, False)):
        has_a_defined_outcome(variant, extreme, clip)


def has_a_defined_outcome(variant, extreme, clip):
    name, hyperparameters = VARIANTS[variant]
    z_w, z_l, s_w, s_l = EXTREMES[extreme]
    calibrator = Calibrator(clip=clip)
    for _ in range(2):  # the second pass reads the averages that the first one left
        batch = Linear(z_w, z_l, [s_w, s_w], [s_l, s_l], torch.float32)
        done = batch.calibrate(objective(name, **hyperparameters), calibrator)
        assert done.report.skipped in SKIPS
        assert 0 < done.report.alpha < math.inf and 0 < 1 / done.report.alpha < math.inf
        assert done.loss.isfinite().all()
        assert torch.equal(done.loss, objective(name, **hyperparameters).loss(batch.pairs))
        (grad,) = torch.autograd.grad(done.loss.mean(), batch.theta)
        assert grad.isfinite().all()
        assert calibrator.ema is None or all(map(math.isfinite, calibrator.ema.values()))
        if extreme == "no winner score":
            assert done.report.skipped in ("zero_score", "both_inactive", "inactive_loser")
        if extreme in ("rho is 1", "equal sequences") and done.report.skipped is None:
            assert done.report.band.half_width == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("variant", VARIANTS)
def test_one_broken_row_is_named_and_stays_in_its_row(variant):
    for side, bad in product(("winner", "loser"), (NAN, -INF)):
        is_named_and_stays_in_its_row(variant, side, bad)


def is_named_and_stays_in_its_row(variant, side, bad):
    name, hyperparameters = VARIANTS[variant]
    z_w, z_l = [-3.0, -4.0, -2.0], [-5.0, -4.5, -2.5]
    (z_w if side == "winner" else z_l)[1] = bad
    calibrator = Calibrator()
    batch = Linear(z_w, z_l, [FORWARD] * 3, [ACROSS] * 3, torch.float32)
    done = batch.calibrate(objective(name, **hyperparameters), calibrator)
    assert done.report.skipped == "non_finite" and done.report.alpha == 1.0
    assert calibrator.ema is None
    assert done.loss[[0, 2]].isfinite().all()
    healthy = Linear([-3.0, -2.0], [-5.0, -2.5], [FORWARD] * 2, [ACROSS] * 2, torch.float32)
    assert torch.equal(done.loss[[0, 2]], objective(name, **hyperparameters).loss(healthy.pairs))


def test_a_ratio_no_float_holds_is_bounded_and_reported():
    """dil-ukl with a loser at -1e4: log r = 1e4; exp(-5000) is 0 and its inverse infinite."""
    done = Linear([-1.0], [-1e4], [FORWARD], [ACROSS]).calibrate(objective("dil-ukl"), Calibrator())
    assert done.report.stats.log_r == pytest.approx(1e4)
    assert done.report.log_alpha == -MAX_LOG_ALPHA and done.report.clipped
