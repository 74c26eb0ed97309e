"""Calibration by the update in a loop of one's own, on pairs whose likelihoods are linear in the parameters."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F

from rcray.calibration import UpdateSteering, calibrate, steering
from rcray.calibration.update import AdamPreview, Move, SgdPreview
from rcray.config.calibration import FIRST_LOOKS, LATE_LOOKS
from rcray.errors import ConfigError
from rcray.objectives import PairLogps, objective

SIZE, PAIRS = 30, 6


def dpo(z_w, z_l):
    return -F.logsigmoid(0.5 * (z_w - z_l))


class Toy:
    """Both sides share a direction, as answers of one prompt do; the loser's is the steeper one, so plain DPO loses."""

    def __init__(self, optimizer=torch.optim.AdamW, steered=True, seed=0, **settings):
        generator = torch.Generator().manual_seed(seed)
        self.shared, self.w, self.l = torch.randn(3, SIZE, generator=generator)
        self.theta = torch.nn.Parameter(torch.zeros(SIZE))
        rate = {"lr": 0.01, "weight_decay": 0.0} if optimizer is torch.optim.AdamW else {"lr": 0.01, "momentum": 0.8}
        self.optimizer = optimizer([self.theta], **rate)
        self.steering = UpdateSteering(self.optimizer, **settings) if steered else None

    def batch(self, step):
        noise = torch.randn(2, PAIRS, SIZE, generator=torch.Generator().manual_seed(1000 + step))
        return (
            (self.shared + 0.3 * self.w + 0.2 * noise[0]) @ self.theta,
            (1.6 * self.shared + 0.3 * self.l + 0.2 * noise[1]) @ self.theta,
        )

    def step(self, step, **more):
        z_w, z_l = self.batch(step)
        loss = dpo(z_w, z_l)
        if self.steering:
            result = calibrate(dpo, z_w, z_l, calibrator=self.steering, **more)
            assert torch.equal(result.loss, loss)  # the value bit for bit
            loss = result.loss
        loss.mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def drift(self):
        sides = self.shared + 0.3 * self.w, 1.6 * self.shared + 0.3 * self.l
        return [float(side @ self.theta.detach()) for side in sides]


def after(steps, **settings):
    toy = Toy(**settings)
    for step in range(steps):
        toy.step(step)
    return toy


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD])
def test_the_winner_is_kept_where_plain_dpo_loses_it(optimizer):
    plain, ours = (after(60, optimizer=optimizer, steered=steered).drift() for steered in (False, True))
    assert plain[0] < -0.5 and plain[1] < plain[0]
    assert ours[0] > 0 > ours[1]


def test_a_share_of_one_keeps_the_winner_where_it_is():
    whole, three_quarters = (after(60, loser_share=share).drift() for share in (1.0, 0.75))
    assert abs(whole[0]) < abs(three_quarters[0]) and whole[1] < three_quarters[1]


def test_drift_is_foreseen_where_no_reference_is_given():
    """A little short of it: what a batch's own gradient moves is left out of what it sees, shared part and all."""
    toy = after(61)  # a look at 60 brings it up to date
    assert [toy.steering.drift.w, toy.steering.drift.l] == pytest.approx(toy.drift(), rel=0.1)
    assert toy.steering.realised.weight == 0


def test_drift_is_the_realised_one_where_a_reference_is_given():
    toy = Toy()
    zeros = torch.zeros(PAIRS)
    for step in range(30):
        z_w, z_l = toy.batch(step)
        toy.step(step, pairs=PairLogps(z_w, z_l, zeros + 1, zeros + 1, zeros, zeros))
    assert toy.steering.drift == toy.steering.realised.mean
    assert toy.steering.drift.w == pytest.approx(toy.drift()[0], abs=0.3)


