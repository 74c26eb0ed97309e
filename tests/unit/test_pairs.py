"""The section `data`: what is allowed, what is part of a run, and which rows are held out."""

import json

import pytest

from rcray.cli import app
from rcray.config import build_run, identity, run_id
from rcray.config.data import DataConfig
from rcray.config.schema import RunConfig
from rcray.data.pairs import Pair, Skipped, load_pairs
from rcray.errors import ConfigError


def data(**settings):
    return build_run({"data": settings}, {}, "t").data


def key(**settings):
    return run_id(build_run({"data": settings}, {}, "t"))


def test_a_source_fills_in_what_it_knows():
    assert (data().train_pairs, data().split) == (1600, None)
    filled = data(name="ultrafeedback")
    assert (filled.split, filled.eval_split, filled.train_pairs) == ("train_prefs", "test_prefs", None)
    filled = data(name="hh")
    assert (filled.subset, filled.split, filled.eval_split) == ("merged", "train", "test")
    assert data(name="owner/pairs").split == data(name="./pairs").split == "train"
    assert data(name="pairs.jsonl").split is None
    assert build_run({"data": "hh"}, {"data.train_pairs": 64}, "t").data.train_pairs == 64


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"name": "ultrafedback"}, ["data.name", "did you mean 'ultrafeedback'", "./ultrafedback"]),
        ({"name": "HH"}, ["data.name", "did you mean 'hh'", "synthetic"]),
        ({"name": "synthetic", "split": "train"}, ["split has no meaning for 'synthetic'"]),
        ({"name": "synthetic", "columns": {"prompt": "q"}}, ["columns has no meaning"]),
        ({"name": "synthetic", "train_pairs": None}, ["no end"]),
        ({"name": "ultrafeedback", "subset": "x"}, ["subset has no meaning"]),
        ({"name": "hh", "subset": "helpfull-base"}, ["did you mean 'helpful-base'", "merged"]),
        ({"name": "hh", "split": "test"}, ["eval_split 'test' is what is trained on"]),
        ({"name": "pairs.csv", "eval_split": "test"}, ["eval_split has no meaning for 'pairs.csv'"]),
        ({"name": "./pairs", "revision": "main"}, ["revision has no meaning"]),
        ({"name": "./pairs", "split": None}, ["split null"]),
        ({"name": "./pairs", "columns": {"promt": "q"}}, ["data.columns.promt", "did you mean 'prompt'"]),
        ({"name": "hh", "train_pairs": True}, ["train_pairs", "true is not a number"]),
        ({"name": "hh", "train_pairs": 0}, ["train_pairs", "greater than or equal to 1"]),
        ({"name": "hh", "bad_rows": "dorp"}, ["data.bad_rows", "did you mean 'drop'"]),
        ({"name": "hh", "bucketing": "lengths"}, ["data.bucketing", "did you mean 'length'"]),
        ({"name": ""}, ["data.name"]),
        ({"name": 3}, ["data.name"]),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(settings, expected):
    with pytest.raises(ConfigError) as caught:
        data(**settings)
    for part in expected:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "same"),
    [
        ({"name": "hh"}, {"name": "hh", "subset": "merged", "split": "train"}),
        ({"name": "hh"}, {"name": "hh", "difficulty": "hard"}),
        ({"name": "hh"}, {"name": "hh", "seed": 3}),  # the held-out rows are given
        ({"name": "hh"}, {"name": "hh", "path": "copies/hh"}),
        ({}, {"bad_rows": "fail"}),
        ({}, {"bucketing": "none"}),
    ],
    ids=str,
)
def test_what_has_no_effect_is_no_part_of_a_run(settings, same):
    assert key(**settings) == key(**same)


@pytest.mark.parametrize(
    ("settings", "other"),
    [
        ({}, {"difficulty": "hard"}),
        ({}, {"bucketing": "length"}),
        ({}, {"name": "hh"}),
        ({"name": "hh"}, {"name": "hh", "subset": "helpful-base"}),
        ({"name": "hh"}, {"name": "hh", "train_pairs": 100}),
        ({"name": "hh"}, {"name": "hh", "revision": "abc"}),
        ({"name": "hh"}, {"name": "hh", "eval_split": None}),
        ({"name": "./pairs"}, {"name": "./pairs", "seed": 1}),
        ({"name": "./pairs"}, {"name": "./pairs", "columns": {"prompt": "q"}}),
    ],
    ids=str,
)
def test_what_has_an_effect_is(settings, other):
    assert key(**settings) != key(**other)


