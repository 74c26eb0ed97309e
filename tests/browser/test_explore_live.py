"""What the page to explore does with news: presses, steps and evaluations that come while somebody looks."""

import pytest

from rcray.records.displaced import read_displaced, write_displaced
from rcray.records.live import FILE as LIVE
from tests.browser.exploring import SELECTED, box, put, settle
from tests.report import runs
from tests.report.explored import KEY, write_explored

#: The last step of the running cell that the page knows of.
STEPS = (
    "(() => { const c = document.getElementById('curve'); if (c.value != 'loss') { c.value = 'loss';"
    " c.dispatchEvent(new Event('change')); }"
    " return Math.min(...[...document.querySelectorAll('#curves .curve')].map((each) => each.dataset.last)); })()"
)
SAID = "document.getElementById('step-said').textContent"
CURVE = "document.getElementById('curve-said').textContent"


def write_live_rows(run, first, last):
    (run.path / LIVE).write_text("".join(f'{{"step": {n}, "loss": 0.5}}\n' for n in range(first, last + 1)))


def with_a_running_cell(browser, served, steps):
    """The second cell has made so many steps and is the selected one; the page, and where its rows go."""
    address, store, cells = served
    run = runs.make(store, cells[1], "running", steps=steps)
    page = browser.open(address)
    page.wait_for("document.querySelectorAll('#table .chip.running').length == 1")
    page.evaluate("document.querySelector('#table .chip.running').closest('tr').querySelector('.name').click()")
    page.wait_for(f"{SAID} == 'step {steps} of 200'")
    return page, run


def test_news_between_press_and_release_does_not_swallow_the_click(browser, served):
    address, store, cells = served
    page = browser.open(address)
    page.wait_for("document.querySelectorAll('#table tr[data-key]').length == 2")
    key = page.evaluate("document.querySelector('#table tr[data-key]').dataset.key")
    left, top, right, bottom = box(page, f"#table tr[data-key='{key}'] .name")
    mouse = {"x": (left + right) / 2, "y": (top + bottom) / 2, "button": "left", "clickCount": 1}
    page.send("Input.dispatchMouseEvent", type="mousePressed", **mouse)
    asked = len(page.requests)
    before = page.evaluate("fetch('state').then((a) => a.json()).then((s) => s.version)")
    write_explored(store, cells[1])
    page.wait_for(f"fetch('state').then((a) => a.json()).then((s) => s.version > {before})")
    page.evaluate("new Promise((done) => setTimeout(done, 2 * 1500))")  # twice the time between two of the page's own
    assert len(page.requests) > asked
    page.send("Input.dispatchMouseEvent", type="mouseReleased", **mouse)
    settle(page)
    assert page.evaluate(SELECTED) == [key]
    page.wait_for("document.querySelector('#chips').textContent == '2 ok'")


@pytest.mark.parametrize(("button", "seconds"), [(2, 5), (0, 12)])
def test_news_does_not_wait_for_a_release_that_nobody_sees(browser, served, button, seconds):
    """A menu of the right button takes its release away, and so does another window."""
    address, store, cells = served
    page = browser.open(address)
    page.wait_for("document.querySelector('#chips').textContent.includes('1 ok')")
    page.evaluate(f"document.body.dispatchEvent(new PointerEvent('pointerdown', {{button: {button}, bubbles: true}}))")
    write_explored(store, cells[1])
    page.wait_for("document.querySelector('#chips').textContent == '2 ok'", seconds)


def test_a_step_of_a_running_cell_asks_for_no_difference_again(browser, served):
    address, store, cells = served
    run = runs.make(store, cells[1], "running", steps=30)
    page = browser.open(address)
    page.wait_for("document.querySelectorAll('#table .chip.running').length == 1")
    page.click("#table [data-pin]")
    asked = []
    for step in (31, 32, 33):
        (run.path / LIVE).write_text("".join(f'{{"step": {n}, "loss": 0.5}}\n' for n in range(31, step + 1)))
        page.wait_for(f"[...document.querySelectorAll('#run option')].length == 2 && {STEPS} >= {step}")
        asked.append(sum("/differences/" in request for request in page.requests))
    assert asked == [1, 1, 1]


def test_the_scrubber_follows_again_from_the_last_step_on(browser, served):
    page, run = with_a_running_cell(browser, served, 30)
    put(page, "step", 12)
    write_live_rows(run, 31, 33)
    page.wait_for("document.getElementById('step').max == '33'")
    assert page.evaluate(SAID) == "step 12 of 200" and "step=12" in page.evaluate("location.hash"), "it stays"
    put(page, "step", 33)
    assert "step=" not in page.evaluate("location.hash")
    write_live_rows(run, 31, 36)
    page.wait_for(f"{SAID} == 'step 36 of 200'")


def test_letting_go_of_a_choice_lets_go_of_the_step(browser, served):
    page, _ = with_a_running_cell(browser, served, 30)
    put(page, "step", 5)
    page.click("#clear")
    settle(page)
    assert page.evaluate(SAID) == "step 200 of 200" and page.evaluate("document.getElementById('clear').hidden")
    put(page, "step", 5)
    page.click("#clear")  # of the step alone: no cell is selected
    settle(page)
    assert page.evaluate(SAID) == "step 200 of 200" and page.evaluate("location.hash") == ""


def test_a_running_cell_says_when_its_next_point_comes(browser, served):
    """The curve that is shown at first moves with the probes alone; what is said of it moves with every look."""
    page, run = with_a_running_cell(browser, served, 36)
    page.wait_for(f"{CURVE}.includes('is at step 36, its next point comes at step 41.')")
    write_live_rows(run, 37, 38)
    page.wait_for(f"{CURVE}.includes('is at step 38, its next point comes at step 41.')", 5)
    put(page, "curve", "loss", "change")
    assert "next point" not in page.evaluate(CURVE), "every step has a loss"


def test_a_later_evaluation_of_the_run_in_focus_is_shown(browser, served):
    """Neither its step nor its state is another one."""
    address, store, cells = served
    page = browser.open(address)
    page.wait_for("document.querySelectorAll('#worst-list button').length == 6")
    run = store.run(cells[0].run_id)
    write_displaced(run.displaced(KEY), read_displaced(run.displaced(KEY))[:3])
    runs.add_benchmarks(run, {"arc_challenge/acc_norm": 0.25})
    page.wait_for("document.querySelectorAll('#worst-list button').length == 3", 15)
