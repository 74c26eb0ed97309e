"""The README is true: its commands exist, its tree names every file, its snippets run."""

import re
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from rcray.cli import app
from rcray.config import Experiment
from rcray.config.objectives import BUILT_IN
from rcray.config.objectives.names import NAMES, REFUSED, TRL
from rcray.sweep.grid import expand

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def commands():
    lines = [line.partition("#")[0].strip() for block in blocks("bash") for line in block.splitlines()]
    return [line for line in lines if line.startswith("rcray ")]


@pytest.mark.parametrize("line", commands())
def test_every_rcray_command_parses(line):
    name, *arguments = shlex.split(line)[1:]
    command = get_command(app).commands[name]  # type: ignore[attr-defined]
    command.make_context(name, arguments, resilient_parsing=False)  # parses options and arguments, runs nothing
    for argument in arguments:
        if argument.startswith("experiments/"):
            assert (ROOT / argument).is_file()


def test_make_targets_exist():
    targets = re.findall(r"^make (\w+)", "\n".join(blocks("bash")), re.MULTILINE)
    makefile = (ROOT / "Makefile").read_text()
    assert targets
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


def test_the_tree_names_every_module_and_nothing_else():
    tree = re.search(r"^```\n(rcray/\n.*?)^```", README, re.MULTILINE | re.DOTALL).group(1)
    named, folder = set(), ""
    for line in tree.splitlines():
        entry = re.match(r"( *)([\w./, ]+?)(?:  |$)", line)
        if entry is None or not entry.group(1):
            continue
        for name in entry.group(2).split(", "):
            if name.endswith("/"):
                folder = name
            else:
                named.add(("" if len(entry.group(1)) == 2 else folder) + name)
    modules = {str(path.relative_to(ROOT / "rcray")) for path in (ROOT / "rcray").rglob("*.py")}
    assert named == {module for module in modules if not module.endswith("__init__.py")}


def test_an_installed_package_has_its_data_files():
    """What is not Python is in a wheel only if a pattern of pyproject.toml names it."""
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    packed = {path for name, globs in patterns.items() for glob in globs for path in _files(name, glob)}
    others = {path for path in (ROOT / "rcray").rglob("*.*") if path.suffix not in (".py", ".pyc")}
    assert packed == others


def _files(package, pattern):
    return (ROOT / package.replace(".", "/")).glob(pattern)


def test_the_example_experiment_expands():
    example = next(block for block in blocks("yaml") if block.startswith("name: my-grid"))
    content = yaml.safe_load(example)
    assert (ROOT / "experiments" / content.pop("base")).is_file()
    cells = expand(Experiment.model_validate(content))
    assert len(cells) == 9  # dpo off and on, simpo off, three seeds each


def test_the_calibration_snippet_runs():
    import torch

    snippet = next(block for block in blocks("python") if "calibrate(loss_fn" in block)
    model = torch.nn.Module()
    model.lm_head = torch.nn.Linear(8, 16)
    log_probs = model.lm_head(torch.randn(4, 8)).log_softmax(-1)
    scope = {
        "model": model,
        "z_w": log_probs[:, 0],
        "z_l": log_probs[:, 1],
        "loss_fn": lambda z_w, z_l: -torch.nn.functional.logsigmoid(z_w - z_l),
    }
    exec(snippet, scope)
    assert model.lm_head.weight.grad.abs().sum() > 0


def test_the_readme_counts_the_zoo_and_names_every_loss_of_trl():
    assert f"the zoo: {len(BUILT_IN)} objectives" in README
    table = README.partition("TRL's `loss_type` | here")[2].partition("\n\n")[0]
    for name in {**NAMES, **REFUSED}:
        if name.startswith(TRL):
            assert re.search(rf"\b{name.removeprefix(TRL)}\b", table), name