def test_only_looks_differentiate(monkeypatch):
    calls = []
    plain = steering.branch_gradients
    monkeypatch.setattr(steering, "branch_gradients", lambda *a, **k: calls.append(1) or plain(*a, **k))
    toy, per_step = Toy(look_every=7), []
    for step in range(45):
        before = len(calls)
        toy.step(step)
        per_step.append(len(calls) - before)
    assert per_step == [2 if step < FIRST_LOOKS or step % 7 == 0 else 0 for step in range(45)]
    assert toy.steering.rule.looks == sum(map(bool, per_step)) - 1  # the first batch has none before it to judge it


def looks_of(toy, steps):
    looked = []
    for step in range(steps):
        looked.append(calibrate(dpo, *toy.batch(step), calibrator=toy.steering).report.looked)
        toy.optimizer.step()
    return [step for step, look in enumerate(looked) if look]


def test_a_short_run_looks_less_and_undoes_its_drift_sooner():
    toy = Toy(steps=40)
    assert looks_of(toy, 40) == [*range(10), 10, 20, 30] and toy.steering.rule.horizon == 10
    told = Toy()
    told.steering.expect(40)
    assert told.steering.rule.horizon == 10 and told.steering.first_looks == 10
    assert looks_of(Toy(steps=2), 2) == [0, 1]


def test_late_looks_are_further_apart():
    late = [step for step in looks_of(Toy(), LATE_LOOKS + 60) if step >= FIRST_LOOKS]
    assert late == [*range(FIRST_LOOKS, LATE_LOOKS, 10), *range(LATE_LOOKS, LATE_LOOKS + 60, 20)]


def test_what_cannot_be_steered_is_refused(monkeypatch):
    with pytest.raises(ConfigError, match="look_every 0"):
        Toy(look_every=0)
    monkeypatch.setattr(steering, "is_sharded", lambda _: True)
    with pytest.raises(ConfigError, match="sharded"):
        Toy()


def test_the_first_micro_batch_decides_for_a_step():
    toy = after(5)
    z_w, z_l = toy.batch(5)
    first = calibrate(dpo, z_w[:3], z_l[:3], calibrator=toy.steering).report
    second = calibrate(dpo, z_w[3:], z_l[3:], calibrator=toy.steering).report
    assert second is first and first.looked
    looks = toy.steering.rule.looks
    toy.theta.grad = torch.zeros(SIZE)
    toy.optimizer.step()
    assert calibrate(dpo, *toy.batch(6), calibrator=toy.steering).report is not first
    assert toy.steering.rule.looks == looks + 1


def learned_by(parts, told, seed=2, steps=24, limit=0.05):
    """The branches' pull after some steps that are clipped, from steps of so many micro-batches of 6 noisy pairs."""
    toy = Toy(torch.optim.SGD, seed=seed, clip_norm=limit)
    for step in range(steps):
        noise = 4 * torch.randn(2, 4 * PAIRS, SIZE, generator=torch.Generator().manual_seed(step))
        shared, w, l = toy.shared, toy.w, toy.l  # noqa: E741
        z_w, z_l = (shared + 0.3 * w + noise[0]) @ toy.theta, (1.6 * shared + 0.3 * l + noise[1]) @ toy.theta
        for part in torch.arange(4 * PAIRS).chunk(parts):
            result = calibrate(dpo, z_w[part], z_l[part], calibrator=toy.steering)
            (result.loss.mean() / parts).backward(retain_graph=True)
        norm = torch.nn.utils.clip_grad_norm_([toy.theta], limit)
        if told:
            toy.steering.clipped(norm)
        toy.optimizer.step()
        toy.optimizer.zero_grad()
    return toy.steering.rule.response.of(0.75)


def test_accumulated_steps_that_are_clipped_are_seen_as_they_are_made():
    """A micro-batch has a gradient twice as long as the step: clipped by its own, it seems to pull half as much."""
    whole, told, untold = learned_by(1, False), learned_by(4, True), learned_by(4, False)
    assert told == pytest.approx(whole, rel=0.25)
    assert all(least < 0.7 * b for least, b in zip(untold, whole, strict=True))
    assert learned_by(1, True) == whole, "of a step in one piece the norm is known"


