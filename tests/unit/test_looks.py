"""Looks at fresh pairs: what they predict is the mean of their scores at both ends, along the way that was gone."""

import math
from itertools import pairwise

import pytest
import torch

from benchmarks.steps import Setting, Size
from rcray.calibration import Calibrator
from rcray.calibration.preview import Coordinates
from rcray.calibration.update import Move, UpdateCalibrator, products
from rcray.config import run_id
from rcray.data.batch import collate
from rcray.models.likelihood import side_logps
from rcray.train.ahead import Ahead
from rcray.train.launch import launch
from rcray.train.look import Fresh, Looks
from rcray.train.loop import Job, prepare
from rcray.train.micro import ReadOff
from rcray.train.record import row_of
from rcray.train.step import optimizer_step
from tests.small_runs import small_config


@pytest.fixture
def watched(store, monkeypatch):
    """A run of 8 steps with a look at each: what every look saw, and what was kept after it."""
    seen, take = [], Looks.take

    def watch(looks, fresh):
        look = take(looks, fresh)
        seen.append((look, dict(looks.last), looks))
        return look

    monkeypatch.setattr(Looks, "take", watch)
    launch(small_config(), store)
    return seen


def test_the_prediction_is_seen_by_both_ends_along_the_way(watched):
    assert watched[0][0].predicted is None
    for (_, before, looks), (look, after, _) in pairwise(watched):
        way = after["weights"] - before["weights"]
        ends = [(before[f"score_{side}"] + after[f"score_{side}"]) / 2 for side in "wl"]
        expected = Move(*products(*ends, way, looks.coordinates.total).tolist())
        assert (look.predicted.w, look.predicted.l) == pytest.approx((expected.w, expected.l))
        assert float(way.abs().max()) > 0


def test_the_memory_of_an_optimizer_is_seen_by_the_last_look(watched):
    *_, (look, _, looks) = watched
    preview = looks.preview()
    expected = Move(*products(look.score_w, look.score_l, preview.kept(), looks.coordinates.total).tolist())
    assert looks.memory(preview) == expected
    looks.last = {}
    assert looks.memory(preview) is None


KINDS = {"none": None, "published": Calibrator, "update": UpdateCalibrator}
JUDGED = ("log_alpha", "grad_norm", "next_dz_w", "next_dz_l", "batch_dz_w", "batch_dz_l")
JUDGED += ("true_band_lower", "true_band_upper")


@pytest.fixture(scope="module", params=["full", "lora"])
def setting(request):
    """Eight pairs in micro-batches of two, packed; in float64."""
    small = Size(vocabulary=97, hidden=32, layers=2, heads=2)
    setting = Setting.of(request.param, small, pairs=8, prompt=6, answer=4, sharing="on", micro=2)
    setting.base.double()
    return setting


