"""The page to explore in a real browser, from file://: every view answers the others, and a link is a view."""

import json
import re
import shlex

import pytest
from typer.testing import CliRunner

from rcray.aggregate.frame import ACCURACY, DRIFT_L, DRIFT_W
from rcray.aggregate.groups import difference
from rcray.cli import app
from tests.browser.exploring import SELECTED, box, drag, put, settle
from tests.report.explored import HOSTILE, KEY

BRIGHT = "[...document.querySelectorAll('{}:not(.dim)')].map((mark) => mark.dataset.key)"


def follows(page, made, keys):
    """Every view shows these settings, and they alone, as chosen; band, moves and pairs are of one of their runs."""
    settle(page)
    own = {run: row.key for row in made.rows for run in row.setting.run_ids}
    assert own[page.evaluate("document.getElementById('run').value")] in keys
    label = page.evaluate("document.getElementById('run').selectedOptions[0].textContent").partition(" · seed")[0]
    page.wait_for(f"document.getElementById('pairs-note').textContent.startsWith({json.dumps(f'of {label},')})")
    assert set(page.evaluate(SELECTED)) == set(keys)
    for view in ("#plane .mark", "#frontier .mark", "#parallel .line"):
        assert set(page.evaluate(BRIGHT.format(view))) == set(keys), view
    assert set(page.evaluate("[...document.querySelectorAll('#curves .curve')].map((c) => c.dataset.key)")) == set(keys)
    assert page.evaluate("new URLSearchParams(location.hash.slice(1)).get('sel').split(',').sort()") == sorted(keys)
    assert f"{len(keys)} of 6 selected" in page.text()


def test_a_row_is_followed_by_every_view(page, made):
    page.click(f"#table tr[data-key='{made.keys[0]}'] .name")
    page.click(f"#table tr[data-key='{made.keys[3]}'] .name")
    follows(page, made, [made.keys[0], made.keys[3]])
    page.click(f"#table tr[data-key='{made.keys[0]}'] .name")
    follows(page, made, [made.keys[3]])
    page.click("#clear")
    settle(page)
    assert page.evaluate(SELECTED) == [] and page.evaluate("location.hash") == ""
    assert len(page.evaluate(BRIGHT.format("#plane .mark"))) == 6


@pytest.mark.parametrize("view", ["plane", "frontier"])
def test_a_mark_and_a_rectangle_in_a_plane(page, made, view):
    page.click(f"#{view} .mark[data-key='{made.keys[2]}']")
    settle(page)
    assert page.evaluate(SELECTED) == [made.keys[2]]
    marks = page.evaluate(
        f"(() => {{ document.getElementById('{view}').scrollIntoView({{block: 'center'}});"
        f" return [...document.querySelectorAll('#{view} .mark')].map((m) => {{ const r = m.getBoundingClientRect();"
        " return [m.dataset.key, r.left + r.width / 2, r.top + r.height / 2]; }); })()"
    )
    marks.sort(key=lambda mark: mark[1])
    left = marks[:2]
    edge = (marks[1][1] + marks[2][1]) / 2
    x0, y0, _, y1 = box(page, f"#{view} svg")
    assert edge - marks[1][1] > 3, "the made runs lie apart"
    drag(page, (x0 + 58, y0 + 14), (edge, y1 - 44))
    follows(page, made, [key for key, *_ in left])


def test_words_and_ranges_of_the_parallel_coordinates(page, made):
    axes = page.evaluate("[...document.querySelectorAll('#parallel .axis')].map((a) => a.dataset.axis)")
    assert axes[:2] == ["objective", "calibration"] and "train.seed" not in axes, "fields that vary, seeds collapsed"
    page.click("#parallel [data-axis=calibration] [data-word=published]")
    published = [row.key for row in made.rows if row.calibration == "published"]
    follows(page, made, published)
    left, top, right, bottom = box(page, f"#parallel [data-axis='{DRIFT_W}'] .grip")
    middle = (left + right) / 2
    drag(page, (middle, top + 1), (middle, (top + bottom) / 2))
    chosen = page.evaluate(SELECTED)
    drifts = {key: made.value(key, DRIFT_W) for key in made.keys}
    low, high = min(drifts.values()), max(drifts.values())
    expected = {key for key in published if drifts[key] > low + (high - low) / 2}
    assert set(chosen) == expected and 0 < len(expected) < len(published), "both brushes hold"
    follows(page, made, chosen)


