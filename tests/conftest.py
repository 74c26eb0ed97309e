"""What tests share: one tiny model per session, and small runs on it."""

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
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


def _once(factory: pytest.TempPathFactory, name: str, build: Callable[[Path], object]) -> Path:
    """A directory that one of pytest's workers builds; each gets a copy of its own, which its tests may write to."""
    base = factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / f"shared-{name}"
    with FileLock(f"{shared}.lock"):
        if not shared.exists():
            started = shared.with_suffix(".part")
            build(started)
            started.rename(shared)
    return shutil.copytree(shared, factory.mktemp(name) / "cache")


@pytest.fixture(scope="session")
def model_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache directory that holds tiny-neox, built once."""

    def build(cache: Path) -> None:
        import torch

        from rcray.models.tiny import tiny_model_dir

        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        tiny_model_dir("tiny-neox", cache)
        torch.set_num_threads(threads)

    return _once(tmp_path_factory, "models", build)


@pytest.fixture(scope="session")
def quick_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with all three architectures after two steps of warm-up: enough to load and run."""

    def build(cache: Path) -> None:
        from rcray.models import tiny

        with pytest.MonkeyPatch.context() as patch:
            quick = {name: replace(recipe, warm_up_steps=2) for name, recipe in tiny.TINY_MODELS.items()}
            patch.setattr(tiny, "TINY_MODELS", quick)
            for name in quick:
                tiny.tiny_model_dir(name, cache).rename(cache / name)

    return _once(tmp_path_factory, "quick", build)


@pytest.fixture
def store(tmp_path: Path, model_cache: Path) -> Store:
    """An empty store whose cache already has the tiny model."""
    opened = Store.open(tmp_path / "store")
    shutil.copytree(model_cache, opened.cache)
    return opened


@pytest.fixture
def rcray(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., Any]:
    """The command, in a directory of its own: exit code, stdout, stderr."""
    from rcray import cli

    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["rcray", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        shown = capsys.readouterr()
        assert "Traceback" not in shown.err
        return int(ended.value.code or 0), shown.out, shown.err

    return run
