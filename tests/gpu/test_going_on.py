"""A run that goes on does so in the precision of the steps that were made, on whatever card; vLLM is told it, too."""

import pytest
import torch

from rcray.config import run_id
from rcray.config.evaluation import EvaluationConfig
from rcray.errors import ConfigError
from rcray.evaluate import backends
from rcray.evaluate.stage import Subject
from rcray.models import precision
from rcray.models.capabilities import capabilities_of
from rcray.records.status import Device, RunStatus
from rcray.train import loop
from rcray.train.loop import Job
from tests.small_runs import small_config

CONFIG = small_config(execution={"gpus_per_worker": 1}, data={"train_pairs": 16, "eval_pairs": 8})


@pytest.fixture
def prepared(store, monkeypatch):
    """The precision of the run, begun on a card of that precision, after so many steps, on one with bfloat16 or not."""
    monkeypatch.setattr(loop, "asked_device", lambda gpus: torch.device("cpu"))

    def prepare(begun_in, steps, *, native):
        monkeypatch.setattr(precision, "_has_bfloat16", lambda device, asked: native)
        key = run_id(CONFIG)
        store.run(key).write_status(RunStatus(key, step=steps, device=Device("a card", begun_in, "sdpa")))
        training = loop.prepare(Job(CONFIG, store, key, "a"), 0, 1)
        return str(capabilities_of(training.state.policy.model).precision.compute)

    return prepare


def test_steps_in_float32_are_followed_by_such(prepared):
    """Begun on a T4, gone on with on an L40S."""
    assert prepared("float32", 3, native=True) == "torch.float32"
    assert prepared("bfloat16", 3, native=True) == "torch.bfloat16"


def test_a_run_without_a_step_takes_what_this_card_has(prepared):
    assert prepared("float32", 0, native=True) == "torch.bfloat16"
    assert prepared("bfloat16", 0, native=False) == "torch.float32"


def test_steps_in_bfloat16_are_not_followed_by_others(prepared):
    """Begun on an L40S, gone on with on a T4: it would read another reference, and be two runs in one."""
    with pytest.raises(ConfigError, match=r"3 steps of this run were made in bfloat16 on a card") as refused:
        prepared("bfloat16", 3, native=False)
    assert "such a card" in refused.value.fix


@pytest.mark.parametrize("begun_in", ["float32", "bfloat16"])
def test_vllm_computes_in_what_the_run_was_trained_in(store, monkeypatch, begun_in):
    told = []
    monkeypatch.setattr(backends, "open_vllm", lambda *given: told.append(given[-1]))
    key = run_id(CONFIG)
    store.run(key).write_status(RunStatus(key, step=3, device=Device("a card", begun_in, "sdpa")))
    Subject(CONFIG, store, EvaluationConfig(backend="vllm", gpus=0))._open()
    assert told == [begun_in]
