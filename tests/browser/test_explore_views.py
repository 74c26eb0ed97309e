"""Views of the page to explore: what a link says, what a filter hides, what a baseline does to order and words."""

import threading
import time

from rcray.aggregate.explore.command import watch_experiments
from rcray.aggregate.explore.server import PageServer
from rcray.aggregate.frame import DRIFT_W
from rcray.aggregate.report import build_report
from rcray.config import Experiment
from rcray.store import Store
from tests.browser.exploring import SELECTED, SHIFT, box, drag, put, settle
from tests.report import runs
from tests.report.explored import experiment, write_explored

NOTE = "document.getElementById('cells-note').textContent"
ROWS = "[...document.querySelectorAll('#table tr[data-key]')].map((row) => row.dataset.key)"
LINK = "new URLSearchParams(location.hash.slice(1))"


def pinned(page, key):
    page.click(f"#table [data-pin='{key}']")
    page.wait_for("document.querySelectorAll('#table .range').length > 5")


def test_the_pinned_mark_is_itself_after_news(browser, tmp_path):
    """Every answer of the server is made of new objects; what was drawn before still knows the older ones."""
    store, experiment = Store.open(tmp_path / "store"), runs.quickstart()
    cells = runs.cells_of(experiment)[:3]
    for cell in cells:
        write_explored(store, cell)
    server = PageServer(watch_experiments(store, [([], experiment, cells)]), 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        page = browser.open(server.address)
        page.wait_for("document.querySelectorAll('#table tr[data-key]').length == 3")
        key = page.evaluate(ROWS)[1]
        page.click(f"#table [data-pin='{key}']")
        page.wait_for("document.querySelectorAll('#table .range').length > 3")
        asked = len(page.requests)
        time.sleep(2 * 1.5)
        left, top, right, bottom = box(page, f"#plane .mark[data-key='{key}']")
        assert len(page.requests) > asked, "it was asked again meanwhile"
        page.send("Input.dispatchMouseEvent", type="mouseMoved", x=(left + right) / 2, y=(top + bottom) / 2)
        settle(page)
        said = page.evaluate("document.getElementById('tip').textContent")
        assert "Δz" in said and "not comparable" not in said, said
    finally:
        server.shutdown()
        server.server_close()


def test_a_baseline_that_is_not_here_makes_no_differences(page, made, browser):
    axes = "[...document.querySelectorAll('#plane .title, #parallel .title')].map((title) => title.textContent).join()"
    plain, before = page.evaluate(axes), page.evaluate(NOTE)
    again = browser.open(f"{made.page.as_uri()}#base=nowhere")
    again.wait_for("document.body.dataset.ready == 'yes' && document.querySelectorAll('#plane .mark').length == 6")
    assert again.evaluate(NOTE) == f"{before} The pinned cell of this link is not here."
    assert again.evaluate(axes) == plain and "minus" not in plain
    assert again.evaluate(f"{LINK}.get('base')") == "nowhere", "it may come yet"
    assert again.errors == []


def test_a_state_is_no_part_of_a_name(browser, tmp_path):
    """`ok` asks for cells that are ok, and not for a model called tokens."""
    store = Store.open(tmp_path / "store")
    experiment = Experiment(
        name="named", run=runs.quickstart().run, grid={"model": ["tiny-neox", "me/tokens"], "objective": ["dpo", "cpo"]}
    )
    cells = runs.cells_of(experiment)
    for cell in cells:
        if cell.config.model.label == "tokens":
            runs.make(store, cell, "failed", error="no luck")
        else:
            write_explored(store, cell)
    page = browser.open(build_report(store, experiment, cells, figures=False).explore)
    page.wait_for("document.querySelectorAll('#chips [data-state=ok]').length")
    for word, rows in (("ok", 2), ("failed", 2), ("token", 2), ("fail", 2), ("ok dpo", 1), ("failed dpo", 1), ("o", 4)):
        put(page, "filter", word)
        assert len(page.evaluate(ROWS)) == rows, word
    put(page, "filter", "")
    page.click("#chips [data-state=ok]")
    settle(page)
    labels = page.evaluate("[...document.querySelectorAll('#table .what')].map((what) => what.textContent)")
    assert len(labels) == 2 and not any("tokens" in label for label in labels)
    assert page.errors == []


def test_a_plot_without_marks_answers_no_drag(page):
    left, top, right, bottom = box(page, "#plane svg")
    put(page, "filter", "no such objective")
    drag(page, (left + 60, top + 15), (right - 20, bottom - 45))
    put(page, "filter", "")
    assert page.evaluate(SELECTED) == [] and page.evaluate("location.hash") == ""


def test_a_brush_chooses_behind_a_filter_too(page, made):
    """What is chosen of an axis is chosen of all cells: the filter hides some of them, and does not unchoose them."""
    put(page, "filter", "dpo")
    page.click("#parallel [data-axis=calibration] [data-word=published]")
    settle(page)
    assert "2 more hidden by the filter" in page.evaluate("document.getElementById('chosen').textContent")
    put(page, "filter", "")
    assert set(page.evaluate(SELECTED)) == {row.key for row in made.rows if row.calibration == "published"}


def test_the_baseline_is_sorted_as_no_difference(page, made):
    values = {key: made.value(key, DRIFT_W) for key in made.keys}
    wanted = sorted(made.keys, key=values.get, reverse=True)  # as the first press sorts
    base = wanted[2]
    assert not values[wanted[3]] < 2 * values[base] < values[wanted[1]], "its own value would be another place"
    pinned(page, base)
    page.click(f"#table thead [data-sort='{DRIFT_W}']")
    settle(page)
    assert page.evaluate(ROWS) == wanted


TICKS = "[...document.querySelectorAll('#plane .axes text:not(.title)')].map((text) => text.textContent)"
PUBLISHED = "#parallel [data-axis=calibration] [data-word=published]"


def test_a_link_is_the_whole_view(page, made, browser):
    put(page, "filter", "dpo")
    page.click(PUBLISHED)
    page.click("#seeds")
    page.click("#zoom")
    pinned(page, made.keys[0])
    settle(page)
    view = f"[...{LINK}.keys()].sort()"
    assert page.evaluate(view) == ["axis", "base", "filter", "seeds", "sel", "zoom"]
    what = (
        "[document.getElementById('filter').value, document.getElementById('seeds').checked,"
        " document.getElementById('zoom').checked, document.getElementById('pinned').textContent,"
        " document.querySelectorAll('#curves .trace').length,"
        f" document.querySelector('{PUBLISHED}').getAttribute('aria-pressed'), {TICKS}, {ROWS}, {SELECTED},"
        " document.getElementById('table').textContent]"
    )
    seen = page.evaluate(what)
    assert seen[:3] == ["dpo", True, True] and seen[3].startswith("against DPO") and seen[5] == "true"
    assert seen[4] == 2, "each seed of the other cell, minus the baseline's"
    again = browser.open(f"{made.page.as_uri()}{page.evaluate('location.hash')}")
    again.wait_for("document.querySelectorAll('#table .range').length > 5")
    settle(again)
    assert again.evaluate(what) == seen
    assert again.evaluate("location.hash") == page.evaluate("location.hash")
    assert again.errors == []


def test_zoom_leaves_the_selected_marks_the_whole_plane(page, made):
    for key in made.keys[2:4]:
        page.click(f"#table tr[data-key='{key}'] .name")
    settle(page)
    places = (
        "Object.fromEntries([...document.querySelectorAll('#plane .mark')]"
        ".map((mark) => [mark.dataset.key, mark.getBoundingClientRect().left]))"
    )
    first, second = made.keys[2:4]
    before, ticks = page.evaluate(places), page.evaluate(TICKS)
    page.click("#zoom")
    settle(page)
    after = page.evaluate(places)
    assert abs(after[first] - after[second]) > abs(before[first] - before[second]) + 10
    left, _, right, _ = box(page, "#plane svg")
    assert all(left < after[key] < right for key in (first, second))
    page.click("#zoom")
    settle(page)
    assert page.evaluate(TICKS) == ticks


def test_what_a_zoom_leaves_outside_of_the_frame_is_not_chosen(page, made):
    marks = "[...document.querySelectorAll('#plane .mark')].map((mark) => { const r = mark.getBoundingClientRect();"
    marks += " return [mark.dataset.key, r.left + r.width / 2, r.top + r.height / 2]; })"
    box(page, "#plane svg")
    across = [key for key, *_ in sorted(page.evaluate(marks), key=lambda mark: mark[1])]
    for key in across[:2]:
        page.click(f"#table tr[data-key='{key}'] .name")
    page.click("#zoom")
    settle(page)
    left, top, *_ = box(page, "#plane svg")
    end = (left + 4000, top + 4000)
    taken = {key for key, x, y in page.evaluate(marks) if left < x < end[0] and top < y < end[1]}
    assert taken > set(across[:2]), "some of the others are below, or to the right"
    drag(page, (left + 1, top + 1), end)
    assert set(page.evaluate(SELECTED)) == set(across[:2])


def test_a_rectangle_with_shift_adds_to_what_is_selected(page, made):
    def around(key):
        left, top, right, bottom = box(page, f"#plane .mark[data-key='{key}']")
        return (left - 6, top - 6), (right + 6, bottom + 6)

    first, second, third = made.keys[0], made.keys[2], made.keys[1]
    drag(page, *around(first))
    assert page.evaluate(SELECTED) == [first]
    drag(page, *around(second), modifiers=SHIFT)
    assert set(page.evaluate(SELECTED)) == {first, second}
    drag(page, *around(third))
    assert page.evaluate(SELECTED) == [third], "without Shift it is another choice"
    assert "with Shift" in page.evaluate("document.getElementById('legend').textContent")


def test_a_pair_held_against_another_seed_names_it(browser, tmp_path):
    """The pinned setting has no run with the seed in focus: its first run stands in, and is said to."""
    store, several = Store.open(tmp_path / "store"), experiment()
    cells = runs.cells_of(several)
    dpo = [cell for cell in cells if cell.config.objective.name == "dpo" and not cell.config.calibration.enabled]
    cpo = [cell for cell in cells if cell.config.objective.name == "cpo" and not cell.config.calibration.enabled][:1]
    assert [cell.config.train.seed for cell in dpo + cpo] == [42, 43, 42]
    for cell in dpo + cpo:
        write_explored(store, cell)
    page = browser.open(build_report(store, several, dpo + cpo, figures=False).explore)
    page.wait_for("document.querySelectorAll('#worst-list button').length == 6")
    page.click("#table tr[data-key]:last-child [data-pin]")
    facts = "document.getElementById('pair-facts').textContent"
    for cell, said in ((dpo[0], "the pinned cell: "), (dpo[1], "the pinned cell (seed 42): ")):
        put(page, "run", cell.run_id, "change")
        page.wait_for(f"{facts}.includes({said!r})", 10)
    assert page.errors == []
