"""The normalised gradient: the update is along s_w/|s_w| - s_l/|s_l|, whatever the objective weighs its sides with."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rcray.calibration import Calibrator, incentives, normalised_gradient
from rcray.config import run_id
from rcray.objectives import objective
from rcray.train.launch import launch
from tests.math.linear_pairs import VARIANTS, random_pairs
from tests.small_runs import records, small_config


@settings(max_examples=60, deadline=None, derandomize=True)
@given(variant=st.sampled_from(sorted(VARIANTS)), seed=st.integers(0, 10_000))
def test_a_pair_is_moved_along_the_difference_of_its_unit_scores(variant, seed):
    """Against autograd in float64; the length is the geometric mean of what both sides pulled with."""
    name, hyperparameters = VARIANTS[variant]
    bound = objective(name, **hyperparameters)
    batch = random_pairs(seed, count=1)
    done = batch.calibrate(bound, normalised_gradient())
    if done.report.skipped:  # an inactive hinge, opposed incentives: nothing to balance
        assert done.report.log_alpha == 0.0
        return
    (gradient,) = torch.autograd.grad(done.loss.sum(), batch.theta, retain_graph=True)
    s_w, s_l = (torch.autograd.grad(z.sum(), batch.theta, retain_graph=True)[0] for z in (batch.z_w, batch.z_l))
    sides = incentives(bound, batch.pairs)
    sign = sides.d_w.sign().item()  # both negative: the objective asks for the way back
    length = (sides.d_w * sides.d_l).sqrt() * (s_w.norm() * s_l.norm()).sqrt()
    wanted = sign * length * (s_w / s_w.norm() - s_l / s_l.norm())
    assert torch.allclose(-gradient, wanted, rtol=1e-9, atol=1e-12 * length.item())


def test_each_window_stands_alone():
    """Whatever came before, alpha is that of the window's own norms."""
    used, bound = normalised_gradient(), objective("dpo")
    for seed in range(6):
        batch = random_pairs(seed)
        report = batch.calibrate(bound, used).report
        assert report.log_alpha == batch.calibrate(bound, normalised_gradient()).report.log_alpha
        assert report.log_alpha == pytest.approx((report.band.log_r_star - report.stats.log_r) / 2, rel=1e-12)
        assert report.in_band
    assert batch.calibrate(bound, Calibrator()).report.log_alpha == pytest.approx(report.log_alpha)  # its first batch


@pytest.mark.parametrize("granularity", ["microbatch", "step"])
def test_a_run_takes_the_ratio_of_each_window(store, granularity):
    config = small_config(calibration={"enabled": True, "kind": "normalised", "granularity": granularity})
    launch(config, store)
    rows = records(store, config)
    assert (rows.skipped == "").all() and (rows.log_alpha.abs() > 1e-6).any()
    assert rows.log_r.to_numpy() == pytest.approx(rows.log_r_star.to_numpy(), abs=1e-9)


def test_what_it_does_not_read_is_refused_or_says_nothing():
    def of(**fields):
        return small_config(calibration={"enabled": True, "kind": "normalised", **fields})

    for name, value in (("ema_beta", 0.5), ("loser_share", 0.5)):
        with pytest.raises(ValueError, match=f"{name} has no meaning for kind 'normalised'"):
            of(**{name: value})
    assert run_id(of(clip=False)) == run_id(of(look_every=5)) == run_id(of())
    published = small_config(calibration={"enabled": True})
    assert run_id(of()) != run_id(published)
    assert of().label.endswith("· normalised")