def test_the_new_sources_left_synthetic_runs_as_they_were():
    """What a stored run of the quickstart says about its data: another dict here orphans it."""
    assert data(eval_pairs=256).content() == {
        "name": "synthetic",
        "difficulty": "medium",
        "train_pairs": 1600,
        "eval_pairs": 256,
        "seed": 0,
        "max_length": 1024,
        "max_prompt_length": 512,
    }


@pytest.mark.parametrize("name", ["synthetic", "ultrafeedback", "hh", "owner/pairs", "./pairs", "pairs.parquet"])
def test_a_dump_is_read_back_as_the_same_run(name):
    config = build_run({"data": name}, {}, "t")
    again = RunConfig.model_validate(config.model_dump(mode="json"))
    assert again == config and identity(again) == identity(config)


def test_steps_are_unknown_until_the_data_is_read():
    config = build_run({"data": "ultrafeedback"}, {}, "t")
    assert config.total_steps is None
    assert build_run({"data": {"name": "hh", "train_pairs": 100}}, {}, "t").total_steps == 3


def test_a_size_only_the_data_knows_is_estimated_or_a_question_mark(tmp_path):
    from rich.console import Console
    from typer.testing import CliRunner

    from rcray.aggregate.collect import collect
    from rcray.config import Experiment
    from rcray.store import Store
    from rcray.sweep.grid import expand
    from rcray.sweep.ledger import build_ledger, ledger_table

    file = tmp_path / "e.yaml"
    file.write_text("name: e\nrun: {data: ultrafeedback}\n")
    arguments = ["plan", str(file), "--store", str(tmp_path / "none")]
    shown = CliRunner().invoke(app, arguments, env={"COLUMNS": "120"})
    assert shown.exit_code == 0 and "1,910" in shown.stdout, "the published size of the set stands for it"
    (row,) = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert (row["steps"], row["pairs"]) == (1910, 61135)
    cells = expand(Experiment(name="e", run={"data": "ultrafeedback"}))
    console = Console(width=120)
    with console.capture() as captured:
        console.print(ledger_table(build_ledger(cells, Store.at(tmp_path / "store"), stopped={}), "t"))
    assert "0/?" in captured.get()
    (result,) = collect(Store.open(tmp_path / "store"), cells)
    assert (result.status, result.total_steps) == ("pending", None)


# -- the held-out share


def write(path, count, prompts=None):
    rows = ({"prompt": f"q{i % (prompts or count)}", "chosen": f"a{i}", "rejected": "no"} for i in range(count))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def rows(stream):
    return {item.row for item in stream if isinstance(item, Pair)}


@pytest.mark.parametrize(("count", "wanted", "held"), [(500, 20, 20), (100, 128, 10), (8, 128, 2), (2, 128, 2)])
def test_the_share_is_bounded_and_disjoint(tmp_path, count, wanted, held):
    splits = load_pairs(DataConfig(name=write(tmp_path / "a.jsonl", count), eval_pairs=wanted))
    train, held_out = rows(splits.train), rows(splits.held_out)
    assert len(held_out) == held
    assert len(train) == count - held and not train & held_out
    assert rows(splits.held_out) == held_out, "the same rows every time"


def test_the_share_depends_on_the_seed_alone(tmp_path):
    name = write(tmp_path / "a.jsonl", 300)
    drawn = [rows(load_pairs(DataConfig(name=name, seed=seed)).held_out) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_no_prompt_is_on_both_sides(tmp_path):
    splits = load_pairs(DataConfig(name=write(tmp_path / "a.jsonl", 300, prompts=100), eval_pairs=10))
    items = list(splits.train)
    held_out = {item.prompt for item in splits.held_out}
    assert not held_out & {item.prompt for item in items if isinstance(item, Pair)}
    skipped = [item for item in items if isinstance(item, Skipped)]
    assert {(item.kind, item.bad) for item in skipped} == {("dropped held out", False)}
    assert len(skipped) + len(rows(items)) + 10 == 300
