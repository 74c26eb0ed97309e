"""Reward calibration: what it leaves alone, what it changes, and the averages it keeps; also over workers."""

import json
import math
import threading

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rcray.calibration import Calibrator, Statistics, calibrate, incentives, mean_incentives, scale_gradient
from rcray.calibration.band import MAX_LOG_ALPHA
from rcray.objectives import PairLogps, objective
from tests.math.linear_pairs import VARIANTS, Linear, random_pairs

FEW = settings(max_examples=60, deadline=None)
logs = st.floats(-20, 20)
statistics = st.builds(
    lambda d_w, d_l, s_w, s_l, rho: Statistics(d_w, d_l, 1, 1, s_w, s_l, rho), logs, logs, logs, logs, st.floats(-1, 1)
)


# --- the forward pass is untouched, the backward pass is scaled -------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@FEW
@given(values=st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=6), log_factor=st.floats(-40, 40))
def test_scaled_likelihoods_are_the_same_bits_with_another_gradient(dtype, values, log_factor):
    factor = math.exp(log_factor)
    z = torch.tensor([*values, -1e4, -0.0, -math.inf], dtype=dtype, requires_grad=True)
    scaled = scale_gradient(z, factor)
    bits = torch.int32 if dtype == torch.float32 else torch.int64
    assert torch.equal(scaled.detach().view(bits), z.detach().view(bits))
    seed = torch.arange(1, len(z) + 1, dtype=dtype)
    (grad,) = torch.autograd.grad(scaled, z, seed)
    assert torch.equal(grad, seed * factor)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_loss_is_the_same_bits_and_each_side_is_scaled(variant, dtype):
    name, hyperparameters = VARIANTS[variant]
    bound = objective(name, **hyperparameters)
    for seed in range(5):
        batch = random_pairs(seed, dtype=dtype)
        done = batch.calibrate(bound, Calibrator(clip=False))
        plain = bound.loss(batch.pairs)
        assert torch.equal(done.loss, plain)
        alpha = done.report.alpha
        assert done.report.skipped is not None or abs(done.report.log_alpha) > 1e-3
        sides = [batch.z_w, batch.z_l]
        before = torch.autograd.grad(plain.mean(), sides, retain_graph=True)
        after = torch.autograd.grad(done.loss.mean(), sides)
        assert torch.equal(after[0], before[0] * alpha)
        assert torch.equal(after[1], before[1] * (1 / alpha))


def test_without_a_calibrator_the_backward_is_left_as_it_is():
    batch = random_pairs(1)
    done = batch.calibrate(objective("dil-bce"), None)
    assert done.report.log_alpha == 0.0 and done.report.skipped is None
    (plain,) = torch.autograd.grad(objective("dil-bce").loss(batch.pairs).mean(), batch.theta, retain_graph=True)
    (gradient,) = torch.autograd.grad(done.loss.mean(), batch.theta)
    assert torch.equal(plain, gradient)


def test_the_ratio_of_the_update_that_is_made_is_r_star():
    """Measured on the gradients themselves, single pair: |d_w s_w| = |d_l s_l| after calibration."""
    for seed in range(10):
        batch = random_pairs(seed, count=1)
        done = batch.calibrate(objective("dil-bce"), Calibrator(ema_beta=0.0, clip=False))
        grad_w, grad_l = torch.autograd.grad(done.loss.sum(), [batch.z_w, batch.z_l], retain_graph=True)
        (s_w,) = torch.autograd.grad(batch.z_w.sum(), batch.theta, retain_graph=True)
        (s_l,) = torch.autograd.grad(batch.z_l.sum(), batch.theta, retain_graph=True)
        assert (grad_w.abs() * s_w.norm()).item() == pytest.approx((grad_l.abs() * s_l.norm()).item(), rel=1e-12)


