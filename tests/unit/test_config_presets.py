"""Presets fill what is open, short forms are opened, and a config cannot be changed."""

import pytest
from pydantic import ValidationError

from rcray.config import RunConfig, build_run
from rcray.config.fidelity import OFFICIAL_CONSTANTS
from rcray.config.objectives import BY_NAME
from rcray.errors import ConfigError


def resolved(**settings) -> RunConfig:
    return build_run(settings, {}, "test")


def test_paper_preset_is_the_default_and_fills_what_is_open():
    config = resolved()
    assert config.fidelity == "paper"
    assert (config.likelihood, config.calibration.clip, config.calibration.granularity) == ("sum", True, "microbatch")
    assert config == resolved(fidelity="paper")


def test_official_preset_fills_what_is_open():
    config = resolved(fidelity="official", objective="simpo")
    assert (config.likelihood, config.calibration.clip) == ("mean", False)
    assert (config.objective.beta, config.objective.gamma) == (1.0, 1.0)
    assert resolved(objective="simpo").objective.beta == 2.0, "the paper preset keeps the objective's own default"


@pytest.mark.parametrize("fidelity", ["paper", "official"])
def test_what_is_written_wins_over_the_preset(fidelity):
    written = {"likelihood": "sum", "calibration": {"clip": True, "granularity": "step"}}
    config = resolved(fidelity=fidelity, objective={"name": "simpo", "beta": 3.5}, **written)
    assert (config.likelihood, config.calibration.clip, config.calibration.granularity) == ("sum", True, "step")
    assert config.objective.beta == 3.5
    assert config.objective.gamma == 1.0


def test_a_preset_leaves_other_sections_alone():
    paper, official = resolved(objective="ipo"), resolved(fidelity="official", objective="ipo")
    for section in ("model", "train", "execution"):
        assert getattr(paper, section) == getattr(official, section)


def test_official_prompts_are_the_authors_and_can_be_taken_back():
    fields = ("add_bos", "empty_system", "score_header", "answer_room")
    official, paper = resolved(fidelity="official").data, resolved().data
    assert [getattr(official, name) for name in fields] == [True, True, True, "fixed"]
    assert [getattr(paper, name) for name in fields] == [False, False, False, "rest"]
    assert resolved(fidelity="official", data={name: getattr(paper, name) for name in fields}).data == paper


@pytest.mark.parametrize("name", sorted(OFFICIAL_CONSTANTS))
def test_official_constants_are_fields_of_their_objective(name):
    assert set(OFFICIAL_CONSTANTS[name]) <= set(BY_NAME[name].model_fields)
    config = resolved(fidelity="official", objective=name)
    assert {key: getattr(config.objective, key) for key in OFFICIAL_CONSTANTS[name]} == OFFICIAL_CONSTANTS[name]


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ({"objective": "cpo"}, {"objective": {"name": "cpo"}}),
        ({"model": "tiny-qwen2"}, {"model": {"name": "tiny-qwen2"}}),
        ({"data": "synthetic"}, {"data": {"name": "synthetic"}}),
        ({"calibration": True}, {"calibration": {"enabled": True}}),
        ({"calibration": False}, {}),
        ({"calibration": "update"}, {"calibration": {"enabled": True, "kind": "update"}}),
        ({"calibration": "published"}, {"calibration": True}),
        ({"objective": "dpo"}, {}),
        ({"objective": {"beta": 0.1}}, {"objective": "dpo"}),
    ],
)
def test_short_forms(short, long):
    assert resolved(**short) == resolved(**long)


def test_short_form_is_opened_by_an_override_below_it():
    config = build_run(
        {"objective": "cpo", "calibration": True}, {"objective.lam": 0.5, "calibration.clip": False}, "t"
    )
    assert (config.objective.name, config.objective.lam) == ("cpo", 0.5)
    assert (config.calibration.enabled, config.calibration.clip) == (True, False)


def test_a_kind_of_calibration_is_opened_by_an_override_below_it():
    config = build_run({"calibration": "update"}, {"calibration.loser_share": 0.5}, "t").calibration
    assert (config.enabled, config.kind, config.loser_share) == (True, "update", 0.5)


def test_an_unknown_kind_of_calibration_is_refused_with_those_known():
    with pytest.raises(ConfigError, match=r"did you mean 'update'. .known: normalised, published, update"):
        build_run({"calibration": "updates"}, {}, "t")


def test_a_field_of_a_section_that_is_none_is_refused():
    with pytest.raises(ConfigError, match=r"train is 'fast', a section is a mapping"):
        build_run({"train": "fast"}, {"train.epochs": 2}, "t")


def test_the_order_of_overrides_does_not_matter():
    """`objective: cpo` after `objective.beta: 0.3` must not wipe the beta."""
    paths = {"objective.beta": 0.3, "objective": "cpo"}
    first, second = build_run({}, paths, "t"), build_run({}, dict(reversed(paths.items())), "t")
    assert first == second
    assert (first.objective.name, first.objective.beta) == ("cpo", 0.3)


def test_building_does_not_change_its_input():
    settings, overrides = {"train": {"seed": 1}}, {"train.seed": 2, "objective": {"name": "dpo"}}
    build_run(settings, overrides, "t")
    assert settings == {"train": {"seed": 1}}
    assert overrides == {"train.seed": 2, "objective": {"name": "dpo"}}


@pytest.mark.parametrize(("section", "field"), [("train", "seed"), ("objective", "beta"), ("calibration", "enabled")])
def test_a_config_is_frozen(section, field):
    config = resolved()
    with pytest.raises(ValidationError, match="frozen"):
        setattr(getattr(config, section), field, 3)
    with pytest.raises(ValidationError, match="frozen"):
        setattr(config, section, None)


def test_total_steps_leaves_the_incomplete_batch_out():
    train = {"batch_size": 10, "micro_batch_size": 5, "epochs": 3}
    assert resolved(data={"train_pairs": 29}, train=train).total_steps == 6


@pytest.mark.parametrize("name", sorted(BY_NAME))
def test_every_objective_resolves_by_its_name(name):
    config = resolved(objective=name)
    assert type(config.objective) is BY_NAME[name]
    assert config.needs_reference is BY_NAME[name].traits.needs_reference
    assert config.objective_title == BY_NAME[name].traits.title


def test_own_objective_by_import_path():
    config = resolved(objective={"name": "my.pkg:hinge", "params": {"gamma": 2}, "needs_reference": False})
    assert config.needs_reference is False
    assert config.objective_title == "hinge"
