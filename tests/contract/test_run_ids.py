"""Run ids never change: a store made by an earlier version is found again, cell by cell.

golden/run_ids.json holds every cell of every shipped experiment, by its label, in order. A new experiment is added to
it; an id that is there already is never replaced, or finished runs would be trained a second time. The one exception
is a change of what the preset `official` says: cells under it are then other runs, because their content is another.
"""

import json
from pathlib import Path

import pytest

from rcray.config import load_experiment
from rcray.sweep.grid import expand

GOLDEN = json.loads((Path(__file__).parent / "golden" / "run_ids.json").read_text())
EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.mark.parametrize("name", sorted({path.stem for path in EXPERIMENTS.glob("*.yaml")} | set(GOLDEN)))
def test_every_cell_keeps_its_run_id(name):
    cells = expand(load_experiment(EXPERIMENTS / f"{name}.yaml"))
    assert [(cell.label, cell.run_id) for cell in cells] == list(GOLDEN[name].items())
