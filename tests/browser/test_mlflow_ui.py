"""The MLflow UI as a person meets it: `rcray ui` on a store, the cells by name, two of them overlaid."""

import json
import subprocess
import sys
from urllib.parse import quote

import pytest

from rcray.records.columns import IN_BAND
from rcray.store import Store
from rcray.sync import delivery_to
from rcray.track.address import Address
from rcray.track.book import Book
from rcray.track.delivery import DeliveryPlan
from tests.track.servers import free_port
from tests.track.stored_runs import finish, four_cells


@pytest.fixture(scope="module")
def tracked(tmp_path_factory):
    """A delivered sweep of four cells: its store, the experiment's id, the MLflow runs by their names."""
    store = Store.open(tmp_path_factory.mktemp("ui") / "store")
    cells = four_cells(steps=40)
    for cell in cells:
        finish(store, cell)
    uri = store.default_tracking_uri
    delivery = delivery_to(Address(uri), store, DeliveryPlan("small", "A small grid", cells))
    delivery.deliver(final=True)
    delivery.finish("FINISHED", [], "4 ok")
    server = Book(store, "small").server(uri)
    return store, server.experiment, {cell.label: server.runs[cell.run_id] for cell in cells}


@pytest.fixture(scope="module")
def ui(tracked):
    """The address that `rcray ui` prints once pages can be loaded."""
    store, _, _ = tracked
    port = free_port()
    command = [sys.executable, "-c", "from rcray.cli import main; main()", "ui"]
    process = subprocess.Popen(
        [*command, "--store", str(store.root), "--port", str(port)], stdout=subprocess.PIPE, text=True
    )
    try:
        said = process.stdout.readline()
        assert f"http://127.0.0.1:{port}" in said
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        assert process.wait(timeout=30) == 0


def test_the_experiment_page_lists_the_cells_by_name(browser, ui, tracked, tmp_path):
    _, experiment, runs = tracked
    page = browser.open(f"{ui}/#/experiments/{experiment}/runs")
    page.wait_for_text("small (sweep)")
    page.wait_for_text("5 matching runs")
    page.click("[role=gridcell] button")  # the sign beside the parent's name shows what is nested in it
    for name in runs:
        page.wait_for_text(name, 20)
    page.screenshot(tmp_path / "runs.png")
    assert page.requested_hosts() == {"127.0.0.1"}


def test_the_compare_view_overlays_rc_off_and_on(browser, ui, tracked, tmp_path):
    """Every point of both runs is in the plot, one line each, over the same steps."""
    _, experiment, runs = tracked
    names = ["tiny-neox · cpo · no RC", "tiny-neox · cpo · RC"]
    chosen = quote(json.dumps([runs[name] for name in names]))
    page = browser.open(f"{ui}/#/compare-runs?runs={chosen}&experiments={quote(json.dumps([experiment]))}")
    page.wait_for_text("Comparing 2 Runs from 1 Experiment")
    # rows further down the alphabet are drawn when they are scrolled to; the curves below have them
    for text in (*names, "calibration.enabled", "band_lower", "band_upper", "in_band"):
        page.wait_for_text(text, 20)
    page.screenshot(tmp_path / "compare.png")

    curves = ["log_r", "z_w", IN_BAND]
    page.go(
        f"{ui}/#/metric?runs={chosen}&experiments={quote(json.dumps([experiment]))}&metric={quote(json.dumps('log_r'))}"
        f"&plot_metric_keys={quote(json.dumps(curves))}&x_axis=step"
    )
    page.wait_for("document.querySelectorAll('.js-plotly-plot .scatterlayer .trace').length >= 6")
    drawn = page.evaluate(
        "document.querySelector('.js-plotly-plot').data"
        ".map(t => [t.name, t.metricKey, Array.from(t.x), Array.from(t.y)])"
    )
    assert {(name, curve) for name, curve, _, _ in drawn} == {(name, curve) for name in names for curve in curves}
    for name, curve, x, y in drawn:
        assert x == list(range(1, 41)), (name, curve)
        assert len(set(y)) > 5, (name, curve)
    page.screenshot(tmp_path / "overlay.png")
    assert page.requested_hosts() == {"127.0.0.1"}
