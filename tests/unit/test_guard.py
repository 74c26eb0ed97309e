"""The guard: calibration steps back where the winner falls, or it is said; a run records it."""

import pytest
import torch

from rcray.calibration.update import Guard, Move
from rcray.config import run_id
from rcray.config.calibration import WINNER_GUARD
from rcray.train.launch import launch
from rcray.train.setup import guard_of
from tests.small_runs import records, small_config

PUBLISHED = {"enabled": True}
UPDATE = {"enabled": True, "kind": "update"}


class Lengths:
    """Three pairs whose chosen answers have 10 tokens on average."""

    lengths = torch.tensor([[5, 8, 1], [5, 12, 1], [5, 10, 1]]).double().numpy()


@pytest.mark.parametrize(
    ("calibration", "per_token", "acts"),
    [
        ({"enabled": False}, WINNER_GUARD, False),
        (PUBLISHED, WINNER_GUARD, False),
        ({**PUBLISHED, "guard": 0.2}, 0.2, True),
        (UPDATE, WINNER_GUARD, True),
        ({**UPDATE, "guard": 2.0}, 2.0, True),
    ],
)
@pytest.mark.parametrize(("likelihood", "tokens"), [("sum", 10.0), ("mean", 1.0)])
def test_every_run_that_looks_is_watched(calibration, per_token, acts, likelihood, tokens):
    guard = guard_of(small_config(calibration=calibration, likelihood=likelihood), Lengths)
    assert guard.limit == pytest.approx(per_token * tokens) and guard.acts == acts


def test_without_looks_nobody_watches():
    assert guard_of(small_config(calibration={"look_every": 0}), Lengths) is None
    with pytest.raises(ValueError, match=r"guard 0\.5 watches the pairs of looks"):
        small_config(calibration={**PUBLISHED, "guard": 0.5, "look_every": 0})


def test_a_guard_that_does_not_act_says_so_once(caplog):
    watches, acts = Guard(1.0, acts=False), Guard(1.0)
    for fallen in (-0.5, -1.5, -2.0):
        assert not watches.holds(Move(fallen, 0.0))
        assert acts.holds(Move(fallen, 0.0)) == (fallen < -1.0)
    (said,) = caplog.messages
    assert "fell by 1.5 nats, past 1.0" in said


@pytest.mark.parametrize("calibration", [PUBLISHED, UPDATE])
def test_a_run_that_passes_it_steps_back_and_records_it(store, calibration):
    """A guard so tight that the first drift passes it."""
    settings = {**calibration, "look_every": 1}
    tight = {"objective": "cpo" if calibration is PUBLISHED else "simpo", "train": {"learning_rate": 1e-3}}
    config = small_config(calibration={**settings, "guard": 1e-6}, **tight)
    free = small_config(calibration={**settings, "guard": 1e6}, **tight)
    for one in (config, free):
        launch(one, store)
    guarded, other = records(store, config), records(store, free)
    assert guarded["guarding"].any() and not other["guarding"].any()
    first = int(guarded["guarding"].idxmax())
    if calibration is PUBLISHED:  # back to the objective's own ratio, at least
        assert (guarded["log_alpha"][guarded["guarding"]] >= 0).all()
        assert (other["log_alpha"][guarded["guarding"]] < 0).all(), "where it would have weighed the winner less"
    else:
        assert guarded["log_alpha"][first] != other["log_alpha"][first]  # which way is test_update_rule's


def test_the_published_kind_only_warns(store, caplog, monkeypatch):
    monkeypatch.setattr("rcray.train.setup.WINNER_GUARD", 1e-6)
    config = small_config(calibration=PUBLISHED, objective="simpo", train={"learning_rate": 1e-3})
    launch(config, store)
    assert sum("the winner is being lost" in message for message in caplog.messages) == 1
    assert not records(store, config)["guarding"].any()


def test_looks_are_part_of_a_published_run_that_is_guarded_by_them():
    def of(**calibration):
        return run_id(small_config(calibration={**PUBLISHED, **calibration}))

    assert of() == of(look_every=5) == of(look_pairs=4)
    assert len({of(guard=0.5), of(guard=0.5, look_every=5), of(guard=0.5, look_pairs=4), of()}) == 4
