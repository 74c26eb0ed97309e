"""Every shipped experiment parses, expands, and its cells survive a trip through YAML."""

from pathlib import Path

import pytest
import yaml

from rcray.config import RunConfig, load_experiment, run_id
from rcray.config.load import read_yaml
from rcray.sweep.grid import expand

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "experiments").glob("*.y*ml"))

by_file = pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)


def test_there_are_experiments():
    assert "quickstart.yaml" in [path.name for path in FILES]


@by_file
def test_cells_round_trip_through_yaml(path):
    cells = expand(load_experiment(path))
    assert len({cell.run_id for cell in cells}) == len(cells) > 0
    for cell in cells:
        text = yaml.safe_dump(cell.config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
        again = RunConfig.model_validate(yaml.safe_load(text))
        assert again == cell.config, cell.label
        assert run_id(again) == cell.run_id, cell.label


@by_file
def test_labels_tell_the_cells_apart(path):
    labels = [cell.label for cell in expand(load_experiment(path))]
    assert len(set(labels)) == len(labels)


@by_file
def test_written_settings_arrive(path):
    """Guards against a setting that a preset or a default would quietly replace."""

    def check(written, resolved, where):
        for name, value in written.items():
            found = resolved[name]
            if isinstance(found, dict):
                short = {"calibration": "enabled"}.get(name, "name")
                check(value if isinstance(value, dict) else {short: value}, found, f"{where}.{name}")
            else:
                assert found == pytest.approx(value) if isinstance(found, float) else found == value, f"{where}.{name}"

    experiment = load_experiment(path)
    varied = {axis.partition(".")[0] for axis in [*experiment.grid, *(p for cell in experiment.cells for p in cell)]}
    fixed = {name: value for name, value in experiment.run.items() if name not in varied}
    for cell in expand(experiment):
        check(fixed, cell.config.model_dump(mode="json"), "run")


@by_file
def test_a_file_says_what_it_is(path):
    content = read_yaml(path)
    assert content["name"] == path.stem, "the store's directory is found by the file's name"
    assert content.get("title") or content.get("base")