def test_any_function_of_two_likelihoods_can_be_calibrated():
    batch = random_pairs(2)
    calibrator = Calibrator(ema_beta=0.0, clip=False)
    by_name = batch.calibrate(objective("dpo", beta=0.5), calibrator)
    ref = batch.pairs.ref_w - batch.pairs.ref_l
    by_hand = calibrate(
        lambda w, lose: torch.nn.functional.softplus(-0.5 * (w - lose - ref)),
        batch.z_w, batch.z_l, parameters=[batch.theta], calibrator=calibrator,
    )  # fmt: skip
    assert torch.allclose(by_name.loss, by_hand.loss)
    assert by_hand.report.log_alpha == pytest.approx(by_name.report.log_alpha, rel=1e-9)


# --- the averages ----------------------------------------------------------------------------------------------


@FEW
@given(batches=st.lists(statistics, min_size=1, max_size=8), beta=st.floats(0, 0.999), clip=st.booleans())
def test_the_averages_follow_a_loop_written_by_hand(batches, beta, clip):
    calibrator = Calibrator(beta, clip=clip)
    mean = None
    for stats in batches:
        here = (stats.log_d_w, stats.log_d_l, stats.log_s_w, stats.log_s_l)
        # starts at the first value; the current batch is in the average that it is calibrated with
        mean = list(here) if mean is None else [beta * m + (1 - beta) * x for m, x in zip(mean, here, strict=True)]
        term = (mean[3] - mean[2]) - (mean[0] - mean[1])  # EMA[log r*] - EMA[log r]
        log_r, centre = here[0] - here[1], here[3] - here[2]
        clipped = False
        if clip and stats.rho > 0:
            low, high = centre + math.log(stats.rho) - log_r, centre - math.log(stats.rho) - log_r
            clipped = not low - 1e-9 <= term <= high + 1e-9
            term = min(max(term, low), high)
        done = calibrator.update(stats)
        assert done.log_alpha == pytest.approx(min(max(term / 2, -40), 40), abs=1e-9)
        if abs(term / 2) < 40:
            assert done.clipped or not clipped
        assert list(calibrator.ema.values()) == pytest.approx(mean, abs=1e-12)


@FEW
@given(batches=st.lists(statistics, min_size=2, max_size=8), beta=st.floats(0.5, 0.999))
def test_clipping_keeps_the_calibrated_ratio_inside_the_current_band(batches, beta):
    clipping, free = Calibrator(beta), Calibrator(beta, clip=False)
    for stats in batches:
        done, unclipped = clipping.update(stats), free.update(stats)
        if abs(done.log_alpha) == MAX_LOG_ALPHA:
            continue
        assert done.slack >= -1e-9 and done.in_band  # on the edge is inside, whatever the last bit says
        assert unclipped.in_band == (unclipped.slack >= -1e-9)
        if unclipped.slack >= 1e-9 and abs(unclipped.log_alpha) < MAX_LOG_ALPHA:
            assert not done.clipped and done.log_alpha == unclipped.log_alpha


def test_clipping_does_happen_and_is_reported():
    calibrator = Calibrator(0.98)
    calibrator.update(Statistics(0, 0, 1, 1, 0, 0, 0.9))
    done = calibrator.update(Statistics(5, 0, 1, 1, 0, 0, 0.9))  # the averages would undo only a fiftieth of it
    assert done.clipped and done.slack == pytest.approx(0.0, abs=1e-12)
    assert done.calibrated.log_r == pytest.approx(-math.log(0.9))


@FEW
@given(batches=st.lists(statistics, min_size=2, max_size=6), beta=st.floats(0, 0.999))
def test_the_state_survives_json_exactly(batches, beta):
    whole, first = Calibrator(beta), Calibrator(beta)
    half = len(batches) // 2
    for stats in batches[:half]:
        whole.update(stats), first.update(stats)
    second = Calibrator(beta)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for stats in batches[half:]:
        assert whole.update(stats) == second.update(stats)
    assert whole.state_dict() == second.state_dict()


def test_an_empty_state_survives_json_too():
    calibrator = Calibrator()
    assert calibrator.state_dict() is None
    calibrator.load_state_dict(json.loads(json.dumps(calibrator.state_dict())))
    assert calibrator.ema is None


