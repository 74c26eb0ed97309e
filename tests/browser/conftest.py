"""Tests in a real browser: `make test-browser`. They are skipped where there is no browser, and only there."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.chromium import Chromium, find_chromium

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = find_chromium() is None
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.browser)
            if missing:
                item.add_marker(pytest.mark.skip(reason="no Chromium on the path; Debian's package is `chromium`"))


@pytest.fixture
def browser() -> Iterator[Chromium]:
    with Chromium() as opened:
        yield opened
