"""What tests share: one tiny model per session, and small runs on it."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import settings

from rcray.store import Store

# Nothing here may reach for a hub, and nothing a user has set may steer a test.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"  # tests run side by side; set before torch is imported
for name in ("MLFLOW_TRACKING_URI", "RAY_ADDRESS"):
    os.environ.pop(name, None)


settings.register_profile("rcray", deadline=None)  # a busy machine is no finding
settings.load_profile("rcray")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """An order for two workers: what may take longest first, so that the short ones fill up the end."""
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> tuple[bool, float]:
    limit = item.get_closest_marker("timeout")
    return item.get_closest_marker("ray") is None, -limit.args[0] if limit else 0.0


@pytest.fixture(scope="session")
def model_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache directory that holds tiny-neox, built once."""
    import torch

    from rcray.models.tiny import tiny_model_dir

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    cache = tmp_path_factory.mktemp("shared") / "cache"
    tiny_model_dir("tiny-neox", cache)
    torch.set_num_threads(threads)
    return cache


@pytest.fixture(scope="session")
def quick_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with all three architectures after two steps of warm-up: enough to load and run."""
    from rcray.models import tiny

    cache = tmp_path_factory.mktemp("quick-cache")
    with pytest.MonkeyPatch.context() as patch:
        quick = {name: replace(recipe, warm_up_steps=2) for name, recipe in tiny.TINY_MODELS.items()}
        patch.setattr(tiny, "TINY_MODELS", quick)
        for name in quick:
            built = tiny.tiny_model_dir(name, cache)
            built.rename(cache / name)
    return cache


@pytest.fixture
def store(tmp_path: Path, model_cache: Path) -> Store:
    """An empty store whose cache already has the tiny model."""
    opened = Store.open(tmp_path / "store")
    shutil.copytree(model_cache, opened.cache)
    return opened
