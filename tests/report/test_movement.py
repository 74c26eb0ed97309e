"""How far runs moved, where the probability went, and the turning point of what was gained for the distance."""

import numpy as np
import pytest

from rcray.aggregate.collect import collect
from rcray.aggregate.figures.curves import draw_distributions, draw_misplaced
from rcray.aggregate.figures.frontier import draw_frontier
from rcray.aggregate.groups import compare
from rcray.aggregate.movement import KL, ROOT_KL, TurningPoint, turning_point
from rcray.aggregate.movement_tables import frontier_table, movement_table
from rcray.aggregate.tables import to_csv, to_markdown
from tests.report import runs


def test_a_turning_point_is_found_in_noise():
    rng = np.random.default_rng(0)
    d = np.linspace(0.02, 1, 40)
    turn = turning_point(d, TurningPoint(0.2, 0.5).gain(d) + rng.normal(0, 0.01, len(d)))
    assert isinstance(turn, TurningPoint)
    assert turn.at == pytest.approx(np.exp(0.2 / 0.5 - 1), rel=0.05)
    assert TurningPoint(0.2, 0.5).gain(np.array([turn.at - 0.2, turn.at, turn.at + 0.2])).argmax() == 1


@pytest.mark.parametrize(
    ("gain", "why"),
    [
        (lambda d: 0.3 * d, "not reached"),
        (lambda d: np.random.default_rng(1).normal(0, 1, len(d)), "no clear curve"),
        (lambda d: 0 * d, "no clear curve"),
    ],
)
def test_what_does_not_turn_says_so(gain, why):
    d = np.linspace(0, 1, 20)
    assert turning_point(d, gain(d)) == why
    assert turning_point(d[:6], gain(d)[:6]) == "too few points"  # the start is none


@pytest.fixture
def comparisons(store, monkeypatch):
    dynamics = runs.dynamics
    monkeypatch.setattr(runs, "dynamics", lambda cell, steps: runs.moved(dynamics(cell, steps)))
    cells = runs.cells_of(runs.quickstart())[:2]
    runs.write_runs(store, cells)
    return compare(collect(store, cells))


def test_the_tables_say_how_far_where_to_and_for_what(comparisons):
    (first, *_) = comparisons[0].settings
    assert first.metric(KL).value == pytest.approx(1)
    moved = to_csv(movement_table(comparisons)).splitlines()
    assert moved[0] == (
        "model,objective,rc,kl,entropy_change,logp_w_change,logp_greedy_change,logp_other_change,logp_shuffled_change"
    )
    assert moved[1] == "tiny-neox,DPO,w/o,1,-1,-1,0.5,-1,1"
    text = to_markdown(frontier_table(comparisons))
    assert f"| DPO | w/o | 1.000 | 81.2 ± 2.4 | 70.0 | {50 + 100 * 0.5 * np.exp(-0.6):.1f} |" in text
    assert f"| {np.exp(-0.6):.3f} |" in text


def test_the_figures_are_drawn(comparisons):
    for draw in (draw_distributions, draw_misplaced, draw_frontier):
        plot = draw("tiny-neox", comparisons)
        assert plot is not None
        assert plot.svg.startswith(b"<?xml")


def test_a_run_that_was_not_watched_has_none_of_it(store):
    cells = runs.cells_of(runs.quickstart())[:1]
    runs.write_runs(store, cells)
    old = compare(collect(store, cells))
    assert old[0].settings[0].metric(ROOT_KL) is None
    assert movement_table(old) is None
    assert frontier_table(old) is None
    assert draw_frontier("tiny-neox", old) is None
    assert draw_distributions("tiny-neox", old) is None
