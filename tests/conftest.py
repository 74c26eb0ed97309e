"""What tests share: one tiny model per session, and small runs on it."""

import os
import shutil
from pathlib import Path

import pytest

from rcray.store import Store

# Nothing here may reach for a hub, and nothing a user has set may steer a test.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"  # tests run side by side; set before torch is imported
for name in ("MLFLOW_TRACKING_URI", "RAY_ADDRESS"):
    os.environ.pop(name, None)


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


@pytest.fixture
def store(tmp_path: Path, model_cache: Path) -> Store:
    """An empty store whose cache already has the tiny model."""
    opened = Store.open(tmp_path / "store")
    shutil.copytree(model_cache, opened.cache)
    return opened