def looking(setting, kind, batches, look_pairs, monkeypatch):
    """Two steps with a look each: their rows, and which micro-batches were walked with their sides apart."""
    state = setting.state(calibrated=False)
    state.calibrator = KINDS[kind] and KINDS[kind]()
    state.looks = Looks(state.policy, state.update.optimizer, state.update.clip_norm)
    fresh = Fresh(
        [collate(setting.encoded, [6, 7])] * (look_pairs // 2), look_pairs, torch.zeros(2, look_pairs).double()
    )
    walked, forward = [], ReadOff.__init__

    def watched(micro, policy, batch, make_part, *, apart):
        if policy is state.policy:  # not the look's own
            walked.append(apart)
        forward(micro, policy, batch, make_part, apart=apart)

    monkeypatch.setattr(ReadOff, "__init__", watched)
    rows = [row_of(optimizer_step(state, batches, step, fresh)) for step in (1, 2)]
    monkeypatch.setattr(ReadOff, "__init__", forward)
    return rows, walked


@pytest.mark.parametrize("kind", KINDS)
def test_a_look_walks_as_many_pairs_of_the_step_apart_as_it_has(setting, kind, monkeypatch):
    """Of pairs that are all alike, some show what all would: factor, band and moves are the same."""
    alike = [setting.batches[0]] * 4
    some, apart = looking(setting, kind, alike, 2, monkeypatch)
    assert apart == [True, False, False, False] * 2
    everyone, apart = looking(setting, kind, alike, 8, monkeypatch)
    assert apart == [True] * 8
    for few, many in zip(some, everyone, strict=True):
        assert [few[name] for name in JUDGED] == pytest.approx([many[name] for name in JUDGED], rel=1e-5, abs=1e-7)


def test_what_a_look_walks_apart_is_the_gradient_of_the_step(setting, monkeypatch):
    """Without calibration a step with a look is the step without one, however many of its pairs are shown."""
    different = setting.batches
    plain = setting.state(calibrated=False)
    expected = [row_of(optimizer_step(plain, different, step)) for step in (1, 2)]
    for look_pairs in (2, 4, 8):
        rows, apart = looking(setting, "none", different, look_pairs, monkeypatch)
        assert sum(apart) == look_pairs  # a micro-batch has two pairs, and there are two steps
        for one, other in zip(rows, expected, strict=True):
            for name in ("loss", "grad_norm", "rho", "log_r"):
                assert one[name] == pytest.approx(other[name], rel=1e-6), (look_pairs, name)


def test_fresh_pairs_whose_likelihoods_are_no_numbers_leave_calibration_as_it_is(setting):
    """Their drift is recorded and not taken in; what the look taught of the branches is."""
    state = setting.state(calibrated=False)
    state.calibrator = UpdateCalibrator()
    state.looks = Looks(state.policy, state.update.optimizer, state.update.clip_norm)
    broken = Fresh([collate(setting.encoded, [6, 7])], 2, torch.full((2, 2), torch.nan).double())
    row = row_of(optimizer_step(state, setting.batches, 1, broken))
    assert math.isnan(row["fresh_drift_w"])
    assert state.drift.weight > 0 and math.isfinite(state.drift.mean.w + state.drift.mean.l)  # the batch's own
    assert state.calibrator.looks == 1
    assert state.calibrator.norm == row["grad_norm"], "of the whole step: the next look's pairs are clipped by it"


def predicted_and_realised(store, **settings):
    """[looks but the first, 2] of a run with a look at each step: what each foresaw, and how its pairs really moved."""
    config = small_config(
        data={"train_pairs": 256}, calibration={"enabled": True, "kind": "update", "look_every": 1}, **settings
    )
    training = prepare(Job(config, store, run_id(config), "a"), 0, 1)
    model, rows = training.state.policy.model, sorted(training.fresh.start)
    everybody = collate(training.data.pairs, rows)
    places, lasts, predicted, realised = {row: i for i, row in enumerate(rows)}, None, [], []
    for step in range(20):
        with torch.no_grad():
            now = torch.stack([side_logps(model, side).sums for side in (everybody.chosen, everybody.rejected)])
        fresh, batches = training.fresh.at(step), Ahead(training.state.policy, training.data.pairs, training.schedule)
        pairs = [places[int(row)] for batch in fresh.batches for row in batch.index]
        look = optimizer_step(training.state, batches.at(step), step + 1, fresh).judged.look
        if lasts is not None:
            before, theirs = lasts
            predicted.append([look.predicted.w, look.predicted.l])
            realised.append((now - before)[:, theirs + pairs].mean(1).tolist())
        lasts = now, pairs
    return torch.tensor(predicted), torch.tensor(realised)


@pytest.mark.parametrize(
    ("objective", "share", "least"), [("dpo", 1.0, 0.999), ("cpo", 1.0, 0.999), ("dpo", 0.1, 0.99)]
)
def test_what_was_predicted_is_what_fresh_pairs_really_did(store, monkeypatch, objective, share, least):
    """By likelihoods alone, none of which the prediction reads; of a tenth of the coordinates, nearly."""
    if share < 1:
        trained = sum(p.numel() for p in prepare_small(store).state.policy.model.parameters())
        monkeypatch.setattr(Coordinates.__init__, "__defaults__", (int(share * trained),))
    predicted, realised = predicted_and_realised(store, objective=objective)
    for side in (0, 1):
        foreseen, real = predicted[:, side], realised[:, side]
        correlation = float(torch.corrcoef(torch.stack([foreseen, real]))[0, 1])
        slope = float(foreseen @ real / (real @ real))
        print(f"{objective} {'wl'[side]}: correlation {correlation:.4f}, slope {slope:.3f}")
        assert correlation > least and abs(slope - 1) < 0.05


def prepare_small(store):
    config = small_config()
    return prepare(Job(config, store, run_id(config), "a"), 0, 1)