def test_hovering_shows_the_same_cell_everywhere(page, made):
    x0, y0, x1, y1 = box(page, f"#table tr[data-key='{made.keys[1]}']")
    page.send("Input.dispatchMouseEvent", type="mouseMoved", x=(x0 + x1) / 2, y=(y0 + y1) / 2)
    settle(page)
    hovered = page.evaluate("[...document.querySelectorAll('.hover')].map((e) => [e.tagName, e.dataset.key])")
    assert {key for _, key in hovered} == {made.keys[1]} and len(hovered) >= 5


def test_seeds_are_one_line_until_asked_for(page, made):
    page.click(f"#table tr[data-key='{made.keys[0]}'] .name")
    settle(page)
    count = "[document.querySelectorAll('#curves .curve').length, document.querySelectorAll('#curves .trace').length]"
    assert page.evaluate(count) == [1, 0] and page.evaluate("document.querySelectorAll('#curves .spread').length") == 1
    page.click("#seeds")
    settle(page)
    assert page.evaluate(count) == [1, 2]
    page.click(f"#table [data-open='{made.keys[0]}']")
    settle(page)
    second = made.rows[0].setting.run_ids[1]
    page.click(f"#table [data-run='{second}']")
    settle(page)
    assert page.evaluate("document.getElementById('run').value") == second, "its band, moves and pairs"
    assert f"run={second}" in page.evaluate("location.hash")


def test_the_scrubber_tells_band_and_move_at_any_step(page, made):
    page.click(f"#table tr[data-key='{made.keys[0]}'] .name")
    put(page, "step", 95)
    result = next(r for r in made.results() if r.cell.run_id == made.rows[0].setting.run_ids[0])
    records = result.dynamics(["log_r", "true_band_lower", "true_band_upper", "probe_z_w", "probe_z_l"])
    said = page.evaluate("document.getElementById('band-said').textContent").replace("−", "-")
    numbers = [float(text) for text in re.findall(r"[+-]?\d+\.\d+", said)]
    expected = [records["log_r"][94], records["true_band_lower"][90], records["true_band_upper"][90]]
    assert said.startswith("Step 95: log r") and "at step 91" in said
    assert numbers[:3] == pytest.approx(expected, abs=0.006)
    inside = expected[1] <= expected[0] <= expected[2]
    assert (", inside" if inside else ", outside") in said
    moved = page.evaluate("document.getElementById('moves-said').textContent").replace("−", "-")
    assert moved.startswith("Steps 91 to 101: foreseen")
    change = [records[f"probe_z_{side}"][100] - records[f"probe_z_{side}"][90] for side in "wl"]
    made_move = [float(text) for text in re.search(r"made \(([^)]*)\)", moved).group(1).split(",")]
    assert made_move == pytest.approx(change, abs=0.006)
    assert page.evaluate("document.querySelectorAll('#moves .arrow').length") == 2
    left, top, right, bottom = box(page, "#curves svg")
    drag(page, ((left + right) / 2, (top + bottom) / 2), (left + 55, (top + bottom) / 2))
    assert int(page.evaluate("document.getElementById('step').value")) < 10, "a drag in a plot scrubs, too"
    assert page.evaluate("document.querySelectorAll('#plane .here').length") == 1


def test_the_worst_pairs_with_their_tokens_and_samples(page, made):
    page.click(f"#table tr[data-key='{made.keys[0]}'] .name")
    settle(page)
    page.wait_for("document.querySelectorAll('#worst-list button').length == 6")
    from rcray.records.displaced import read_displaced

    worst = read_displaced(made.store.run(made.rows[0].setting.run_ids[0]).displaced(KEY))
    page.click("#worst-list li:nth-child(3) button")
    settle(page)
    assert page.evaluate("document.querySelector('#pair h3').textContent") == worst[2].row
    shown = "[...document.querySelectorAll('#chosen-tokens .token')].map((t) => [t.textContent, +t.dataset.change])"
    tokens, answer = page.evaluate(shown), worst[2].chosen
    assert [text for text, _ in tokens] == list(answer.tokens), "as text, whatever it looks like"
    assert [moved for _, moved in tokens] == pytest.approx(list(answer.trained - answer.start), abs=1e-3)
    assert HOSTILE in page.evaluate("document.querySelector('#pair .text').textContent")
    assert page.evaluate("document.querySelectorAll('#cloud circle.pair').length") == 64
    page.click("#cloud circle.pair:not(.kept)")
    settle(page)
    assert "most displaced pairs only" in page.evaluate("document.getElementById('pair').textContent")
    assert "ork eth" in page.evaluate("document.querySelector('#samples td').textContent")
    assert page.evaluate("document.querySelectorAll('img').length") == 0


