"""Other names of objectives: what a run becomes under each of them, and what is refused."""

import json

import pytest
from typer.testing import CliRunner

from rcray.cli import app
from rcray.config import build_run, run_id
from rcray.config.objectives import BUILT_IN, BY_NAME
from rcray.config.objectives.names import NAMES, REFUSED
from rcray.config.schema import Experiment
from rcray.errors import ConfigError
from rcray.objectives import objective
from rcray.sweep.grid import expand


def run(objective, **settings):
    return build_run({"objective": objective, **settings}, {}, "test")


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_the_objective_that_it_stands_for(name):
    config, known = run(name), NAMES[name]
    assert config.objective.name == known.objective and name not in BY_NAME
    assert config.likelihood == (known.likelihood or "sum")
    for field, value in known.settings.items():
        assert getattr(config.objective, field) == value
    assert set(known.words.values()) <= {*BY_NAME[known.objective].model_fields, "divergence"}
    plain = {"name": known.objective, **known.settings}
    assert run_id(config) == run_id(run(plain, likelihood=config.likelihood))
    assert objective(name).params == config.objective


@pytest.mark.parametrize(
    ("given", "expected", "likelihood"),
    [
        ({"name": "trl/ipo", "beta": 0.3}, {"name": "ipo", "tau": 0.3}, "mean"),
        ({"name": "trl/sigmoid", "beta": 0.3}, {"name": "dpo", "beta": 0.3}, "sum"),
        (
            {"name": "trl/sigmoid", "f_divergence_type": "forward_kl"},
            {"name": "f-dpo", "beta": 0.1, "divergence": "forward_kl", "max_slope": 1e4},
            "sum",
        ),
        (
            {"name": "trl/robust", "label_smoothing": 0.2},
            {"name": "robust", "beta": 0.1, "label_smoothing": 0.2},
            "sum",
        ),
        ({"name": "trl/discopop", "discopop_tau": 0.1}, {"name": "discopop", "beta": 0.1, "tau": 0.1}, "sum"),
        ({"name": "sigmoid-norm", "beta": 0.5}, {"name": "dpo", "beta": 0.5}, "mean"),
    ],
)
@pytest.mark.parametrize("fidelity", ["paper", "official"])
def test_trls_words_and_likelihood(given, expected, likelihood, fidelity):
    """Whatever the preset: the authors' code has DPO at beta 1 on means."""
    config = run(given, fidelity=fidelity)
    assert config.objective.model_dump() == expected and config.likelihood == likelihood


def test_official_constants_do_not_reach_trls_names():
    assert run("dpo", fidelity="official").objective.beta == 1.0
    assert run("trl/sigmoid", fidelity="official").objective.beta == 0.1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"objective": "trl/aot"}, ["objective.name", "'trl/aot'", "nearest is 'cdpo'"]),
        ({"objective": "trl/sft"}, ["objective.name", "nearest is 'rpo'"]),
        ({"objective": "sigmoid"}, ["objective.name", "did you mean 'trl/sigmoid'"]),
        ({"objective": "trl/sigmoidd"}, ["objective.name", "did you mean 'trl/sigmoid'?"]),
        ({"objective": {"name": "trl/ipo", "tau": 0.1}}, ["objective.tau", "unknown field", "beta"]),
        ({"objective": {"name": "trl/nca_pair", "f_divergence_type": "forward_kl"}}, ["objective.f_divergence_type"]),
        (
            {"objective": {"name": "trl/sigmoid", "f_divergence_type": "alpha_divergence"}},
            ["objective.f_divergence_type", "'alpha_divergence'", "js_divergence"],
        ),
        ({"objective": "trl/sigmoid", "likelihood": "mean"}, ["likelihood", "'mean'", "name the objective 'dpo'"]),
        ({"objective": "sigmoid-norm", "likelihood": "sum"}, ["likelihood", "the mean", "name the objective 'dpo'"]),
        ({"objective": "apo-zeroo"}, ["objective.name", "did you mean 'apo-zero'?"]),
        ({"objective": {"name": "trl/robust", "label_smoothing": 0.5}}, ["objective.label_smoothing", "0.5"]),
    ],
)
def test_what_is_refused_names_the_field_and_the_way_out(settings, words):
    with pytest.raises(ConfigError) as refused:
        build_run(settings, {}, "test")
    for word in words:
        assert word in str(refused.value)


def test_one_run_under_two_names_is_one_cell():
    experiment = Experiment(name="x", grid={"objective": ["dpo", "trl/sigmoid", {"name": "trl/sigmoid", "beta": 0.2}]})
    assert [cell.config.objective.beta for cell in expand(experiment)] == [0.1, 0.2]


def test_the_command_lists_every_objective_with_its_other_names():
    rows = {row["name"]: row for row in json.loads(CliRunner().invoke(app, ["objectives", "--json"]).stdout)}
    assert set(rows) == set(BY_NAME)
    listed = {other["name"] for row in rows.values() for other in row["also"]}
    assert listed == set(NAMES) and not listed & set(REFUSED)
    for row in rows.values():
        assert row["loss"] and row["d_w"] and row["d_l"] and row["source"]
        assert set(row["defaults"]) == set(row["parameters"]) and all(row["parameters"].values())
    assert rows["dpo-shift"]["where"].startswith("u = ")
    assert f"{len(BUILT_IN)} objectives" in CliRunner().invoke(app, ["objectives"]).stdout
