"""What deliveries are tried on."""

from pathlib import Path

import pytest

from rcray.store import Store
from tests.track.in_memory import MemoryTracker


@pytest.fixture
def empty_store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store")


@pytest.fixture
def tracker() -> MemoryTracker:
    return MemoryTracker()
