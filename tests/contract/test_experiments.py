"""Every shipped experiment parses, expands, and its cells survive a trip through YAML."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from rcray.cli.shared import only_cell
from rcray.config import RunConfig, load_experiment, run_id
from rcray.config.load import read_yaml
from rcray.errors import ConfigError
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
def test_the_choice_that_train_names_leaves_one_cell(path):
    """As it stands in the error: a person copies it."""
    last = expand(load_experiment(path))[-1]
    with pytest.raises(ConfigError, match="and this command takes one") as refused:
        only_cell(path, None)
    if path.name == "displacement.yaml":  # other cells have settings that this one's objective has not
        assert refused.value.fix == f"run one of them by `rcray sweep {path} --only {last.run_id}`"
        return
    words = shlex.split(refused.value.fix.partition(" with ")[2].rpartition("; or ")[0])
    assert words[::2] == ["--set"] * (len(words) // 2)
    assert only_cell(path, words[1::2])[1].run_id == last.run_id


@by_file
def test_written_settings_arrive(path):
    """Guards against a setting that a preset or a default would quietly replace."""

    def check(written, resolved, where):
        for name, value in written.items():
            actual = resolved[name]
            if isinstance(actual, dict):
                short = {"calibration": "enabled"}.get(name, "name")
                check(value if isinstance(value, dict) else {short: value}, actual, f"{where}.{name}")
            else:
                assert actual == pytest.approx(value) if isinstance(actual, float) else actual == value, (
                    f"{where}.{name}"
                )

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


def test_the_list_of_experiments_is_true():
    """Every file has its row, with its number of cells."""
    text = (ROOT / "experiments" / "README.md").read_text()
    rows = re.findall(r"^\| ([\w.-]+\.yaml) \|.*?\| (\d+) \|", text, re.MULTILINE)
    assert {name: int(count) for name, count in rows} == {
        path.name: len(expand(load_experiment(path))) for path in FILES
    }


PUBLISHED = {
    "main": ("mistral-7b", "qwen2.5-7b"),
    "pythia": ("pythia-2.8b",),
    "hh": ("mistral-7b",),
    "ema": ("pythia-2.8b",),
    "epochs": ("mistral-7b",),
    "dynamics-410m": ("pythia-410m",),
    "head-vs-full": ("mistral-7b",),
    "alpaca-eval": ("pythia-2.8b",),
    "runtime": ("mistral-7b", "pythia-2.8b", "pythia-410m"),
}
#: The paper's rates, global batch and the code's micro-batches and beta, once more and by hand.
SETTINGS = {
    "pythia-410m": ("full", 6e-7, 4, 1.0),
    "pythia-2.8b": ("qlora", 1e-4, 4, 1.0),
    "mistral-7b": ("qlora", 3e-7, 1, 2.0),
    "qwen2.5-7b": ("qlora", 5e-7, 1, 2.0),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_grids_have_the_published_settings(name):
    cells = expand(load_experiment(ROOT / "experiments" / f"{name}.yaml"))
    assert {cell.config.model.name for cell in cells} == set(PUBLISHED[name])
    for cell in cells:
        config = cell.config
        method, rate, micro_batch, beta = SETTINGS[config.model.name]
        assert (config.model.method, config.train.learning_rate) == (method, rate)
        assert (config.train.batch_size, config.train.micro_batch_size) == (32, micro_batch)
        assert (config.train.schedule, config.train.warmup_steps, config.train.seed) == ("constant", 0, 42)
        assert (config.likelihood, config.calibration.clip) == ("mean", False)
        assert (config.data.max_length, config.data.max_prompt_length) == (1024, 512)
        if config.objective.name in ("dpo", "simpo", "ti-dpo"):
            assert config.objective.beta == beta


def test_the_quickstart_has_the_main_tables_objectives():
    names = [
        list(dict.fromkeys(cell.config.objective.name for cell in expand(load_experiment(ROOT / "experiments" / file))))
        for file in ("main.yaml", "quickstart.yaml")
    ]
    assert names[0] == names[1]
