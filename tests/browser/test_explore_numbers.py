"""Numbers of the page to explore say what they are: their unit, the steps they are of, and why there is none."""

import re
import threading
from itertools import pairwise

import pytest

from rcray.aggregate.explore.command import watch_experiments
from rcray.aggregate.explore.server import PageServer
from rcray.aggregate.frame import ACCURACY, DRIFT_W
from rcray.aggregate.report import build_report
from rcray.config import Experiment
from rcray.config.objectives import BY_NAME
from rcray.records.items import read_items
from rcray.store import Store
from tests.browser.exploring import put, settle
from tests.report import runs
from tests.report.explored import KEY, experiment, made_records, write_explored

BAND = "document.getElementById('band-said').textContent"
MOVES = "document.getElementById('moves-said').textContent"
NOTE = "document.getElementById('cells-note').textContent"


def opened(browser, store, made, cells):
    page = browser.open(build_report(store, made, cells, figures=False).explore)
    page.wait_for("document.body.dataset.ready == 'yes' && document.querySelectorAll('#curves .curve').length")
    settle(page)
    return page


def numbers_in(text):
    return [float(each) for each in re.findall(r"[+-]?\d+\.\d+", text.replace("−", "-"))]


def cell_of(page, key, metric):
    heads = page.evaluate("[...document.querySelectorAll('#table thead [data-sort]')].map((b) => b.dataset.sort)")
    at = heads.index(metric) + 2
    return page.evaluate(f"document.querySelector(\"#table tr[data-key='{key}'] td:nth-child({at})\").textContent")


def test_the_worst_pairs_of_means_are_in_nats_per_token(browser, tmp_path):
    """The list is sorted by what it shows, and so it looks."""
    store, made = Store.open(tmp_path / "store"), runs.quickstart()
    cells = runs.cells_of(made, likelihood="mean")[:2]
    for cell in cells:
        write_explored(store, cell)
    page = opened(browser, store, made, cells)
    page.wait_for("document.querySelectorAll('#worst-list button').length == 6")
    shown = page.evaluate(
        "[...document.querySelectorAll('#worst-list button')].map((b) => [b.dataset.pair,"
        " ...[...b.querySelectorAll('.drift')].map((d) => Number(d.textContent.replace('−', '-')))])"
    )
    assert page.evaluate("document.getElementById('worst-unit').textContent") == "changes in nats/token"
    items = read_items(store.run(page.evaluate("document.getElementById('run').value")).items(KEY))
    for name, w, l in shown:  # noqa: E741
        i = items.names.index(name)
        assert (w, l) == pytest.approx((items.columns["drift_w"][i], items.columns["drift_l"][i]), abs=6e-4)
    assert [w for _, w, _ in shown] == sorted(w for _, w, _ in shown)
    sums = [(items.columns["trained_w"] - items.columns["start_w"])[items.names.index(name)] for name, *_ in shown]
    assert sums != sorted(sums), "by their sums they would not be sorted"
    assert "nats/token" in page.evaluate("document.getElementById('pair-facts').textContent")
    assert re.search(r"nats over \d+ tokens", page.evaluate("document.getElementById('chosen-tokens').textContent"))
    assert page.errors == []


def test_no_sum_is_held_against_a_mean_on_the_page(browser, tmp_path):
    store, made = Store.open(tmp_path / "store"), experiment(likelihood=["sum", "mean"])
    cells = runs.cells_of(made, objective="dpo")
    for cell in cells:
        write_explored(store, cell)
    page = opened(browser, store, made, cells)
    assert "no difference of Δz" in page.evaluate("document.getElementById('notes').textContent")
    labels = page.evaluate("[...document.querySelectorAll('#table tr[data-key]')].map((r) => [r.dataset.key,"
                           " r.querySelector('.name').textContent])")  # fmt: skip
    base = next(key for key, label in labels if "likelihood=sum" in label)
    page.click(f"#table [data-open='{next(key for key, label in labels if 'likelihood=mean' in label)}']")
    page.click(f"#table [data-pin='{base}']")
    page.wait_for("document.querySelectorAll('#table .range').length > 3")
    for key, label in labels:
        if key != base:
            apart = "likelihood=mean" in label
            assert (cell_of(page, key, DRIFT_W) == "not comparable") == apart, label
            assert numbers_in(cell_of(page, key, ACCURACY)), "a share is a share"
    assert "as sums and means are" in page.evaluate(NOTE)
    seeds = page.evaluate("[...document.querySelectorAll('#table .seed-row td[title=\"not comparable\"]')].length")
    assert seeds == 6, "three likelihoods of two seeds"
    assert "not comparable, another unit: " in page.evaluate("document.getElementById('curve-said').textContent")
    assert page.evaluate("document.querySelectorAll('#curves .curve').length") == 2, "of sums alone"
    put(page, "curve", "probe_accuracy", "change")
    assert page.evaluate("document.querySelectorAll('#curves .curve').length") == 4, "a share is a share"
    assert page.errors == []


