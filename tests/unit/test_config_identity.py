"""A run is its content: what changes the run_id, and what must not."""

import os
import subprocess
import sys

import pytest

from rcray.config import build_run, content_key, identity, run_id
from rcray.config.schema import RunConfig


def key(settings=None, **overrides) -> str:
    return run_id(build_run(settings or {}, {k.replace("__", "."): v for k, v in overrides.items()}, "test"))


#: Fixed settings and their run_id. A change here means that every stored run is orphaned: raise SEMANTICS_VERSION
#: or take the change back.
GOLDEN = {
    "897569169aa0": {},
    "9e02d1cf259e": {"fidelity": "official", "objective": "simpo", "calibration": True, "train": {"seed": 7}},
}


@pytest.mark.parametrize("expected", GOLDEN)
def test_golden(expected):
    assert key(GOLDEN[expected]) == expected


def test_stable_under_key_order():
    settings = {"train": {"seed": 1, "epochs": 2}, "objective": {"name": "cpo", "beta": 0.2}, "model": "tiny-qwen2"}
    turned = {name: settings[name] for name in reversed(settings)}
    turned["train"] = {"epochs": 2, "seed": 1}
    turned["objective"] = {"beta": 0.2, "name": "cpo"}
    assert key(settings) == key(turned)
    assert content_key({"a": 1, "b": [1, 2]}) == content_key({"b": [1, 2], "a": 1})
    assert content_key({"b": [1, 2]}) != content_key({"b": [2, 1]})


def test_stable_under_how_a_number_is_written():
    assert key(objective__beta=1) == key(objective__beta=1.0) == key(objective__beta="1e0")


@pytest.mark.parametrize(
    "execution", [{"workers": 2}, {"checkpoint_every": 7}, {"keep_checkpoints": 5}, {"cpus_per_worker": 0.5}]
)
def test_execution_is_not_identity(execution):
    assert key({"execution": execution}) == key()


@pytest.mark.parametrize("field", ["ema_beta", "clip"])
def test_calibration_settings_count_only_where_calibration_is_on(field):
    changed = {"ema_beta": 0.5, "clip": False}[field]
    off, on = {"calibration": {field: changed}}, {"calibration": {"enabled": True, field: changed}}
    assert key(off) == key()
    assert key(on) != key(calibration=True)


@pytest.mark.parametrize(
    "change",
    [
        {"objective__beta": 0.2},
        {"train__seed": 43},
        {"likelihood": "mean"},
        {"objective": "cpo"},
        {"fidelity": "official"},
        {"calibration": True},
        {"calibration__scores": "full"},
        {"model": "tiny-mistral"},
        {"model__dtype": "bfloat16"},
        {"data__seed": 1},
        {"data__max_length": 900},
        {"train__learning_rate": 2e-6},
        {"train__micro_batch_size": 16},  # microbatch granularity: the window is part of the result
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_decides_the_result_changes_the_id(change):
    assert key(**change) != key()


def test_micro_batch_size_is_not_identity_where_statistics_are_those_of_the_step():
    step = {"calibration": {"granularity": "step"}}
    assert key(step) == key(step, train__micro_batch_size=16) != key()


def test_ids_of_many_neighbours_differ():
    keys = {key(train__seed=seed, objective__beta=beta) for seed in range(10) for beta in (0.1, 0.2, 0.3)}
    assert len(keys) == 30


def test_identity_survives_a_round_trip_through_its_dump():
    config = build_run({"objective": "bpo", "calibration": True, "fidelity": "official"}, {}, "test")
    again = RunConfig.model_validate(config.model_dump(mode="json"))
    assert again == config
    assert identity(again) == identity(config)


def test_identical_between_processes_with_other_hash_seeds():
    code = (
        "from rcray.config import build_run, run_id\n"
        "print(run_id(build_run({'objective': {'name': 'a.b:c', 'params': {'x': 1, 'y': [2, 3]}}}, {}, 't')))"
    )
    seen = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
        seen.add(done.stdout.strip())
    seen.add(key({"objective": {"name": "a.b:c", "params": {"y": [2, 3], "x": 1}}}))
    assert len(seen) == 1


def test_nan_has_no_key():
    with pytest.raises(ValueError, match="JSON"):
        content_key({"x": float("nan")})
