"""What the page to explore says where there is little to say; what stays in sight; numbers that have their units."""

import re
from itertools import pairwise

import pytest

from rcray.aggregate.frame import DRIFT_W
from rcray.aggregate.report import build_report
from rcray.config import Experiment
from rcray.records.progress import FILE as PROGRESS
from rcray.store import Store
from tests.browser.exploring import SELECTED, box, drag, move, put, settle
from tests.report import runs
from tests.report.explored import write_explored

#: Texts of the axes of a plot, its ticks apart.
TITLES = "[...document.querySelectorAll('{} .title')].map((text) => text.textContent.replaceAll('\\u200b', ''))"


def test_a_brush_around_no_cell_chooses_none(page, made):
    left, top, right, bottom = box(page, f"#parallel [data-axis='{DRIFT_W}'] .grip")
    drifts = sorted(made.value(key, DRIFT_W) for key in made.keys)
    gap, low = max((after - before, before) for before, after in pairwise(drifts))
    room = 0.04 * (drifts[-1] - drifts[0])  # at either end of an axis
    at = [(low + share * gap - drifts[0] + room) / (drifts[-1] - drifts[0] + 2 * room) for share in (0.35, 0.65)]
    tall = bottom - top - 12
    places = [bottom - 6 - share * tall for share in at]
    middle = (left + right) / 2
    drag(page, (middle, places[0]), (middle, places[1]))
    assert page.evaluate(SELECTED) == []
    assert "0 of 6 selected" in page.text() and page.text().count("No cell is chosen.") == 5
    assert page.evaluate("document.querySelectorAll('#plane .mark.dim').length") == 6
    assert page.evaluate("document.getElementById('copy-command').disabled")
    page.click("#clear")
    page.wait_for("document.querySelectorAll('#curves .curve').length == 6")
    assert "all cells" in page.text()


def test_a_filter_that_nothing_passes_says_so(page):
    put(page, "filter", "no such objective")
    page.wait_for("document.getElementById('pairs-note').textContent == 'No cell is chosen.'")
    assert "No cell passes the filter." in page.evaluate("document.getElementById('table').textContent")
    for card in ("plane", "frontier"):
        assert page.evaluate(f"document.querySelector('#{card} .plot').textContent") == "No cell passes the filter."
    assert page.evaluate("document.querySelectorAll('#parallel .tick').length") == 0, "no number, no scale"
    height = "document.querySelector('#{}').offsetHeight"
    assert [page.evaluate(height.format(card)) for card in ("cloud", "pair", "samples")] == [0, 0, 0]
    put(page, "filter", "")
    page.wait_for(f"{height.format('cloud')} > 100 && {height.format('pair')} > 50")
    assert page.evaluate("document.querySelectorAll('#plane .mark').length") == 6


def test_a_state_is_a_way_to_its_cells(page, made):
    page.click("#chips [data-state=failed]")
    settle(page)
    assert page.evaluate("[...document.querySelectorAll('#table tr[data-key]')].map((r) => r.dataset.key)") == [
        next(row.key for row in made.rows if made.failed.run_id in row.setting.run_ids)
    ]
    assert page.evaluate("document.getElementById('filter').value") == "failed"
    assert page.evaluate("document.getElementById('chosen').textContent") == "1 of 6 cells"
    assert "1 passes the filter" in page.evaluate("document.getElementById('cells-note').textContent")
    page.click("#chips [data-state=failed]")
    settle(page)
    assert page.evaluate("document.querySelectorAll('#table tr[data-key]').length") == 6


def test_seeds_below_a_pinned_baseline_are_differences_seed_by_seed(page, made):
    base, other = made.rows[0], made.rows[3]
    page.click(f"#table [data-open='{other.key}']")
    page.click(f"#table [data-pin='{base.key}']")
    page.wait_for("document.querySelectorAll('#table .range').length > 5")
    heads = page.evaluate("[...document.querySelectorAll('#table thead [data-sort]')].map((b) => b.dataset.sort)")
    column = heads.index(DRIFT_W) + 2
    values = {result.cell.run_id: result.metrics[DRIFT_W].value for result in made.results() if result.ok}
    for own, pinned in zip(other.setting.run_ids, base.setting.run_ids, strict=True):
        cell = f"document.querySelector(\"#table [data-run-row='{own}'] td:nth-child({column})\")"
        shown = page.evaluate(f"{cell}.textContent").replace("−", "-")
        assert re.fullmatch(r"[+-]\d+\.\d\d", shown)
        assert float(shown) == pytest.approx(values[own] - values[pinned], abs=0.006)
        assert "minus the pinned cell's seed" in page.evaluate(f"{cell}.title")