def test_why_there_is_no_difference_is_said_in_words(browser, tmp_path, monkeypatch):
    store, made = Store.open(tmp_path / "store"), runs.quickstart()
    cells = runs.cells_of(made)
    for cell in cells[:5]:
        write_explored(store, cell)
        runs.add_benchmarks(store.run(cell.run_id), {"arc_challenge/acc_norm": 0.25})
    monkeypatch.setattr("rcray.aggregate.explore.cells._DIFFERENCES", 15 * 7)
    page = opened(browser, store, made, cells)
    keys = page.evaluate("[...document.querySelectorAll('#table tr[data-key]')].map((r) => r.dataset.key)")
    page.click(f"#table [data-pin='{keys[0]}']")
    page.wait_for("document.querySelectorAll('#table .range').length > 3")
    assert cell_of(page, keys[1], "arc_challenge/acc_norm") == "not here"
    assert "more than a file holds; rcray watch has them." in page.evaluate(NOTE)
    page.click(f"#table [data-pin='{keys[5]}']")
    settle(page)
    assert cell_of(page, keys[1], ACCURACY) == "baseline pending"
    assert page.errors == []


def test_a_bucket_is_not_taken_for_a_step(browser, tmp_path):
    """A file has the means of long curves: which steps they are of is said, and whether all of those are inside."""
    store = Store.open(tmp_path / "store")
    made = Experiment(name="long", run={"data": {"train_pairs": 16000, "eval_pairs": 64}, "train": {"batch_size": 16}})
    (cell,) = runs.cells_of(made)
    write_explored(store, cell)
    records = made_records(cell, 1000)
    page = opened(browser, store, made, [cell])
    for step in (3, 498, 500, 1000):
        put(page, "step", step)
        first = (step - 1) // 5 * 5 + 1
        own = records["log_r"][first - 1 : first + 4]
        said = page.evaluate(BAND)
        assert said.startswith(f"Steps {first} to {first + 4}: log r"), said
        assert numbers_in(said)[:3] == pytest.approx([own.mean(), own.min(), own.max()], abs=0.006)
        look = (step - 1) // 10 * 10
        low, high = records["true_band_lower"][look], records["true_band_upper"][look]
        inside = (own >= low) & (own <= high)
        word = "inside" if inside.all() else "outside" if (own > high).all() or (own < low).all() else "some of them"
        assert re.search(rf", {word}", said), (said, low, high, own)
    put(page, "curve", "log_r", "change")
    put(page, "step", 498)
    said = page.evaluate("document.getElementById('curve-said').textContent")
    assert said.startswith("Around step 498, means of 5 steps.")
    assert numbers_in(said)[0] == pytest.approx(records["log_r"][495:500].mean(), abs=6e-4)
    assert page.errors == []


