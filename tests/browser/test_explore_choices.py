"""What is chosen on the page to explore: by keyboard, by brushes and filters, and what becomes of it then."""

import json
import threading

import pytest

from rcray.aggregate.explore.command import watch_experiments
from rcray.aggregate.explore.server import PageServer
from rcray.aggregate.frame import DRIFT_W
from rcray.config.search import SearchConfig
from rcray.store import Store
from tests.browser.exploring import SELECTED, box, drag, hold_against, put, settle
from tests.report import runs
from tests.report.explored import write_explored

RUN = "document.getElementById('run').value"
COMMAND = "document.getElementById('copy-command')"
NOTE = "document.getElementById('command-note').textContent"
FOCUSED = "[document.activeElement.localName, {...document.activeElement.dataset}]"


KEYS = {"Enter": 13, " ": 32, "Tab": 9, "Escape": 27, "ArrowLeft": 37, "ArrowRight": 39}


def press(page, key, code=None):
    for kind in ("keyDown", "keyUp"):
        text = {"Enter": "\r", " ": " "}.get(key) if kind == "keyDown" else None
        page.send("Input.dispatchKeyEvent", type=kind, key=key, code=code or key, **({"text": text} if text else {}),
                  windowsVirtualKeyCode=KEYS[key])  # fmt: skip
    settle(page)


def focus(page, selector):
    page.evaluate(f"document.querySelector({json.dumps(selector)}).focus()")


def choose_seed(page, made, key, seed=1):
    """The second seed of a setting, by its row."""
    run = made.rows[made.keys.index(key)].setting.run_ids[seed]
    page.click(f"#table [data-open='{key}']")
    settle(page)
    page.click(f"#table [data-run='{run}']")
    settle(page)
    assert page.evaluate(RUN) == run
    return run


def test_a_keyboard_does_it_all(page, made):
    first, second = made.keys[0], made.keys[2]
    for selector, pressed in (
        (f"#table [data-select='{first}']", "selected"),
        (f"#table [data-open='{first}']", "opened"),
        (f"#table [data-pin='{second}']", "pinned"),
        (f"#table thead [data-sort='{DRIFT_W}']", "sorted"),
    ):
        focus(page, selector)
        before = page.evaluate(FOCUSED)
        press(page, " ")
        assert page.evaluate(FOCUSED) == before, f"{pressed}: the focus stays, though all is drawn anew"
    assert page.evaluate(SELECTED) == [first]
    assert page.evaluate("document.querySelectorAll('#table .seed-row').length") == 2
    page.wait_for("document.querySelectorAll('#table .range').length > 5")
    press(page, "Escape")
    assert page.evaluate(SELECTED) == []
    focus(page, "#parallel [data-axis=calibration] [data-word=published]")
    before = page.evaluate(FOCUSED)
    press(page, "Enter")
    assert set(page.evaluate(SELECTED)) == {row.key for row in made.rows if row.calibration == "published"}
    assert page.evaluate(FOCUSED) == before
    assert page.evaluate("document.activeElement.getAttribute('aria-pressed')") == "true"
    page.wait_for("document.querySelectorAll('#worst-list button').length == 6")
    focus(page, "#worst-list li:nth-child(2) button")
    before = page.evaluate(FOCUSED)
    press(page, "Enter")
    assert (
        page.evaluate(FOCUSED) == before
        and page.evaluate("document.querySelector('#pair h3').textContent") == (before[1]["pair"])
    )
    focus(page, "#chips [data-state=failed]")
    press(page, "Enter")
    assert page.evaluate(FOCUSED) == ["button", {"state": "failed"}]


