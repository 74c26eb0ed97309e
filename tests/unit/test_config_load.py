"""Experiment files and `--set`: what is read, what is inherited, what is refused."""

import pytest

from rcray.config import build_run, load_experiment, parse_overrides
from rcray.config.load import merge, set_path
from rcray.errors import ConfigError


@pytest.fixture
def write(tmp_path):
    def write_file(name, text):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write_file


def refused(path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_experiment(path)
    assert path.name in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 12
    return str(caught.value)


# -- files


def test_a_plain_file(write):
    experiment = load_experiment(write("a.yaml", "name: a\nrun: {objective: cpo}\ngrid: {train.seed: [1, 2]}\n"))
    assert (experiment.name, experiment.run, experiment.grid) == ("a", {"objective": "cpo"}, {"train.seed": [1, 2]})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name: [a\n", ["not valid YAML", "line 1"]),
        ("name: a\n\trun: {}\n", ["not valid YAML", "line 2"]),
        ("- a\n- b\n", ["expected a mapping", "a list"]),
        ("just words\n", ["expected a mapping", "a str"]),
        ("", ["expected a mapping", "empty"]),
        ("# only a comment\n", ["empty"]),
        (b"\xff\xfen\x00a\x00", ["UTF-8"]),
        (b"name: caf\xe9\n", ["UTF-8"]),
        ("name: !!python/object:os.PathLike {}\n", ["not valid YAML", "python/object"]),
        ("name: a\nrun: {x: 2026-99-99}\n", ["not valid YAML", "month"]),
        ("name: a\nrun: " + "[" * 1000, ["not valid YAML"]),
        ("name: a\nrun:\n  train: {seed: 1}\n  train: {epochs: 2}\n", ["'train' is given twice", "line 4"]),
        ("run: {}\n", ["name: is missing"]),
        ("name: a b\n", ["name", "'a b'"]),
        ("name: ../../etc\n", ["name", "'../../etc'"]),
        ("name: 3\n", ["name", "3", "string"]),
        ("name: a\nrum: {}\n", ["rum: unknown field", "did you mean 'run'"]),
        ("name: a\nrun: [x]\n", ["run", "['x']", "mapping"]),
        ("name: a\ngrid: [x]\n", ["grid", "['x']", "mapping"]),
        ("name: a\ngrid: {objective: dpo}\n", ["grid.objective", "'dpo'", "list"]),
        ("name: a\ngrid: {objective: }\n", ["grid.objective", "None", "list"]),
        ("name: a\ngrid: {objective: []}\n", ["grid", "'objective' has no values"]),
        ("name: a\ncells: {objective: dpo}\n", ["cells", "list"]),
        ("name: a\ncells: [dpo]\n", ["cells.0", "'dpo'", "mapping"]),
        ("name: a\nexclude: {objective: dpo}\n", ["exclude", "list"]),
        ("name: a\ncells: [{objective: dpo}]\ngrid: {objective: [cpo]}\n", ["cells.0.objective", "axis"]),
    ],
    ids=lambda value: repr(value)[:40] if not isinstance(value, list) else "",
)
def test_refused_files(write, text, expected):
    message = refused(write("bad.yaml", text))
    for part in expected:
        assert part in message


def test_a_tag_cannot_run_code(write, tmp_path):
    target = tmp_path / "made"
    refused(write("bad.yaml", f'name: !!python/object/apply:os.mkdir ["{target}"]\n'))
    assert not target.exists()


def test_anchors_and_merge_keys_still_work(write):
    """The check for fields written twice looks at the file, before `<<` brings the base's fields in."""
    text = """
name: a
run:
  train: &slow {seed: 1, epochs: 3}
cells:
  - train: &slower {<<: *slow, seed: 2}
  - train: {<<: *slower, seed: 3}
"""
    experiment = load_experiment(write("a.yaml", text))
    assert experiment.cells == [{"train": {"seed": 2, "epochs": 3}}, {"train": {"seed": 3, "epochs": 3}}]


def test_a_missing_file_lists_its_neighbours_nearest_first(write, tmp_path):
    for name in ("aaa.yaml", "quickstart.yaml", "table1.yml", "notes.txt"):
        write(name, "name: a\n")
    message = refused(tmp_path / "quickstrat.yaml")
    assert "no such file" in message
    assert "files there: quickstart.yaml, aaa.yaml, table1.yml" in message
    assert "notes.txt" not in message


def test_a_missing_file_among_hundreds_still_fits_one_screen(write, tmp_path):
    for i in range(200):
        write(f"experiment-with-a-long-name-{i}.yaml", "name: a\n")
    assert len(refused(tmp_path / "nothing.yaml")) < 1000


def test_a_directory_is_refused(tmp_path):
    assert "is a directory, not an experiment" in refused(tmp_path)


# -- base


def test_base_settings_are_inherited_and_cells_replaced(write):
    write(
        "base.yaml",
        "name: b\ntitle: T\nrun: {train: {seed: 1, epochs: 2}, likelihood: mean}\ngrid: {objective: [dpo]}\n",
    )
    child = load_experiment(
        write("child.yaml", "name: c\nbase: base.yaml\nrun: {train: {seed: 5}}\ngrid: {train.seed: [7]}\n")
    )
    assert child.name == "c"
    assert child.title == "T"
    assert child.run == {"train": {"seed": 5, "epochs": 2}, "likelihood": "mean"}
    assert child.grid == {"train.seed": [7]}
    heir = load_experiment(write("heir.yaml", "name: d\nbase: base.yaml\n"))
    assert heir.grid == {"objective": ["dpo"]}