def test_the_state_handed_out_is_not_the_state_kept():
    calibrator = Calibrator(0.5)
    calibrator.update(Statistics(1, 2, 1, 1, 3, 4, 0.5))
    calibrator.state_dict()["log_d_w"] = 99.0
    assert calibrator.ema["log_d_w"] == 1


# --- means over pairs and workers -------------------------------------------------------------------------------


def test_mean_incentives_add_up_signed_pairs():
    """IPO with pairs on both sides of its target: the mean of the values, not of their logs."""
    z = torch.tensor([0.0, -3.0, -9.0, -30.0], dtype=torch.float64)
    zero = torch.zeros_like(z)
    sides = incentives(objective("ipo"), PairLogps(zero, z, zero, zero, zero, zero))
    assert (sides.d_w < 0).any() and (sides.d_w > 0).any()
    mean_w, mean_l = mean_incentives(sides)
    assert mean_w.sign * math.exp(mean_w.log_abs) == pytest.approx(sides.d_w.mean().item()) and mean_w.sign == -1
    assert mean_l.sign * math.exp(mean_l.log_abs) == pytest.approx(sides.d_l.mean().item())


def test_mean_incentives_survive_underflow():
    """Two saturated KTO pairs: e^-900 is 0, the mean's log is not -inf."""
    z = torch.tensor([900.0, 901.0], dtype=torch.float64)
    zero = torch.zeros_like(z)
    sides = incentives(objective("kto"), PairLogps(z, zero - z, zero, zero, zero, zero))
    assert sides.d_w.tolist() == [0.0, 0.0]
    mean_w, _ = mean_incentives(sides)
    assert mean_w.log_abs == pytest.approx(-900 + math.log((1 + math.exp(-1)) / 2), rel=1e-12)
    assert mean_w.sign == 1


class Exchange:
    """A meeting point for workers that are threads: each call waits for all, then everybody reads all."""

    def __init__(self, workers):
        self.barrier = threading.Barrier(workers, timeout=240)
        self.slots = [None] * workers

    def worker(self, rank):
        exchange = self

        class Worker:
            def gather(self, values):
                exchange.slots[rank] = values
                exchange.barrier.wait()
                rows = torch.stack(list(exchange.slots))
                exchange.barrier.wait()
                return rows

            def sum(self, tensor):
                return self.gather(tensor).sum(0)

        return Worker()


def split(batch, start, stop):
    part = object.__new__(Linear)
    part.theta = batch.theta
    part.z_w, part.z_l = batch.z_w[start:stop], batch.z_l[start:stop]
    p = batch.pairs
    part.pairs = PairLogps(
        part.z_w, part.z_l, p.n_w[start:stop], p.n_l[start:stop], p.ref_w[start:stop], p.ref_l[start:stop],
        constants={"kl_w": p.constants["kl_w"][start:stop], "kl_baseline": p.constants["kl_baseline"]},
    )  # fmt: skip
    return part


@pytest.mark.parametrize("sizes", [(2, 2), (3, 1)])
@pytest.mark.parametrize("name", ["dpo", "ipo", "cpo", "slic-hf", "dil-bce", "dil-lsif"])
def test_two_workers_see_what_one_sees(name, sizes):
    whole = random_pairs(7, count=4)
    alone = whole.calibrate(objective(name), Calibrator()).report
    parts = [split(whole, 0, sizes[0]), split(whole, sizes[0], 4)]
    exchange, reports = Exchange(2), [None, None]

    def work(rank):
        reports[rank] = parts[rank].calibrate(objective(name), Calibrator(), exchange.worker(rank)).report

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert reports[0] == reports[1]
    for field in ("log_d_w", "log_d_l", "sign_w", "sign_l", "log_s_w", "log_s_l", "rho"):
        assert getattr(reports[0].stats, field) == pytest.approx(getattr(alone.stats, field), rel=1e-11, abs=1e-11), (
            field
        )
    assert reports[0].log_alpha == pytest.approx(alone.log_alpha, abs=1e-11)