def test_an_answer_is_one_stop_and_each_token_says_its_change(page):
    """Tab goes past an answer however long it is; the arrows go through it, as the pointer does."""
    chosen = "#chosen-tokens .token"
    page.wait_for(f"document.querySelectorAll('{chosen}').length > 3")
    stops = f"[...document.querySelectorAll('{chosen}')].filter((token) => token.tabIndex === 0).length"
    assert page.evaluate(stops) == 1
    focus(page, chosen)
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft"):
        press(page, key)
    assert page.evaluate(f"[...document.querySelectorAll('{chosen}')].indexOf(document.activeElement)") == 1
    assert page.evaluate(stops) == 1
    told = "[document.getElementById('tip').hidden, document.getElementById('tip').textContent]"
    hidden, text = page.evaluate(told)
    assert not hidden and text == page.evaluate("document.activeElement.dataset.said") and "→" in text
    press(page, "Tab")
    assert page.evaluate("document.activeElement.closest('#rejected-tokens') !== null"), "the next stop"
    left, top, right, bottom = box(page, f"{chosen}:nth-child(3)")
    page.send("Input.dispatchMouseEvent", type="mouseMoved", x=(left + right) / 2, y=(top + bottom) / 2)
    settle(page)
    assert page.evaluate(told) == [False, page.evaluate(f"document.querySelectorAll('{chosen}')[2].dataset.said")]


def test_whatever_is_drawn_has_a_name(page):
    names = page.evaluate("[...document.querySelectorAll('.plot > svg')].map((s) => s.getAttribute('aria-label'))")
    assert len(names) == 7 and all(name and ":" in name for name in names), names
    assert len(set(names)) == 7 and names[1].startswith("Where both likelihoods went: Δz_l")
    unnamed = page.evaluate(
        "[...document.querySelectorAll('button, input, select')]"
        ".filter((e) => !(e.getAttribute('aria-label') || e.textContent.trim() || e.labels?.length)).length"
    )
    assert unnamed == 0
    play = "document.getElementById('play').getAttribute('aria-label')"
    put(page, "step", 5)
    assert page.evaluate(play) == "play"
    page.evaluate("document.getElementById('play').click()")
    assert page.evaluate(play) == "pause"
    page.wait_for(f"{play} == 'play'")


def test_a_run_goes_with_the_cells_that_it_is_one_of(page, made):
    """Rectangles, brushes, the filter and `Clear`: band, moves and pairs do not stay with what is out of sight."""
    run = choose_seed(page, made, made.keys[0])
    page.click("#parallel [data-axis=calibration] [data-word=published]")
    settle(page)
    assert page.evaluate(RUN) != run and "run=" not in page.evaluate("location.hash")
    page.click("#clear")
    settle(page)
    run = choose_seed(page, made, made.keys[2])
    put(page, "filter", "cpo none")
    assert page.evaluate(RUN) == run, "it is among them"
    put(page, "filter", "dil")
    assert page.evaluate(RUN) != run
    put(page, "filter", "")
    page.click(f"#table [data-run='{run}']")
    settle(page)
    page.click(f"#table tr[data-key='{made.keys[4]}'] .name")
    page.click(f"#table tr[data-key='{made.keys[5]}'] .name")
    page.click("#clear")
    settle(page)
    assert page.evaluate("new URLSearchParams(location.hash.slice(1)).get('run')") is None


def test_a_brush_is_of_values(page, made):
    """Neither a filter nor a baseline moves it: an axis that is drawn anew shows the same values as chosen."""
    left, top, right, bottom = box(page, f"#parallel [data-axis='{DRIFT_W}'] .grip")
    middle = (left + right) / 2
    drag(page, (middle, top + 1), (middle, (top + bottom) / 2))
    said = "new URLSearchParams(location.hash.slice(1)).getAll('axis').map((part) => JSON.parse(part))"
    ((path, low, high),) = page.evaluate(said)
    chosen = page.evaluate(SELECTED)
    drifts = {key: made.value(key, DRIFT_W) for key in made.keys}
    assert path == DRIFT_W and set(chosen) == {key for key in made.keys if low <= drifts[key] <= high}
    band = f"document.querySelector(\"#parallel [data-axis='{DRIFT_W}'] > .brush\").getBoundingClientRect().height"
    before = page.evaluate(band)
    put(page, "filter", "dpo")  # its axis is another
    assert page.evaluate(said) == [[path, low, high]] and page.evaluate(band) != before
    put(page, "filter", "")
    assert page.evaluate(band) == pytest.approx(before)
    page.click("#parallel [data-axis=calibration] [data-word=published]")
    settle(page)
    assert ["calibration", "published"] in page.evaluate(said)
    chosen = page.evaluate(SELECTED)
    page.click(f"#table [data-pin='{made.keys[0]}']")
    settle(page)
    assert page.evaluate(said) == [["calibration", "published"]], "a range of values is none of differences"
    assert page.evaluate(SELECTED) == chosen
    titles = page.evaluate("[...document.querySelectorAll('#parallel .title')].map((t) => t.textContent)")
    assert sum("minus the pinned" in title for title in titles) >= 6 and "minus" not in titles[0]


