"""The report page in a real browser, from file://: sorting, the way from a cell to its run, zoom, print, no network."""

from pathlib import Path

import pytest

from rcray.aggregate.command import Request, run_report
from rcray.aggregate.report import build_report
from rcray.store import Store
from tests.report import runs
from tests.report.test_samples_page import with_samples

ROOT = Path(__file__).parents[2]

COLUMN = """[...document.querySelectorAll('#table-results tbody tr:not(.group)')]
    .map((row) => row.cells[2].textContent)"""


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The page of a real quickstart, rebuilt from its ledger."""
    ledger = ROOT / "tests" / "report" / "quickstart-ledger"
    return run_report(Request(ledger=ledger, out=tmp_path_factory.mktemp("report")))


def numbers(texts):
    return [float(text.split(" ±")[0].replace("−", "-")) for text in texts]


def test_sort_a_table(report, browser):
    page = browser.open(report.html)
    before = numbers(page.evaluate(COLUMN))
    assert before != sorted(before)
    page.click("#table-results thead th:nth-child(3) button")
    assert numbers(page.evaluate(COLUMN)) == sorted(before, reverse=True)
    page.click("#table-results thead th:nth-child(3) button")
    assert numbers(page.evaluate(COLUMN)) == sorted(before)
    assert page.errors == []


def test_open_a_cells_run(report, browser):
    page = browser.open(report.html)
    target = page.evaluate("document.querySelector('#table-results td a.run').getAttribute('href')")
    run_id = target.removeprefix("#run-")
    assert run_id in {result.cell.run_id for result in report.results}
    assert page.evaluate(f"document.getElementById('run-{run_id}').open") is False
    page.click("#table-results td a.run")
    page.wait_for(f"document.getElementById('run-{run_id}').open")
    shown = page.evaluate(f"document.getElementById('run-{run_id}').innerText")
    assert "steps recorded" in shown
    page.click(f"#run-{run_id} details summary")
    assert "learning_rate" in page.evaluate(f"document.getElementById('run-{run_id}').innerText")
    assert page.errors == []


def test_zoom_and_let_go(report, browser):
    page = browser.open(report.html)
    page.click("figure .zoom")
    page.wait_for("document.getElementById('zoomed').open")
    assert page.evaluate("document.querySelector('#zoomed img').naturalWidth") > 100
    page.click("#zoomed")
    page.wait_for("!document.getElementById('zoomed').open")
    assert page.errors == []


@pytest.mark.parametrize(
    ("look", "width"), [("light", 1400), ("dark", 1400), ("print", 1000), ("phone", 420)], ids=lambda value: str(value)
)
def test_it_looks_right_everywhere(report, browser, tmp_path, look, width):
    page = browser.open(report.html)
    page.resize(width, 1000, mobile=look == "phone")
    page.prefer(scheme="dark" if look == "dark" else "light", medium="print" if look == "print" else "")
    wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wide <= 0, "nothing sticks out of the page"
    cut = "[...document.querySelectorAll('nav a')].filter((a) => a.getBoundingClientRect().right > innerWidth).length"
    assert look == "print" or page.evaluate(cut) == 0, "every chapter is in sight"
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    lightness = sum(int(part) for part in background[4:-1].split(",")[:3])
    assert (lightness < 200) == (look == "dark")
    if look != "print":
        assert page.evaluate("[...document.images].every((image) => image.complete)")
    assert page.screenshot(tmp_path / f"{look}.png", whole=True).stat().st_size > 20_000
    assert page.errors == []
    assert page.requested_hosts() == set()


def test_the_published_page(tmp_path, browser):
    written = run_report(Request(published=True, out=tmp_path / "published"))
    page = browser.open(written.html)
    assert "Mistral-7B" in page.text()
    assert page.evaluate("document.querySelectorAll('table.sortable').length") == 9
    assert page.errors == []
    assert page.requested_hosts() == set()


def test_samples_fold_and_flags_show_in_both_schemes(browser, tmp_path):
    experiment = runs.quickstart()
    cells = runs.cells_of(experiment)[:2]
    store = Store.open(tmp_path / "store")
    for cell in cells:
        with_samples(store, cell)
    page = browser.open(build_report(store, experiment, cells, figures=False).html)
    colours = set()
    for scheme in ("light", "dark"):
        page.prefer(scheme=scheme)
        assert "ork ork ork" in page.evaluate("document.querySelector('#samples details[open]').innerText")
        colours.add(page.evaluate("getComputedStyle(document.querySelector('#samples .chip.degenerate')).color"))
    assert len(colours) == 2
    closed = f"document.getElementById('samples-{cells[1].run_id}').open"
    assert page.evaluate(closed) is False
    page.click(f"#samples-{cells[1].run_id} summary span")
    page.wait_for(closed)
    assert page.errors == []
