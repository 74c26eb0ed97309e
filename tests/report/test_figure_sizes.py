"""Figures keep their panels, however many comparisons there are and however long their names."""

import io
import warnings

import pytest
from matplotlib import image

from rcray.aggregate.collect import collect
from rcray.aggregate.figures.curves import draw_cosines, draw_likelihoods
from rcray.aggregate.figures.overview import draw_overview
from rcray.aggregate.figures.plane import draw_plane
from rcray.aggregate.groups import compare
from rcray.config import Experiment
from tests.report.runs import cells_of, write_ok

OBJECTIVES = 15
LARGEST = 10_000  # pixels


def long_names():
    """Cells that differ in fields no table has a column for: all of them stand in the titles."""
    cells = []
    for i in range(OBJECTIVES):
        varied = {"train.warmup_steps": i, "train.clip_norm": 1 + i / 1000, "train.weight_decay": i / 1e5}
        cells += [{"objective": "cpo", "calibration.enabled": rc, **varied} for rc in (False, True)]
    run = {
        "data": {"train_pairs": 80, "eval_pairs": 16},
        "train": {"batch_size": 8, "micro_batch_size": 8, "probe_every": 2},
    }
    return cells_of(Experiment(name="many", run=run, cells=cells))


@pytest.fixture
def comparisons(store):
    cells = long_names()
    for cell in cells:
        write_ok(store, cell)
    return compare(collect(store, cells))


@pytest.mark.parametrize("drawing", ["plane", "cosines", "likelihoods", "overview"])
def test_long_legends_take_no_room_from_panels(comparisons, drawing):
    assert len(comparisons) == OBJECTIVES and min(len(found.title) for found in comparisons) > 40
    draw = {
        "plane": lambda: draw_plane(comparisons, "nats"),
        "cosines": lambda: draw_cosines("tiny-neox", comparisons),
        "likelihoods": lambda: draw_likelihoods("tiny-neox", comparisons, "nats"),
        "overview": lambda: draw_overview(comparisons, "nats"),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib's word for axes without room
        plot = draw[drawing]()
    height, width, _ = image.imread(io.BytesIO(plot.png)).shape
    assert max(height, width) < LARGEST, f"{width} x {height}"