@pytest.mark.parametrize("stop", [3, 26])
def test_a_resumed_loop_is_the_uninterrupted_one(stop):
    whole = after(40)
    first = after(stop)
    state = copy.deepcopy((first.steering.state_dict(), first.optimizer.state_dict(), first.theta.detach()))
    resumed = Toy()
    resumed.theta.data = state[2]
    resumed.optimizer.load_state_dict(state[1])
    resumed.steering.load_state_dict(state[0])
    for step in range(stop, 40):
        resumed.step(step)
    assert torch.equal(resumed.theta, whole.theta)
    assert resumed.steering.rule.state_dict() == whole.steering.rule.state_dict()


@pytest.mark.parametrize("ago", [1, 2, 5])
def test_a_gradient_is_taken_out_of_the_memory(ago):
    """The preview without it is that of an optimizer which never saw it."""
    torch.manual_seed(0)
    gradients = [torch.randn(SIZE) for _ in range(6)]
    for kind, name in ((torch.optim.AdamW, "exp_avg"), (torch.optim.SGD, "momentum_buffer")):
        memories = []
        for left_out in (None, 6 - ago):
            toy = Toy(kind, steered=False)
            for i, gradient in enumerate(gradients):
                toy.theta.grad = torch.zeros(SIZE) if i == left_out else gradient.clone()
                toy.optimizer.step()
            memories.append(toy.optimizer.state[toy.theta][name])
        full = (
            SgdPreview(memories[0], 0.01, 0.8)
            if kind is torch.optim.SGD
            else AdamPreview(memories[0], torch.ones(SIZE), 6, 0.01, (0.9, 0.999), 1e-8)
        )
        less = full.without(gradients[6 - ago], ago)
        torch.testing.assert_close(less.m if isinstance(less, AdamPreview) else less.buffer, memories[1])


def test_past_the_guard_the_winner_is_all_that_counts():
    """The winner fell by 1, the loser rose by 3: q is where it was, and only the guard sees a loss."""
    reports = []
    for guard in (None, 0.5, 2.0):
        toy = after(25, guard=guard)
        toy.steering.foreseen = Move(-1.0, 3.0)
        reports.append(calibrate(dpo, *toy.batch(25), calibrator=toy.steering).report)
    assert [report.guarding for report in reports] == [False, True, False]
    assert reports[1].log_alpha > reports[0].log_alpha == reports[2].log_alpha
    assert reports[1].alpha == math.exp(reports[1].log_alpha)


def test_an_objective_of_the_zoo_is_steered():
    toy = after(4)
    z_w, z_l = toy.batch(4)
    ones = torch.ones(PAIRS)
    pairs = PairLogps(z_w, z_l, ones, ones, ones * 0, ones * 0)
    result = calibrate(objective("ipo"), z_w, z_l, calibrator=toy.steering, pairs=pairs)
    assert torch.equal(result.loss, objective("ipo").loss(pairs)) and result.report.looked


def test_frozen_parameters_are_passed_over():
    toy = Toy(steered=False)
    frozen = torch.nn.Parameter(torch.ones(3), requires_grad=False)
    toy.optimizer = torch.optim.AdamW([frozen, toy.theta], lr=0.01)
    toy.steering = UpdateSteering(toy.optimizer)
    for step in range(3):
        toy.step(step)
    assert toy.steering.rule.looks == 2 and torch.equal(frozen, torch.ones(3))


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (torch.optim.RMSprop, {}),
        (torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
        (torch.optim.AdamW, {"amsgrad": True}),
    ],
)
def test_an_optimizer_that_cannot_be_read_is_refused(kind, settings):
    with pytest.raises(ConfigError, match=kind.__name__):
        UpdateSteering(kind([torch.nn.Parameter(torch.zeros(2))], lr=0.1, **settings))


def test_what_is_missing_is_said():
    z = torch.zeros(2, requires_grad=True)
    with pytest.raises(ConfigError, match="no optimizer"):
        calibrate(dpo, z, z, calibrator=UpdateSteering())
    with pytest.raises(ConfigError, match="parameters"):
        calibrate(dpo, z, z, calibrator=None)