def test_words_are_chosen_and_let_go_one_by_one(page, made, browser):
    words = page.evaluate("[...document.querySelectorAll('#parallel [data-of=objective]')].map((w) => w.dataset.word)")
    apart = (words[0], words[2])
    chosen = {row.key for row in made.rows if row.objective in apart}
    word = "#parallel [data-of=objective][data-word='{}']"
    for name in apart:
        page.click(word.format(name))
        settle(page)
    assert set(page.evaluate(SELECTED)) == chosen and 0 < len(chosen) < len(made.rows), "the word between is not"
    assert page.evaluate("document.querySelectorAll('#parallel [data-axis=objective] > .brush').length") == 2
    again = browser.open(f"{made.page.as_uri()}{page.evaluate('location.hash')}")
    again.wait_for("document.querySelectorAll('#parallel [aria-pressed=true]').length == 2")
    assert set(again.evaluate(SELECTED)) == chosen
    page.send("Page.bringToFront")
    page.click(word.format(apart[0]))
    settle(page)
    assert set(page.evaluate(SELECTED)) == {row.key for row in made.rows if row.objective == apart[1]}
    page.click(word.format(apart[1]))
    settle(page)
    assert page.evaluate(SELECTED) == [] and page.evaluate("location.hash") == "", "no word, no brush"
    assert page.evaluate("document.getElementById('chosen').textContent") == "all cells"


def test_the_command_has_the_baseline_that_cells_are_held_against(page, made):
    base, other = made.rows[0], made.rows[4]
    hold_against(page, base, other)
    page.evaluate(f"{COMMAND}.click()")
    copied = page.wait_for(f"{COMMAND}.dataset.copied")
    both = {*base.setting.run_ids, *other.setting.run_ids}
    assert set(copied.partition("--only ")[2].split(",")) == both
    assert "pinned" in page.evaluate(NOTE)
    put(page, "filter", "nothing at all")
    assert page.evaluate(f"{COMMAND}.disabled"), "a baseline alone is no comparison"


def test_a_press_that_is_taken_away_leaves_nothing(page, made):
    left, top, *_ = box(page, "#plane svg")
    start = {"x": left + 80, "y": top + 30, "button": "left", "buttons": 1}
    page.send("Input.dispatchMouseEvent", type="mousePressed", clickCount=1, **start)
    page.send("Input.dispatchMouseEvent", type="mouseMoved", x=left + 200, y=top + 120, button="left", buttons=1)
    assert page.evaluate("document.querySelectorAll('#plane .brush').length") == 1
    page.evaluate("document.querySelector('#plane .plot').dispatchEvent(new PointerEvent('pointercancel'))")
    assert page.evaluate("document.querySelectorAll('#plane .brush').length") == 0
    page.send("Input.dispatchMouseEvent", type="mouseReleased", x=left + 200, y=top + 120, button="left", clickCount=1)
    grip = f"document.querySelector(\"#parallel [data-axis='{DRIFT_W}'] .grip\")"
    page.evaluate(f"{grip}.dispatchEvent(new PointerEvent('pointerup', {{clientY: 400}}))")
    settle(page)
    assert page.evaluate(SELECTED) == [] and page.evaluate("location.hash") == "", "nothing was pressed there"