def test_a_pinned_cell_turns_every_number_into_a_difference(page, made):
    base, other = made.rows[0], made.rows[3]
    page.click(f"#table [data-pin='{base.key}']")
    page.wait_for("document.querySelectorAll('#table .range').length > 5")
    heads = page.evaluate("[...document.querySelectorAll('#table thead [data-sort]')].map((b) => b.dataset.sort)")
    for metric in (ACCURACY, DRIFT_W, DRIFT_L):
        column = heads.index(metric) + 2
        shown = page.evaluate(
            f"document.querySelector(\"#table tr[data-key='{other.key}'] td:nth-child({column})\").textContent"
        ).replace("−", "-")
        numbers = [float(text) for text in re.findall(r"[+-]?\d+\.\d+", shown)]
        found = difference(base.setting, other.setting, metric)
        scale = 100 if metric == ACCURACY else 1
        expected = [scale * v for v in (found.value, found.value - found.half_width, found.value + found.half_width)]
        assert numbers == pytest.approx(expected, abs=0.06 if scale == 100 else 0.006), metric
        assert found.paired
    assert "minus the pinned" in page.evaluate("document.querySelector('#plane').textContent")
    page.click("#unpin")
    settle(page)
    assert page.evaluate("document.querySelectorAll('#table .range').length") == 0


def test_a_link_is_a_view(page, made, browser):
    page.click(f"#table tr[data-key='{made.keys[1]}'] .name")
    page.click(f"#table [data-pin='{made.keys[0]}']")
    page.click(f"#table thead [data-sort='{DRIFT_W}']")
    put(page, "curve", "loss", "change")
    put(page, "step", 77)
    page.wait_for("document.querySelectorAll('#worst-list button').length == 6")
    page.click("#worst-list li:nth-child(2) button")
    settle(page)
    view = (
        "[location.hash, document.getElementById('curve').value, document.getElementById('step').value,"
        " document.querySelector('#pair h3').textContent, document.getElementById('pair-facts').textContent,"
        " [...document.querySelectorAll('#table tr[data-key]')].map((r) => r.className + r.textContent),"
        " document.getElementById('plane').innerHTML, document.getElementById('band-said').textContent]"
    )
    page.wait_for("document.querySelector('#pair-facts').textContent.includes('the pinned cell')")
    page.send("Input.dispatchMouseEvent", type="mouseMoved", x=2, y=2)
    settle(page)
    before = page.evaluate(view)
    again = browser.open(f"{made.page.as_uri()}{before[0]}")
    again.wait_for("document.querySelector('#pair-facts')?.textContent.includes('the pinned cell')")
    settle(again)
    assert again.evaluate(view) == before
    assert again.errors == []


def test_the_copied_command_runs_these_cells(page, made):
    def copied():
        page.click("#copy-command")
        page.wait_for("document.getElementById('copy-command').textContent == 'Copied'")
        return shlex.split(page.evaluate("document.getElementById('copy-command').dataset.copied"))

    def cells(command):
        assert command[:2] == ["rcray", "sweep"]
        for other in ("plan", "show-config"):
            store = ["--store", str(made.store.root)] if other == "plan" else []
            done = CliRunner().invoke(app, [other, *command[2:], *store, "--json"])
            assert done.exit_code == 0, done.output
            found = {row["run_id"] for row in json.loads(done.stdout)}
        return found

    assert cells(copied()) == {cell.run_id for cell in made.cells}
    page.click(f"#table tr[data-key='{made.keys[1]}'] .name")
    page.click(f"#table tr[data-key='{made.keys[4]}'] .name")
    settle(page)
    page.wait_for("document.getElementById('copy-command').textContent == 'Copy command'")
    assert cells(copied()) == {*made.rows[1].setting.run_ids, *made.rows[4].setting.run_ids}


def test_a_failed_cell_shows_its_error(page, made):
    said = page.evaluate(f"document.querySelector('[data-error=\"{made.failed.run_id}\"]').textContent")
    assert f"ran out of luck {HOSTILE}" in said
    put(page, "filter", "failed")
    assert page.evaluate("document.querySelectorAll('#table tr[data-key]').length") == 1


@pytest.mark.parametrize(("look", "width"), [("light", 1400), ("dark", 1400), ("narrow", 420)])
def test_it_looks_right_everywhere(page, made, tmp_path, look, width):
    page.resize(width, 1000, mobile=look == "narrow")
    page.prefer(scheme="dark" if look == "dark" else "light")
    settle(page)
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(int(part) for part in background[4:-1].split(",")[:3]) < 200) == (look == "dark")
    drawn = "[...document.querySelectorAll('.plot > svg')].map((s) => s.getBoundingClientRect().width)"
    assert len(page.evaluate(drawn)) == 7 and min(page.evaluate(drawn)) > 200
    assert page.screenshot(tmp_path / f"{look}.png", whole=True).stat().st_size > 60_000