@pytest.mark.parametrize("run", ["", "run:\n"])
def test_base_or_child_may_say_nothing_of_the_run(write, run):
    write("base.yaml", f"name: b\n{run}")
    assert load_experiment(write("child.yaml", "name: c\nbase: base.yaml\nrun: {objective: cpo}\n")).run == {
        "objective": "cpo"
    }
    write("full.yaml", "name: b\nrun: {objective: cpo}\n")
    assert load_experiment(write("silent.yaml", f"name: c\nbase: full.yaml\n{run}")).run == {
        "objective": {"name": "cpo"}
    }


def test_a_field_on_top_of_a_short_form_keeps_its_objective(write):
    """Not DPO with beta 0.3, which is what dropping `cpo` would quietly train."""
    write("base.yaml", "name: b\nrun: {objective: cpo, calibration: true}\n")
    text = "name: c\nbase: base.yaml\nrun: {objective: {beta: 0.3}, calibration: {clip: false}}\n"
    config = build_run(load_experiment(write("child.yaml", text)).run, {}, "t")
    assert (config.objective.name, config.objective.beta) == ("cpo", 0.3)
    assert (config.calibration.enabled, config.calibration.clip) == (True, False)


def test_a_short_form_on_top_replaces_the_section(write):
    write("base.yaml", "name: b\nrun: {objective: {name: dpo, beta: 0.3}}\n")
    child = load_experiment(write("child.yaml", "name: c\nbase: base.yaml\nrun: {objective: ipo}\n"))
    assert build_run(child.run, {}, "t").objective.name == "ipo"


def test_two_levels_of_base_are_refused(write):
    write("one.yaml", "name: one\n")
    write("two.yaml", "name: two\nbase: one.yaml\n")
    path = write("three.yaml", "name: three\nbase: two.yaml\n")
    with pytest.raises(ConfigError, match=r"two\.yaml: is itself built on 'one\.yaml'.*one level"):
        load_experiment(path)


def test_base_is_found_beside_its_file_not_in_the_working_directory(write, tmp_path, monkeypatch):
    write("base.yaml", "name: b\nrun: {objective: cpo}\n")
    path = write("child.yaml", "name: c\nbase: base.yaml\n")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert load_experiment(path).run == {"objective": {"name": "cpo"}}


@pytest.mark.parametrize(
    ("base", "child", "expected"),
    [
        ("name: b\n", "name: c\nbase: nothing.yaml\n", "nothing.yaml: no such file"),
        ("name: b\n", "name: c\nbase: [base.yaml]\n", "base: ['base.yaml'] is not a file name"),
        ("name: b\nrun: [x]\n", "name: c\nbase: base.yaml\n", "base.yaml: run: ['x'] is not a mapping"),
        ("name: b\n", "name: c\nbase: base.yaml\nrun: [x]\n", "child.yaml: run: ['x'] is not a mapping"),
        ("- b\n", "name: c\nbase: base.yaml\n", "base.yaml: expected a mapping"),
    ],
)
def test_a_wrong_base_is_named(write, base, child, expected):
    write("base.yaml", base)
    with pytest.raises(ConfigError) as caught:
        load_experiment(write("child.yaml", child))
    assert expected in str(caught.value)


# -- --set


def test_values_are_yaml():
    given = ["train.seed=7", "calibration.enabled=true", "objective=cpo", "model.revision=null", "a.b=[1, 2]", "c=x=y"]
    assert parse_overrides(given) == {
        "train.seed": 7,
        "calibration.enabled": True,
        "objective": "cpo",
        "model.revision": None,
        "a.b": [1, 2],
        "c": "x=y",
    }


@pytest.mark.parametrize("text", ["1e-4", "1.0e-4", "0.0001", "1E-4"])
def test_scientific_notation_becomes_a_float(text):
    """YAML 1.1 reads 1e-4 as a string."""
    config = build_run({}, parse_overrides([f"objective.beta={text}", f"train.learning_rate={text}"]), "t")
    assert (config.objective.beta, config.train.learning_rate) == (1e-4, 1e-4)
    assert isinstance(config.objective.beta, float)


def test_the_last_of_two_equal_paths_wins():
    assert parse_overrides(["train.seed=1", " train.seed =2"]) == {"train.seed": 2}


@pytest.mark.parametrize("item", ["train.seed", "=3", "", "train..seed=3", ".seed=3", "train.=3"])
def test_malformed_overrides(item):
    with pytest.raises(ConfigError, match="FIELD=VALUE") as caught:
        parse_overrides([item])
    assert repr(item) in str(caught.value)


@pytest.mark.parametrize("item", ["a=[1", "a=!!python/object/apply:os.getcwd []"])
def test_an_override_that_is_not_yaml(item):
    with pytest.raises(ConfigError, match="not valid YAML"):
        parse_overrides([item])


# -- the two helpers


def test_merge_keeps_its_inputs():
    base, over = {"a": {"b": 1, "c": [1]}}, {"a": {"b": 2}, "d": 3}
    merged = merge(base, over)
    assert merged == {"a": {"b": 2, "c": [1]}, "d": 3}
    merged["a"]["c"].append(2)
    assert base == {"a": {"b": 1, "c": [1]}}


def test_set_path_opens_sections_without_touching_shared_ones():
    shared = {"seed": 1}
    target = {"train": shared, "objective": "cpo", "calibration": True}
    for path, value in (("train.seed", 2), ("objective.beta", 3), ("calibration.clip", False), ("new.deep.field", 4)):
        set_path(target, path, value)
    assert shared == {"seed": 1}
    assert target == {
        "train": {"seed": 2},
        "objective": {"name": "cpo", "beta": 3},
        "calibration": {"enabled": True, "clip": False},
        "new": {"deep": {"field": 4}},
    }
