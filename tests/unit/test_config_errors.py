"""A refused config says which field, what was given and what is near or allowed."""

import datetime
import math
import pickle

import pytest

from rcray.config import build_run
from rcray.errors import EXIT_USAGE, ConfigError, did_you_mean


def refused(settings, overrides=None) -> str:
    with pytest.raises(ConfigError) as caught:
        build_run(settings, overrides or {}, "cell 7")
    message = str(caught.value)
    assert caught.value.exit_code == EXIT_USAGE
    assert message.startswith("cell 7: "), "it says where"
    assert len(message.splitlines()) <= 12
    return message


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        # unknown fields, at every depth: the nearest name and the known ones
        ({"trian": {}}, ["trian", "did you mean 'train'", "known: calibration, data"]),
        ({"train": {"bacth_size": 3}}, ["train.bacth_size", "did you mean 'batch_size'"]),
        ({"objective": {"name": "dpo", "bta": 1}}, ["objective.bta", "did you mean 'beta'", "known: beta, name"]),
        ({"objective": {"name": "ipo", "beta": 1}}, ["objective.beta", "unknown field", "known: name, tau"]),
        ({"objective": {"name": "a.b:c", "x": 1}}, ["objective.x", "known: name, needs_reference, params"]),
        ({"execution": {"worker": 1}}, ["execution.worker", "did you mean 'workers'"]),
        # objectives
        ({"objective": "dpoo"}, ["objective.name", "'dpoo'", "did you mean 'dpo'", "ti-dpo"]),
        ({"objective": {"name": "dill-bce"}}, ["objective.name", "'dill-bce'", "did you mean 'dil-bce'"]),
        ({"objective": 3}, ["objective.name", "unknown objective 3"]),
        ({"objective": None}, ["objective.name", "unknown objective None"]),
        ({"objective": "my.module:"}, ["objective.name", "'my.module:'", "package.module:function"]),
        # ranges
        ({"objective": {"beta": -0.5}}, ["objective.beta", "-0.5", "greater than 0"]),
        ({"objective": {"beta": 0}}, ["objective.beta", "greater than 0"]),
        ({"objective": {"beta": math.nan}}, ["objective.beta", "nan", "finite"]),
        ({"objective": {"beta": math.inf}}, ["objective.beta", "inf", "finite"]),
        ({"objective": {"name": "cpo", "lam": -1}}, ["objective.lam", "-1", "greater than or equal to 0"]),
        ({"objective": {"name": "bpo", "kind": "ba", "lam": 0}}, ["objective", "lam", "'ba'"]),
        ({"objective": {"name": "bpo", "min_ratio": 2, "max_ratio": 1}}, ["min_ratio", "max_ratio"]),
        ({"train": {"learning_rate": math.nan}}, ["train.learning_rate", "nan", "finite"]),
        ({"train": {"learning_rate": 0}}, ["train.learning_rate", "greater than 0"]),
        ({"train": {"seed": -1}}, ["train.seed", "-1"]),
        ({"train": {"seed": 2**70}}, ["train.seed", "4294967295"]),
        ({"calibration": {"ema_beta": 1}}, ["calibration.ema_beta", "1", "less than 1"]),
        ({"calibration": {"ema_beta": math.nan}}, ["calibration.ema_beta", "nan"]),
        ({"data": {"max_prompt_length": 2000}}, ["data", "max_prompt_length 2000", "max_length 1024"]),
        ({"execution": {"gpus_per_worker": 1.5}}, ["execution", "gpus_per_worker 1.5", "whole number"]),
        (
            {"execution": {"gpus_per_worker": 0.5, "workers": 2}},
            ["execution", "gpus_per_worker 0.5", "2 workers that share a card", "give each its own with 1"],
        ),
        # choices
        ({"fidelity": "papr"}, ["fidelity", "'papr'", "did you mean 'paper'", "official"]),
        ({"likelihood": "men"}, ["likelihood", "'men'", "did you mean 'mean'"]),
        ({"model": {"dtype": "float16"}}, ["model.dtype", "'float16'", "float32"]),
        ({"calibration": {"granularity": "batch"}}, ["calibration.granularity", "'batch'", "microbatch, step"]),
        ({"objective": {"name": "tdpo", "variant": 3}}, ["objective.variant", "3", "known: 1, 2"]),
        ({"objective": {"name": "bpo", "kind": "lsf"}}, ["objective.kind", "'lsf'", "did you mean 'lsif'"]),
        # types
        ({"train": {"batch_size": "many"}}, ["train.batch_size", "'many'", "integer"]),
        ({"train": {"batch_size": 8.5}}, ["train.batch_size", "8.5", "integer"]),
        ({"train": {"batch_size": True}}, ["train.batch_size", "true is not a number"]),
        ({"objective": {"beta": False}}, ["objective.beta", "false is not a number"]),
        ({"objective": {"beta": "high"}}, ["objective.beta", "'high'", "number"]),
        ({"train": 5}, ["train", "5", "mapping"]),
        ({"train": None}, ["train", "None", "mapping"]),
        ({"execution": "on"}, ["execution", "'on'", "mapping"]),
        ({"calibration": "on"}, ["calibration.kind", "'on'", "known: normalised, published, update"]),
        ({"model": {"name": ""}}, ["model.name", "''"]),
        ({3: 4}, ["3"]),
        # fields that must fit together
        ({"train": {"batch_size": 10, "micro_batch_size": 4}}, ["train", "batch_size 10", "micro_batch_size 4"]),
        ({"execution": {"workers": 3}}, ["train.micro_batch_size 8", "execution.workers 3"]),
        ({"data": {"train_pairs": 31}}, ["train.batch_size 32", "data.train_pairs 31"]),
        (
            {"objective": {"name": "kto", "baseline": "kl"}, "train": {"micro_batch_size": 1}},
            ["objective.baseline", "'kl'", "train.micro_batch_size is 1"],
        ),
        ({"objective": {"name": "ti-dpo", "triplet": True}}, ["objective.triplet"]),
    ],
    ids=lambda value: str(value)[:60] if isinstance(value, dict) else "",
)
def test_the_message_names_field_value_and_what_is_allowed(settings, expected):
    message = refused(settings)
    for part in expected:
        assert part in message


@pytest.mark.parametrize("value", [math.nan, math.inf, datetime.date(2026, 1, 1), {1, 2}])
def test_parameters_of_an_own_objective_are_plain_data(value):
    """They are hashed as JSON: a nan would become null and share its run_id."""
    message = refused({"objective": {"name": "my.module:loss", "params": {"x": value}}})
    assert "objective.params" in message


def test_a_wrong_override_is_told_like_a_wrong_field():
    assert "train.sede: unknown field; did you mean 'seed'?" in refused({}, {"train.sede": 1})


def test_every_wrong_field_is_listed_up_to_a_screen():
    message = refused({"train": {f"wrong_{i}": i for i in range(12)}})
    assert message.count("unknown field") == 8
    assert "... and 4 more" in message


def test_a_huge_value_is_shortened():
    message = refused({"train": {"seed": "x" * 5000}})
    assert len(message) < 400


def test_a_config_error_survives_pickling():
    """It crosses process borders in a sweep."""
    error = ConfigError("what", fix="how")
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), copy.message, copy.fix, str(copy)) == (ConfigError, "what", "how", "what\n  fix: how")


def test_did_you_mean_without_a_near_name_only_lists():
    assert did_you_mean("zzz", ["beta", "alpha"]) == " (known: alpha, beta)"