@pytest.mark.parametrize("width", [1400, 420])
def test_name_and_baseline_stay_while_the_numbers_scroll(page, made, width):
    page.resize(width, 1000, mobile=width < 500)
    settle(page)
    room = page.evaluate(
        "[...document.querySelectorAll('#table td.name')].map((name) => name.getBoundingClientRect().right"
        " - name.querySelector('.what').getBoundingClientRect().right)"
    )
    assert min(room) > 10, "the longest name does not touch the edge"
    page.evaluate("document.querySelector('#cells .scroll').scrollLeft = 9999")
    settle(page)
    left, _, right, _ = box(page, "#cells .scroll")
    for part in (f"tr[data-key='{made.keys[2]}'] .name", f"[data-pin='{made.keys[2]}']", "td.first input"):
        x0, y0, x1, y1 = box(page, f"#table {part}")
        assert left - 1 <= x0 and x1 <= right + 1, part
        found = page.evaluate(f"document.elementFromPoint({(x0 + x1) / 2}, {(y0 + y1) / 2}).closest('tr')?.dataset.key")
        assert found, f"{part} is covered"
    last = box(page, f"#table tr[data-key='{made.keys[2]}'] td:last-child")
    assert last[2] <= right + 1 and last[0] > box(page, f"#table tr[data-key='{made.keys[2]}'] .name")[2] - 1
    page.click(f"#table [data-pin='{made.keys[2]}']")
    page.wait_for("document.querySelectorAll('#table .range').length > 5")


def test_every_axis_has_its_unit_and_a_scale(page, made):
    page.click(f"#table tr[data-key='{made.keys[0]}'] .name")
    put(page, "step", 95)
    for card in ("#plane", "#moves", "#cloud"):
        titles = page.evaluate(TITLES.format(card))
        assert len(titles) == 2 and all("(nats" in title for title in titles), (card, titles)
    assert page.evaluate(TITLES.format("#curves"))[1] == "nats"
    assert [title for title in page.evaluate(TITLES.format("#parallel")) if "KL" in title] == ["√KL (√nats)"]
    assert page.evaluate("document.getElementById('worst-head').textContent") == "ΔzwΔzlPrompt"
    assert page.evaluate("document.getElementById('worst-unit').textContent") == "changes in nats"
    put(page, "curve", "root_kl", "change")
    assert page.evaluate(TITLES.format("#curves"))[1] == "√nats"
    for card in ("plane", "frontier", "curves", "band", "moves", "cloud"):
        ticks = page.evaluate(
            f"[...document.querySelectorAll('#{card} .axes text:not(.title)')]"
            ".map((text) => text.getAttribute('text-anchor'))"
        )
        assert min(ticks.count("middle"), ticks.count("end")) > 1, card


def test_what_was_foreseen_shows_where_it_came_true(page, made):
    page.click(f"#table tr[data-key='{made.keys[0]}'] .name")
    put(page, "step", 95)
    order = page.evaluate(
        "[...document.querySelectorAll('#moves .tip')].map((tip) => [tip.classList[1], Number(tip.getAttribute('r'))])"
    )
    assert [kind for kind, _ in order] == ["made", "foreseen"] and order[0][1] < order[1][1]
    assert page.evaluate("getComputedStyle(document.querySelector('#moves .tip.foreseen')).fill") == "none"


def test_names_of_the_quarters_lie_in_them_and_below_no_mark(page):
    page.wait_for("document.querySelectorAll('#plane .corner').length > 1")
    places = page.evaluate(
        "[...document.querySelectorAll('#plane .corner, #plane .mark')].map((each) => {"
        " const r = each.getBoundingClientRect();"
        " return [each.textContent, r.left, r.right, r.top, r.bottom]; })"
    )
    zero = page.evaluate(
        "[...document.querySelectorAll('#plane .zero')].map((line) => line.getBoundingClientRect())"
        ".map((r) => [r.left, r.top])"
    )
    sides = {
        "reversed": (False, False),
        "i: both rise": (True, False),
        "ii: both fall": (False, True),
        "iii: winner kept, loser down": (True, True),
    }
    marks = [place for place in places if not place[0]]
    for name, left, right, top, bottom in (place for place in places if place[0]):
        assert (left > zero[0][0] - 1, top > zero[1][1] - 1) == sides[name], name
        hidden = [m for m in marks if m[1] < right and m[2] > left and m[3] < bottom and m[4] > top]
        assert not hidden, f"{name} lies below a mark"


