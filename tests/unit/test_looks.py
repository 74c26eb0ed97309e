"""Looks at fresh pairs: averaged over looks, and what they predict is the average along the way that was gone."""

from itertools import pairwise

import pytest
import torch

from rcray.calibration.update import SCORE_WEIGHT, look_weight, seen_by
from rcray.train.launch import launch
from rcray.train.look import Looks
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


def test_a_new_look_weighs_as_much_as_each_before_it_until_it_weighs_enough():
    assert [look_weight(n) for n in (1, 2, 3)] == [1, 1 / 2, 1 / 3]
    assert look_weight(4) == look_weight(400) == SCORE_WEIGHT


def test_scores_are_averaged_over_looks(watched):
    expected = None
    for number, (look, kept, _) in enumerate(watched, start=1):
        weight = look_weight(number)
        expected = look.score_w if expected is None else (1 - weight) * expected + weight * look.score_w
        torch.testing.assert_close(kept["mean_w"], expected, rtol=1e-5, atol=1e-7)
        assert int(kept["looks"]) == number
    assert len(watched) == 8 and not torch.equal(expected, watched[-1][0].score_w)


def test_the_prediction_is_the_average_along_the_way(watched):
    assert watched[0][0].predicted is None
    for (_, before, looks), (look, after, _) in pairwise(watched):
        way = after["weights"] - before["weights"]
        ends = [(before[f"mean_{side}"] + after[f"mean_{side}"]) / 2 for side in "wl"]
        expected = seen_by(*ends, way, looks.coordinates.total)
        assert (look.predicted.w, look.predicted.l) == pytest.approx((expected.w, expected.l))
        assert float(way.abs().max()) > 0


def test_the_memory_of_an_optimizer_is_seen_by_the_last_look(watched):
    *_, (look, _, looks) = watched
    preview = looks.preview()
    expected = seen_by(look.score_w, look.score_l, preview.kept(), looks.coordinates.total)
    assert looks.memory(preview) == expected
    looks.last = {}
    assert looks.memory(preview) is None
