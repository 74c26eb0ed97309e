"""Made runs that several files look at."""

import shutil

import pytest

from rcray.aggregate.report import build_report
from rcray.store import Store
from tests.report import runs
from tests.report.explored import experiment, write_explored


@pytest.fixture(scope="session")
def swept(tmp_path_factory):
    """Twelve finished runs: three objectives, RC off and on, two seeds."""
    store = Store.open(tmp_path_factory.mktemp("explored"))
    cells = runs.cells_of(experiment())
    for cell in cells:
        write_explored(store, cell)
    built = build_report(store, experiment(), cells, figures=False, command=["rcray", "sweep", "my grid.yaml"])
    return store, cells, built


@pytest.fixture
def own(swept, tmp_path):
    """A copy that a test may change."""
    store, cells, _ = swept
    shutil.copytree(store.root, tmp_path / "store")
    return Store.open(tmp_path / "store"), cells
