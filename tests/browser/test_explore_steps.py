"""Curves over the steps: seeds that are not equally far, numbers between two points, ratios far from any band."""

import re

import numpy as np
import pytest

from rcray.aggregate.estimates import t_quantile
from rcray.aggregate.report import build_report
from rcray.config import Experiment
from rcray.store import Store
from tests.browser.exploring import SELECTED, box, drag, hold_against, move, point_of_curve, put, settle
from tests.report import runs
from tests.report.explored import experiment as of_two_seeds
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


def test_a_curve_is_known_by_pointing_at_it(page, made):
    """Its name is said, and its row, marks and line show it, as when any of those is pointed at."""
    first, second = made.keys[0], made.keys[3]
    for key in (first, second):
        page.click(f"#table tr[data-key='{key}'] .name")
    settle(page)
    for key, other in ((first, second), (second, first)):
        x, y = point_of_curve(page, key)
        away = 4 if y > point_of_curve(page, other)[1] else -4
        move(page, (x, y + away))  # beside it: a line is thin
        label = page.evaluate(f"document.querySelector(\"#table tr[data-key='{key}'] .what\").textContent")
        said = page.evaluate("document.getElementById('tip').textContent")
        assert said.startswith(label) and re.search(r"step \d+: .?\d+\.\d+ nats$", said), said
        shown = page.evaluate(
            "[...document.querySelectorAll('.hover')].map((each) => [each.tagName, each.dataset.key])"
        )
        assert {own for _, own in shown} == {key} and {"TR", "path"} <= {tag for tag, _ in shown}
        opacity = "Number(getComputedStyle(document.querySelector(\"#curves .curve[data-key='{}']\")).opacity)"
        assert page.evaluate(opacity.format(other)) < 0.5 < page.evaluate(opacity.format(key))
    move(page, (2, 2))
    assert page.evaluate("document.getElementById('tip').hidden")
    assert page.evaluate("document.querySelectorAll('.hover').length") == 0


def test_a_press_on_a_curve_selects_it_and_one_beside_it_goes_to_the_step(page, made):
    step = "Number(document.getElementById('step').value)"
    key = made.keys[0]
    page.click(f"#table tr[data-key='{key}'] .name")
    settle(page)
    place = point_of_curve(page, key, 0.5)
    drag(page, place, place)
    assert page.evaluate(SELECTED) == [] and page.evaluate(step) == 200, "let go, and no step was gone to"
    page.click(f"#table tr[data-key='{key}'] .name")
    settle(page)
    x, y = point_of_curve(page, key, 0.5)
    drag(page, (x, y), (x - 40, y))
    assert page.evaluate(SELECTED) == [key] and page.evaluate(step) < 110, "a drag goes through the steps"
    left, top, _, bottom = box(page, "#curves svg")
    early = (left + 80, top + 25 if point_of_curve(page, key, 0.1)[1] > (top + bottom) / 2 else bottom - 60)
    drag(page, early, early)
    assert page.evaluate(SELECTED) == [key] and page.evaluate(step) < 60


def test_curves_against_a_baseline_are_differences_seed_by_seed(page, made):
    base, other = made.rows[0], made.rows[3]
    hold_against(page, base, other)
    moved = {}
    for result in made.results():
        if result.cell.run_id in (*base.setting.run_ids, *other.setting.run_ids):
            z_w = result.dynamics(["probe_z_w"])["probe_z_w"]
            moved[result.cell.run_id] = (z_w - z_w[0])[190]
    pairs = zip(other.setting.run_ids, base.setting.run_ids, strict=True)
    gaps = np.array([moved[own] - moved[pinned] for own, pinned in pairs])
    mean, half = gaps.mean(), t_quantile(1) * gaps.std(ddof=1) / np.sqrt(2)
    put(page, "step", 195)
    said = page.evaluate(CURVE).replace("−", "-")
    numbers = re.search(r": ([+-]\d+\.\d+) \[([+-]\d+\.\d+), ([+-]\d+\.\d+)\] \(step 191\)", said).groups()
    assert [float(each) for each in numbers] == pytest.approx([mean, mean - half, mean + half], abs=6e-4)
    pinned = page.evaluate("document.querySelector('#pinned strong').textContent")
    assert "95% t-interval" in said and f"Each minus {pinned}." in said
    heights = (
        "[...new Set(document.querySelector(\"#curves .curve[data-key='{}']\")"
        ".getAttribute('d').match(/ -?[\\d.]+/g))].length"
    )
    assert page.evaluate(heights.format(base.key)) == 1, "its own difference is none"
    assert page.evaluate(heights.format(other.key)) > 5
    assert page.evaluate("document.querySelectorAll('#curves .spread').length") == 1
    assert "minus the pinned (nats)" in page.evaluate("document.getElementById('curves').textContent")
    page.click("#seeds")
    settle(page)
    traces = page.evaluate("[...document.querySelectorAll('#curves .trace')].map((trace) => trace.dataset.trace)")
    assert set(traces) == set(other.setting.run_ids)
    page.click("#unpin")
    settle(page)
    assert "minus" not in page.evaluate("document.getElementById('curves').textContent")


def test_a_difference_without_an_interval_says_why(browser, tmp_path):
    store, several = Store.open(tmp_path / "store"), of_two_seeds(**{"train.seed": [1, 2, 3, 4]})
    plain = [cell for cell in runs.cells_of(several) if not cell.config.calibration.enabled]
    seeds = {"dpo": (1, 2), "cpo": (2, 3), "dil-bce": (3, 4)}
    cells = [cell for cell in plain if cell.config.train.seed in seeds[cell.config.objective.name]]
    for cell in cells:
        write_explored(store, cell)
    page = opened(browser, store, several, cells)
    labels = page.evaluate("[...document.querySelectorAll('#table .what')].map((what) => what.textContent)")
    page.click("#table [data-pin]")
    page.wait_for("document.querySelectorAll('#table .range').length > 2")
    said = page.evaluate(CURVE)
    assert f"One seed in common, no interval: {labels[1]}." in said
    assert f"No seed in common, difference of the means without an interval: {labels[2]}." in said
    assert page.evaluate("document.querySelectorAll('#curves .curve').length") == 3
    assert page.evaluate("document.querySelectorAll('#curves .spread').length") == 0
    last = "[...document.querySelectorAll('#table tr[data-key]')].at(-1)"
    words = page.evaluate(f"[...{last}.querySelectorAll('td.word')].map((word) => word.textContent)")
    assert set(words) == {"no seed in common"}
    page.evaluate(f"{last}.querySelector('[data-open]').click()")
    settle(page)
    titles = page.evaluate("[...document.querySelectorAll('#table .seed-row td[title]')].map((cell) => cell.title)")
    assert "the pinned cell has no seed 3" in titles
    assert page.errors == []