def test_past_the_last_probe_the_last_interval_stands(browser, tmp_path):
    """Of a cell that is still running: its next probe is to come, and what was foreseen before is not gone."""
    store, made = Store.open(tmp_path / "store"), runs.quickstart()
    cell = runs.cells_of(made)[0]
    run = runs.make(store, cell, "running", steps=36)
    runs.write_dynamics(run, cell, 36, 1, columns={k: v[:36] for k, v in made_records(cell, 200).items()})
    server = PageServer(watch_experiments(store, [([], made, [cell])]), 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        page = browser.open(server.address)
        page.wait_for("document.querySelectorAll('#curves .curve').length")
        for step, interval in (
            (36, "21 to 31"),
            (33, "21 to 31"),
            (31, "21 to 31"),
            (30, "21 to 31"),
            (12, "11 to 21"),
        ):
            put(page, "step", step)
            assert page.evaluate(MOVES).startswith(f"Steps {interval}: foreseen"), (step, page.evaluate(MOVES))
        assert "nothing was foreseen" not in page.evaluate(MOVES)
    finally:
        server.shutdown()
        server.server_close()


def test_what_is_cut_or_shared_is_said(browser, tmp_path, monkeypatch):
    """More objectives than colours, more benchmarks than columns, more runs than a file spells out."""
    monkeypatch.setattr("rcray.aggregate.explore.details._MANY_RUNS", 12)
    store = Store.open(tmp_path / "store")
    made = Experiment(name="many", run=runs.quickstart().run, grid={"objective": list(BY_NAME)[:13]})
    cells = runs.cells_of(made)
    for cell in cells:
        write_explored(store, cell)
        runs.add_benchmarks(store.run(cell.run_id), {f"task_{i}/acc": 0.5 for i in range(9)})
    page = opened(browser, store, made, cells)
    assert "13 objectives share 12 colours" in page.evaluate("document.getElementById('legend').textContent")
    assert "1 of 9 benchmarks have no column" in page.evaluate("document.getElementById('notes').textContent")
    assert "in the table" in page.evaluate("document.getElementById('parallel-note').textContent")
    page.wait_for("document.querySelectorAll('#worst-list button').length == 4")
    assert "this file has 4 of each run" in page.evaluate("document.getElementById('worst-unit').textContent")
    assert page.errors == []


def test_many_words_and_near_numbers_on_an_axis_do_not_cover_each_other(browser, tmp_path):
    store = Store.open(tmp_path / "store")
    grid = {"objective": list(BY_NAME)[:30], "train.learning_rate": [1e-5, 1.1e-5, 1e-4]}
    made = Experiment(name="many", run=runs.quickstart().run, grid=grid)
    cells = runs.cells_of(made)
    for cell in cells[:3]:
        write_explored(store, cell)
    page = opened(browser, store, made, cells)
    ticks = (
        "[...document.querySelectorAll('#parallel .axis')].map((axis) => [...axis.querySelectorAll('.tick')]"
        ".map((tick) => [Number(tick.getAttribute('y')), tick.getBoundingClientRect().left,"
        " document.querySelector('#parallel .plot').getBoundingClientRect().left]))"
    )
    axes = page.evaluate(ticks)
    assert len(axes[0]) == 30 and len(axes[1]) == 2, "two of the rates are nearly one"
    for places in axes:
        heights = sorted(y for y, *_ in places)
        assert all(after - before > 11 for before, after in pairwise(heights))
    assert all(left >= edge for _, left, edge in axes[0]), "the first words are whole"
    page.resize(420, 1000, mobile=True)
    settle(page)
    names = "[...document.querySelectorAll('#table .what')].map((n) => [n.scrollWidth, n.clientWidth])"
    assert all(needed <= given for needed, given in page.evaluate(names)), "no name runs into the numbers"
    assert page.errors == []


def test_a_ratio_that_is_none_is_said_and_not_drawn(browser, tmp_path):
    """A pair whose hinge is satisfied asks for nothing: log r is then undefined, or open to one side."""
    store = Store.open(tmp_path / "store")
    (cell,) = cells = runs.cells_of(runs.quickstart(), objective="dpo")[:1]
    run = write_explored(store, cell)
    records = made_records(cell, 200)
    records["log_r"][[49, 59, 69]] = [float("nan"), float("inf"), -float("inf")]
    records["probe_z_l"][100:] = float("nan")
    for part in run.dynamics.glob("*.parquet"):
        part.unlink()
    runs.write_dynamics(run, cell, 200, 1, columns=records)
    page = opened(browser, store, runs.quickstart(), cells)
    for step, said in ((50, "log r undefined;"), (60, "log r +∞;"), (70, "log r −∞;")):
        put(page, "step", step)
        assert f"Step {step}: {said}" in page.evaluate(BAND)
        assert page.evaluate("document.querySelectorAll('#band .here').length") == 0
    assert "outside" in page.evaluate(BAND)
    put(page, "step", 50)
    assert "side" not in page.evaluate(BAND), "no verdict on what is undefined"
    put(page, "step", 150)
    assert "undefined" in page.evaluate(MOVES)
    assert page.errors == [], "nothing is drawn at no place"


def test_nothing_to_compare_is_said(browser, tmp_path):
    store, made = Store.open(tmp_path / "store"), Experiment(name="one", run=runs.quickstart().run)
    page = browser.open(build_report(store, made, runs.cells_of(made), figures=False).explore)
    page.wait_for("document.body.dataset.ready == 'yes' && document.querySelectorAll('#parallel .empty').length")
    assert "nothing was measured yet" in page.evaluate("document.getElementById('parallel').textContent")
    assert page.evaluate(NOTE).startswith("1 setting, 1 run;")
    assert page.errors == []
