"""Tests in a real browser: `make test-browser`. They are skipped where there is no browser, and only there.

Where RCRAY_NEEDS_BROWSER is set, nothing is skipped: without a browser there is then no run at all.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rcray.store import Store
from rcray.sweep.grid import Cell
from tests.browser.chromium import Chromium, Page, find_chromium
from tests.browser.exploring import Made, serve
from tests.report import runs
from tests.report.explored import write_explored

HERE = Path(__file__).parent
NO_BROWSER = "no Chromium is on the path; Debian's package is `chromium`"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ours = [item for item in items if HERE in item.path.parents]
    missing = find_chromium() is None
    if ours and missing and os.environ.get("RCRAY_NEEDS_BROWSER"):
        raise pytest.UsageError(f"RCRAY_NEEDS_BROWSER is set, and {NO_BROWSER}")
    for item in ours:
        item.add_marker(pytest.mark.browser)
        if missing:
            item.add_marker(pytest.mark.skip(reason=NO_BROWSER))


@pytest.fixture
def browser() -> Iterator[Chromium]:
    with Chromium() as opened:
        yield opened


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("made"))


@pytest.fixture
def page(made: Made, browser: Chromium) -> Iterator[Page]:
    """The page to explore, drawn; at the end it has asked nobody and said no error."""
    opened = browser.open(made.page)
    opened.wait_for("document.body.dataset.ready == 'yes' && document.querySelectorAll('#worst-list button').length")
    yield opened
    assert opened.errors == [] and opened.requested_hosts() == set()
    assert opened.evaluate("document.title") == made.experiment.title, "no text of the store was run"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[str, Store, list[Cell]]]:
    """Two cells on a server, one of them finished: its address, the store, the cells."""
    store, experiment = Store.open(tmp_path / "store"), runs.quickstart()
    cells = runs.cells_of(experiment)[:2]
    write_explored(store, cells[0])
    with serve(store, experiment, cells) as address:
        yield address, store, cells
