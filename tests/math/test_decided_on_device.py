"""What is decided on tensors that stay on a device is what floats decide: one formula, two kinds of numbers."""

import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.steps import Setting, Size
from rcray.calibration import Calibrator, statistics
from rcray.calibration.band import PROBLEMS, calibration_of, from_products, means_of, problem_named
from rcray.calibration.preview import SgdPreview
from rcray.calibration.update import Move, Response, UpdateCalibrator
from rcray.train.micro import Policy, Window
from rcray.train.step import optimizer_step

INF, NAN = math.inf, math.nan
SMALL = Size(vocabulary=97, hidden=32, layers=2, heads=2)


class NoReading(TorchDispatchMode):
    """Fails where a number is read off a tensor: on a GPU that is a wait."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func is not torch.ops.aten._local_scalar_dense.default, "a number was read"
        return func(*args, **(kwargs or {}))


def made_up(seed):
    """Evidence of 1 to 3 workers, with everything that goes wrong in it."""
    draw = random.Random(seed)

    def log_sum(absent):
        return draw.choice([-INF, 1.0, NAN, INF]) if draw.random() < absent else draw.uniform(-50, 5)

    rows = [[log_sum(0.1), log_sum(0.9), log_sum(0.1), log_sum(0.9), 4.0] for _ in range(draw.choice([1, 1, 2, 3]))]
    if draw.random() < 0.05:
        rows = [[-INF, -INF, -INF, -INF, 4.0]]
    ww, ll = (draw.choice([0.0, NAN, INF]) if draw.random() < 0.1 else math.exp(draw.uniform(-9, 9)) for _ in "wl")
    cosine = draw.choice([0.0, 1.0, -1.0, 1.0000001]) if draw.random() < 0.2 else draw.uniform(-1, 1)
    return rows, [ww, ll, cosine * math.sqrt(ww) * math.sqrt(ll)]


def decided(calibrator, rows, products):
    return calibrator.factor(statistics(*means_of(rows), from_products(products, 4)))


@pytest.mark.parametrize("clip", [True, False])
def test_tensors_decide_as_floats_do(clip):
    floats, tensors, met = Calibrator(0.9, clip=clip), Calibrator(0.9, clip=clip), set()
    for seed in range(600):
        rows, products = made_up(seed)
        expected = decided(floats, rows, products)
        there = [torch.tensor(row, dtype=torch.float64).unbind() for row in (*rows, products)]
        with NoReading():
            got = decided(tensors, there[:-1], there[-1])
        assert float(got.log_alpha) == pytest.approx(expected.log_alpha, abs=1e-9), (rows, products)
        assert (float(got.problem), bool(got.clipped)) == (expected.problem, bool(expected.clipped))
        met.add(problem_named(expected.problem))
    assert met == {None, *PROBLEMS}
    assert tensors.ema == pytest.approx(floats.ema, abs=1e-9)
    assert isinstance(tensors.state_dict()["log_d_w"], float)


def test_averages_go_on_from_a_checkpoint_on_either():
    first, second = Calibrator(0.5), Calibrator(0.5)
    decided(first, [[-1.0, -INF, -2.0, -INF, 4.0]], [1.0, 2.0, 0.5])
    second.load_state_dict(first.state_dict())
    rows, products = [[-3.0, -INF, -1.0, -INF, 4.0]], [4.0, 1.0, 0.5]
    expected = decided(first, rows, products)
    there = [torch.tensor(row, dtype=torch.float64).unbind() for row in (*rows, products)]
    assert float(decided(second, there[:-1], there[-1]).log_alpha) == pytest.approx(expected.log_alpha, abs=1e-12)


@pytest.mark.parametrize("guarding", [False, True])
def test_a_window_that_was_decided_there_is_read_as_it_was_decided(guarding):
    evidence = torch.tensor([-1.0, -INF, -4.0, -INF, 4.0, 4.0, 1.0, 1.0], dtype=torch.float64)
    window, rule = Window(4, evidence=evidence), Calibrator()
    with NoReading():
        alpha = window.alpha(rule, guarding)
    numbers = window.evidence.tolist()
    (stats,) = window.statistics(numbers)
    read = calibration_of(stats, window.factor(numbers))
    expected = Calibrator().update(Window(4, evidence=evidence).statistics()[0])
    assert read.log_alpha == pytest.approx(expected.log_alpha) and expected.log_alpha < -0.1
    assert (read.skipped, read.clipped, read.stats) == (expected.skipped, expected.clipped, expected.stats)
    assert float(alpha) == pytest.approx(1.0 if guarding else expected.alpha)


@pytest.mark.parametrize("per_micro_batch", [True, False])
@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_step_decided_there_is_the_step(monkeypatch, method, per_micro_batch):
    """Two steps of two micro-batches: gradients, record and averages."""
    setting = Setting.of(method, SMALL, pairs=4, prompt=6, answer=4, sharing="on", micro=2)
    rows = []
    for on_cpu in (True, False):
        monkeypatch.setattr(Policy, "on_cpu", on_cpu)
        state = setting.state(calibrated=True)
        state.scoring.per_micro_batch = per_micro_batch
        outcomes = [optimizer_step(state, setting.batches, step) for step in (1, 2)]
        rows.append((outcomes, [p.grad.clone() for p in state.update.parameters], state.calibrator.ema))
    (expected, grads, ema), (got, other_grads, other_ema) = rows
    assert other_ema == pytest.approx(ema, abs=1e-6)
    for one, two in zip(expected, got, strict=True):
        assert two.grad_norm == pytest.approx(one.grad_norm, rel=1e-5)
        assert len(two.decisions) == (2 if per_micro_batch else 1)
        for a, b in zip(one.decisions, two.decisions, strict=True):
            assert b.calibration.log_alpha == pytest.approx(a.calibration.log_alpha, abs=1e-6)
            assert abs(a.calibration.log_alpha) > 1e-4
    for a, b in zip(grads, other_grads, strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-7)


@given(
    wanted=st.one_of(st.floats(-1e9, 1e9), st.sampled_from([0.0, INF, -INF, NAN])),
    b_w=st.floats(-0.1, 10.0),
    b_l=st.floats(-0.1, 10.0),
    last=st.floats(-3, 3),
    guarding=st.booleans(),
)
def test_the_factor_between_looks_is_decided_there_too(wanted, b_w, b_l, last, guarding):
    def rule():
        calibrator = UpdateCalibrator()
        calibrator.response, calibrator.log_alpha = Response(b_w, -b_l, b_w, -b_l), last
        return calibrator

    expected, there = rule(), rule()
    drift = Move(-0.2, 0.1)
    preview = SgdPreview(torch.zeros(1), rate=0.1, momentum=0.5)
    expected.decide(Move(wanted, wanted), preview, drift, guarding=guarding)
    memory = Move(*torch.tensor([wanted, wanted], dtype=torch.float64).unbind())
    with NoReading():
        there.decide(memory, preview, drift, guarding=guarding)
    assert float(there.log_alpha) == pytest.approx(expected.log_alpha, rel=1e-12, abs=1e-12)
    assert isinstance(there.state_dict()["log_alpha"], float)