def test_a_young_curve_fills_its_plot(browser, served):
    address, store, cells = served
    runs.make(store, cells[1], "failed", error="no luck", steps=30)
    page = browser.open(address)
    page.wait_for("document.querySelectorAll('#chips .failed').length == 1")
    assert page.evaluate("document.getElementById('step-said').textContent") == "step 200 of 200"
    page.evaluate("document.querySelector('#table tr.error').previousElementSibling.querySelector('.name').click()")
    page.wait_for("document.getElementById('step-said').textContent == 'step 30 of 200'")
    assert page.evaluate("document.getElementById('step').max") == "30", "no step that was not made"
    steps = page.evaluate(
        "[...document.querySelectorAll('#curves .axes text[text-anchor=middle]:not(.title)')]"
        ".map((text) => Number(text.textContent))"
    )
    assert 30 < max(steps) <= 50, "not 200: the curve would be a stub at the left"


@pytest.mark.parametrize("state", ["failed", "oom", "degenerate"])
def test_a_cell_that_ended_without_a_result_is_not_on_its_way(browser, served, state):
    address, store, cells = served
    runs.make(store, cells[1], "running", steps=30)
    page = browser.open(address)
    marks = "[...document.querySelectorAll('#plane .mark.{}')].map((mark) => mark.dataset.key)"
    page.wait_for(f"{marks.format('passing')}.length == 1")
    (key,) = page.evaluate(marks.format("passing"))
    assert page.evaluate(marks.format("ended")) == []
    (store.run(cells[1].run_id).path / PROGRESS).unlink()
    runs.make(store, cells[1], state, error="no luck", steps=30)
    page.wait_for(f"{marks.format('ended')}.length == 1")
    assert page.evaluate(marks.format("ended")) == [key] and page.evaluate(marks.format("passing")) == []
    left, top, right, bottom = box(page, f"#plane .mark[data-key='{key}']")
    move(page, ((left + right) / 2, (top + bottom) / 2))
    said = page.evaluate("document.getElementById('tip').textContent")
    assert state in said and "its last probe, step 21" in said and "on the way" not in said
    assert "×: ended without a result" in page.evaluate("document.getElementById('legend').textContent")


def test_a_cell_with_one_value_has_a_line_that_can_be_pressed(browser, tmp_path):
    store = Store.open(tmp_path / "store")
    experiment = Experiment(name="rates", run=runs.quickstart().run, grid={"train.learning_rate": [1e-5, 2e-5, 4e-5]})
    cells = runs.cells_of(experiment)
    for cell in cells[:2]:
        write_explored(store, cell)
    page = browser.open(build_report(store, experiment, cells, figures=False).explore)
    page.wait_for("document.body.dataset.ready == 'yes' && document.querySelectorAll('#parallel .line').length == 3")
    waiting = page.evaluate("document.querySelector('#table .chip.pending').closest('tr').dataset.key")
    left, top, right, bottom = box(page, f"#parallel .line[data-key='{waiting}']")
    assert right - left > 20
    place = (right - 5, (top + bottom) / 2)
    on_top = page.evaluate(f"document.elementFromPoint({place[0]}, {place[1]}).dataset.key")
    assert on_top == waiting, "the axis does not cover it"
    drag(page, place, place)
    assert page.evaluate(SELECTED) == [waiting]
    assert page.errors == []


def test_a_finger_scrolls_what_is_wider_than_a_phone(page):
    page.resize(420, 900, mobile=True)
    page.send("Emulation.setTouchEmulationEnabled", enabled=True)
    settle(page)
    _, _, right, bottom = box(page, "#parallel .plot")
    scrolled = "document.querySelector('#parallel .plot').scrollLeft"
    assert page.evaluate(scrolled) == 0
    for kind, x in [("touchStart", right - 60), *(("touchMove", right - 60 - 10 * i) for i in range(1, 20))]:
        page.send("Input.dispatchTouchEvent", type=kind, touchPoints=[{"x": x, "y": bottom - 30}])
    page.send("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
    page.wait_for(f"{scrolled} > 100", 10)
