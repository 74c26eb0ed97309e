"""Looks at fresh pairs: what they predict is the mean of their scores at both ends, along the way that was gone."""

from itertools import pairwise

import pytest

from rcray.calibration.update import seen_by
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


def test_the_prediction_is_seen_by_both_ends_along_the_way(watched):
    assert watched[0][0].predicted is None
    for (_, before, looks), (look, after, _) in pairwise(watched):
        way = after["weights"] - before["weights"]
        ends = [(before[f"score_{side}"] + after[f"score_{side}"]) / 2 for side in "wl"]
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
