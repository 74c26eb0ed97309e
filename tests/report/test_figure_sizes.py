"""Figures keep their panels, however many comparisons there are and however long their names."""

import io
import warnings
from pathlib import Path

import pytest
from matplotlib import image

from rcray.aggregate.collect import collect
from rcray.aggregate.figures.curves import draw_cosines, draw_likelihoods
from rcray.aggregate.figures.overview import draw_overview
from rcray.aggregate.figures.plane import draw_plane
from rcray.aggregate.groups import compare
from rcray.config import load_experiment
from rcray.store import Store
from rcray.sweep.grid import expand
from rcray.sweep.tiny import tiny_cells
from tests.report.runs import write_ok

#: On one tiny model two of its models differ by method, scores and rate, which all stand in the titles.
EXPERIMENT = Path(__file__).parents[2] / "experiments" / "runtime.yaml"
LARGEST = 6000  # pixels


@pytest.fixture(scope="module")
def comparisons(tmp_path_factory):
    store = Store.open(tmp_path_factory.mktemp("long") / "store")
    cells = tiny_cells(expand(load_experiment(EXPERIMENT)), {})
    for cell in cells:
        write_ok(store, cell, steps=12)
    return compare(collect(store, cells))


@pytest.mark.parametrize("drawing", ["plane", "cosines", "likelihoods", "overview"])
def test_long_names_take_no_room_from_panels(comparisons, drawing):
    assert len(comparisons) > 20 and max(len(comparison.title) for comparison in comparisons) > 50
    model = max(comparisons, key=lambda comparison: len(comparison.title)).model
    own = [comparison for comparison in comparisons if comparison.model == model]
    draw = {
        "plane": lambda: draw_plane(comparisons, "nats"),
        "cosines": lambda: draw_cosines(model, own),
        "likelihoods": lambda: draw_likelihoods(model, own, "nats"),
        "overview": lambda: draw_overview(comparisons, "nats"),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # matplotlib's word for axes without room
        plot = draw[drawing]()
    height, width, _ = image.imread(io.BytesIO(plot.png)).shape
    assert max(height, width) < LARGEST, f"{width} x {height}"