def test_opened_rows_are_in_the_link_and_the_address_keeps_up(page, made, browser):
    page.click(f"#table [data-open='{made.keys[1]}']")
    settle(page)
    assert f"open={made.keys[1]}" in page.evaluate("location.hash")
    writes = "(() => { const real = history.replaceState.bind(history); window.writes = 0;"
    page.evaluate(f"{writes} history.replaceState = (...all) => {{ window.writes += 1; real(...all); }}; }})()")
    page.evaluate(
        "new Promise((done) => { let n = 0; const tick = () => { const f = document.getElementById('step');"
        " f.value = 1 + (n % 150); f.dispatchEvent(new Event('input')); n += 1;"
        " if (n < 60) requestAnimationFrame(tick); else done(); }; tick(); })"
    )
    page.evaluate("document.getElementById('copy-link').click()")
    assert "step=60" in page.wait_for("document.getElementById('copy-link').dataset.copied"), "of the view as it is"
    settle(page)
    assert "step=60" in page.evaluate("location.hash")
    assert page.evaluate("window.writes") < 40, "browsers refuse more than 200 in ten seconds"
    again = browser.open(f"{made.page.as_uri()}{page.evaluate('location.hash')}")
    again.wait_for("document.querySelectorAll('#table .seed-row').length == 2")


def test_the_count_and_the_command_agree(page, made):
    page.click(f"#table tr[data-key='{made.keys[0]}'] .name")
    page.click(f"#table tr[data-key='{made.keys[4]}'] .name")
    put(page, "filter", "dpo")
    assert page.evaluate("document.getElementById('chosen').textContent") == (
        "1 of 6 selected, 1 more hidden by the filter"
    )
    page.evaluate(f"{COMMAND}.click()")
    copied = page.wait_for(f"{COMMAND}.dataset.copied")
    assert set(copied.partition("--only ")[2].split(",")) == set(made.rows[0].setting.run_ids)
    assert page.evaluate(NOTE) == ""
    put(page, "filter", "nothing at all")
    assert page.evaluate(f"{COMMAND}.disabled") and page.evaluate(NOTE) == "No cell is chosen."


def served(store, experiment, cells, command):
    server = PageServer(watch_experiments(store, [(command, experiment, cells)]), 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


@pytest.mark.parametrize("known", [False, True])
def test_a_command_that_is_none_or_takes_no_choice_says_so(browser, tmp_path, known):
    store, cells = Store.open(tmp_path / "store"), runs.cells_of(runs.quickstart())[:2]
    for cell in cells:
        write_explored(store, cell)
    space = {"train.learning_rate": {"low": 1e-6, "high": 1e-3}}
    search = SearchConfig(method="optuna", samples=2, space=space)
    experiment = runs.quickstart().model_copy(update={"search": search})
    server = served(store, experiment, cells, ["rcray", "sweep", "x.yaml"] if known else [])
    try:
        page = browser.open(server.address)
        page.wait_for("document.querySelectorAll('#table tr[data-key]').length == 2")
        page.evaluate("document.querySelector('#table td.name').click()")
        settle(page)
        assert page.evaluate(f"{COMMAND}.disabled") != known
        if known:
            assert "chooses its cells by itself" in page.evaluate(NOTE)
            page.evaluate(f"{COMMAND}.click()")
            assert page.wait_for(f"{COMMAND}.dataset.copied") == "rcray sweep x.yaml"
        else:
            assert "Nobody wrote down" in page.evaluate(NOTE)
    finally:
        server.shutdown()
        server.server_close()


def test_pairs_of_another_run_do_not_stand_under_this_ones_name(browser, tmp_path, monkeypatch):
    store, experiment = Store.open(tmp_path / "store"), runs.quickstart()
    cells = runs.cells_of(experiment)[:2]
    for cell in cells:
        write_explored(store, cell)
    server = served(store, experiment, cells, [])
    real, away = server.watch.details, threading.Event()

    def details(run_id):
        if run_id == cells[1].run_id and not away.is_set():
            return None  # 404
        return real(run_id)

    monkeypatch.setattr(server.watch, "details", details)
    try:
        page = browser.open(server.address)
        page.wait_for("document.querySelectorAll('#worst-list button').length == 6")
        put(page, "run", cells[1].run_id, "change")
        page.wait_for("document.getElementById('worst-list').textContent.includes('could not be read')")
        assert page.evaluate("document.querySelectorAll('#cloud circle').length") == 0
        assert page.evaluate("document.getElementById('pair').hidden")
        away.set()  # it is back, and asked again: a failure is not remembered
        page.wait_for("document.querySelectorAll('#worst-list button').length == 6")
    finally:
        server.shutdown()
        server.server_close()
