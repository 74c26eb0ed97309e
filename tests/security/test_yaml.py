"""YAML is data: no tag makes an object, no alias makes a bomb, wherever YAML comes in."""

import time
from pathlib import Path

import pytest

from rcray.config.load import load_experiment, parse_overrides, read_yaml
from rcray.errors import ConfigError
from rcray.evaluate.command import find_runs
from rcray.store import Store
from rcray.sweep.placement import read_cluster_file

TAGS = [
    "!!python/object/apply:pathlib.Path.touch [MARK]",
    "!!python/object/apply:os.system ['touch MARK']",
    "!!python/object/new:subprocess.Popen [['touch', MARK]]",
    "!!python/name:os.system",
    "!!python/module:os",
    "!!python/tuple [1, 2]",
    "!!python/object:rcray.store.Store {root: /}",
    "!function os.system",
]


@pytest.mark.parametrize("tag", TAGS)
def test_no_tag_makes_an_object(tmp_path, tag):
    mark = tmp_path / "mark"
    text = tag.replace("MARK", str(mark))
    file = tmp_path / "a.yaml"
    for content in (
        f"name: {text}",
        f"name: x\nrun: {{model: {text}}}",
        f"name: x\ngrid: {{objective: [{text}]}}",
        text,
    ):
        file.write_text(content)
        for read in (read_yaml, load_experiment, read_cluster_file):
            with pytest.raises(ConfigError, match="not valid YAML"):
                read(file)
    (tmp_path / "over.yaml").write_text("base: a.yaml\nname: x\n")
    with pytest.raises(ConfigError, match="not valid YAML"):
        load_experiment(tmp_path / "over.yaml")
    with pytest.raises(ConfigError, match="not valid YAML"):
        parse_overrides([f"train.seed={text}"])
    run = tmp_path / "store" / "runs" / "abc"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(f"model: {text}")
    with pytest.raises(ConfigError, match="not valid YAML"):
        find_runs("abc", Store.at(tmp_path / "store"))
    assert not mark.exists()


def bomb(levels: int) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, levels)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (bomb(9), "more than"),
        ("name: &a [*a]", "alias inside"),
        ("&a {name: x, run: *a}", "alias inside"),
        ("name: x\nrun: &r {train: *r}", "alias inside"),
        ("name: x\nname: y", "given twice"),
        ("[" * 5000, "recursion|flow|expected"),
    ],
    ids=["bomb", "self", "whole", "run", "twice", "deep"],
)
def test_no_alias_makes_a_bomb(tmp_path, text, said):
    file = tmp_path / "a.yaml"
    file.write_text(text)
    started = time.monotonic()
    with pytest.raises(ConfigError, match=said) as caught:
        load_experiment(file)
    assert time.monotonic() - started < 20
    assert len(str(caught.value)) < 1000


def test_what_is_shown_of_many_aliases_is_short(tmp_path):
    """Under the limit of a file, a value may still be long to write out."""
    file = tmp_path / "a.yaml"
    file.write_text(f"{bomb(4)}\nname: x\nrun: {{train: {{seed: *a3}}}}\n")
    with pytest.raises(ConfigError) as caught:
        load_experiment(file)
    assert len(str(caught.value)) < 2500


def test_aliases_of_ordinary_files_work():
    assert read_yaml(Path(__file__).parents[2] / "cluster.yaml")["available_node_types"]["gpu-spot"]
