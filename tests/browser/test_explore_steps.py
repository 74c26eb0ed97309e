"""Curves over the steps: seeds that are not equally far, numbers between two points, ratios far from any band."""

import re

import numpy as np
import pytest

from rcray.aggregate.report import build_report
from rcray.config import Experiment
from rcray.store import Store
from tests.browser.exploring import put, settle
from tests.report import runs
from tests.report.explored import made_records, write_explored

CURVE = "document.getElementById('curve-said').textContent"
BAND = "document.getElementById('band-said').textContent"


def opened(browser, store, experiment, cells):
    page = browser.open(build_report(store, experiment, cells, figures=False).explore)
    page.wait_for("document.body.dataset.ready == 'yes' && document.querySelectorAll('#curves .curve').length")
    settle(page)
    return page


def recorded(store, cell, records, status="running"):
    steps = len(records["step"])
    run = runs.make(store, cell, status)
    runs.write_dynamics(run, cell, steps, 1, columns=records)


def test_a_bucket_that_a_running_seed_has_not_filled_is_the_same_bucket(browser, tmp_path):
    """One seed is at step 498, its bucket of five ends at 500: the mean has no place of its own for it."""
    store = Store.open(tmp_path / "store")
    experiment = Experiment(
        name="ragged",
        run={"data": {"train_pairs": 16000, "eval_pairs": 64}, "train": {"batch_size": 16}},
        grid={"train.seed": [1, 2]},
    )
    cells = runs.cells_of(experiment)
    records = [made_records(cell, 1000) for cell in cells]
    records[1] = {name: values[:498] for name, values in records[1].items()}
    for cell, own in zip(cells, records, strict=True):
        recorded(store, cell, own)
    page = opened(browser, store, experiment, cells)
    put(page, "curve", "log_r", "change")
    put(page, "step", 498)
    said = page.evaluate(CURVE)
    wanted = np.mean([records[0]["log_r"][495:500].mean(), records[1]["log_r"][495:498].mean()])
    number = re.search(r": (-?\d+\.\d+)", said.replace("−", "-")).group(1)
    assert float(number) == pytest.approx(wanted, abs=6e-4)
    assert "(over fewer seeds from step 505)" in said
    points = page.evaluate("document.querySelector('#curves .curve').getAttribute('d').split(/[ML]/).length - 1")
    assert points == 200, "one for each bucket"
    assert page.errors == []


def test_a_number_between_two_points_says_which_step_it_is_of(browser, tmp_path):
    store, experiment = Store.open(tmp_path / "store"), runs.quickstart()
    cells = runs.cells_of(experiment)[:2]
    write_explored(store, cells[0])
    recorded(store, cells[1], {name: values[:36] for name, values in made_records(cells[1], 200).items()})
    page = opened(browser, store, experiment, cells)
    put(page, "step", 95)
    assert re.search(r"^Step 95 \(nats\)\. [^;]+ \(step 91\); [^;]+ \(step 31\)", page.evaluate(CURVE))
    put(page, "curve", "loss", "change")
    first, second = page.evaluate(CURVE).split(";")[:2]
    assert "(" not in first and "(step 36)" in second, "every step has a loss, as far as there are steps"
    put(page, "step", 30)
    assert "(step" not in page.evaluate(CURVE)
    assert page.errors == []


@pytest.mark.parametrize("offset", [9.0, -9.0, 0.0])
def test_the_band_stands_upright_however_far_the_ratio_is(browser, tmp_path, offset):
    store, experiment = Store.open(tmp_path / "store"), runs.quickstart()
    (cell,) = runs.cells_of(experiment, objective="dpo")[:1]
    records = made_records(cell, 200)
    records["log_r"] = np.clip(records["log_r"], -2, 2) + offset
    for edge in ("true_band_lower", "true_band_upper"):
        records[edge] = np.where(np.isnan(records[edge]), np.nan, 5.0)  # nothing that would widen the axis
    recorded(store, cell, records)
    page = opened(browser, store, experiment, [cell])
    ticks = page.evaluate(
        "[...document.querySelectorAll('#band .axes text[text-anchor=end]')]"
        ".map((text) => [Number(text.getAttribute('y')), Number(text.textContent.replace('−', '-'))])"
    )
    heights = [y for y, _ in sorted(ticks, key=lambda tick: tick[1])]
    assert len(heights) > 1 and heights == sorted(heights, reverse=True), "greater is higher"
    assert page.errors == []
