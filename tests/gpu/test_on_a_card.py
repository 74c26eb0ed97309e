"""Runs of each preset family on a real card, in bfloat16: what a pretended one cannot show, and what it foretold."""

import gc
import math
import re
import warnings

import pytest
import torch

from rcray.config import load_experiment
from rcray.models.device import why_no_gpu
from rcray.models.load import LoadedModel, turn_off_dropout
from rcray.sweep.grid import expand
from rcray.sweep.memory import known_peak
from rcray.sweep.pretend import steps
from rcray.sweep.pretend.models import architecture
from rcray.sweep.pretend.peaks import SMOKE
from rcray.train import loop
from rcray.train.launch import launch
from tests.small_runs import records, small_config

pytestmark = pytest.mark.skipif(why_no_gpu() is not None, reason="no GPU")

CARD = torch.device("cuda", 0)
FAMILIES = {
    "full": {"model": {"name": "tiny-neox"}, "train": {"precision": "bfloat16"}},
    "lora": {"model": {"name": "tiny-mistral", "method": "lora", "dtype": "bfloat16"}},
    "qlora": {
        "model": {"name": "tiny-qwen2", "method": "qlora", "dtype": "bfloat16"},
        "execution": {"gradient_checkpointing": True},
    },
}
STEPS, LOOK_EVERY = 8, 3
WAIT = "called a synchronizing CUDA operation"


@pytest.fixture
def waits(monkeypatch):
    """Of each step: where torch says that it waited, and whether it took a look."""
    real, seen = loop.optimizer_step, []

    def step(state, batches, number, fresh=None):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                return real(state, batches, number, fresh)
            finally:
                torch.cuda.set_sync_debug_mode("default")
                places = [f"{one.filename}:{one.lineno}" for one in said if WAIT in str(one.message)]
                seen.append((places, fresh is not None))

    monkeypatch.setattr(loop, "optimizer_step", step)
    return seen


@pytest.mark.parametrize("attention", ["sdpa", "auto"])
@pytest.mark.parametrize("family", FAMILIES)
def test_steps_are_made_and_wait_as_seldom_as_was_foretold(store, waits, family, attention):
    """Once each, and once more at a look; the pretended GPU knows SDPA under a mask, and not FlexAttention."""
    settings = dict(FAMILIES[family])
    asked = {"gpus_per_worker": 1, "prompt_sharing": "on", "attention": attention}
    execution = {**asked, **settings.pop("execution", {})}
    calibration = {"enabled": True, "kind": "update", "look_every": LOOK_EVERY}
    data = {"train_pairs": 8 * STEPS + 16, "eval_pairs": 8}  # and some for the looks
    config = small_config(data=data, execution=execution, calibration=calibration, **settings)
    status = launch(config, store)
    assert status.status == "ok" and status.step == status.total_steps >= STEPS
    assert status.device.precision == "bfloat16" and status.device.peak_bytes > 0
    rows = "FlexAttention|flash|efficient|cudnn|math" if attention == "auto" else "flash|efficient|cudnn|math"
    kernels = rf"sdpa: plain rows by (flash|efficient|cudnn|math), packed rows by ({rows})"
    assert re.fullmatch(kernels, status.device.attention), status.device.attention
    for step in records(store, config).to_dict("records"):
        assert math.isfinite(step["loss"]) and math.isfinite(step["grad_norm"]), step
    assert len(waits) == status.step and sum(looked for _, looked in waits) > 1
    assert any(places for places, _ in waits), "torch says nothing of a step's one wait: these counts tell nothing"
    if attention == "sdpa":
        for places, looked in waits[1:]:  # the first one loads kernels and makes the optimizer's moments
            assert len(places) <= 1 + looked, places


class Held:
    """A real card's memory, in the place of the watch over a pretended one's."""

    waits = stalls = copies = products = attention = ()

    def __enter__(self):
        gc.collect()
        torch.cuda.empty_cache()
        self.before = torch.cuda.memory_allocated(CARD)
        self.forget()
        return self

    def __exit__(self, *problem):
        pass

    def forget(self):
        torch.cuda.reset_peak_memory_stats(CARD)

    @property
    def live(self):
        return torch.cuda.memory_allocated(CARD) - self.before

    @property
    def peak(self):
        return torch.cuda.max_memory_allocated(CARD) - self.before


def made_up_model(config, *, layers=None):
    """The smoke cells' model with weights by chance: nothing is fetched."""
    from transformers import AutoModelForCausalLM

    settings = architecture(config)
    settings.num_hidden_layers = layers or settings.num_hidden_layers
    model = AutoModelForCausalLM.from_config(settings, dtype=getattr(torch, config.dtype)).to(CARD)
    turn_off_dropout(model)
    return LoadedModel(model, None)


def test_a_step_holds_what_the_plan_says(monkeypatch):
    """The very step that the plan's figures were taken from, with the longest pairs of a smoke cell."""
    for name, real in (("Watch", Held), ("pretend_device", lambda: CARD), ("pretended_model", made_up_model)):
        monkeypatch.setattr(steps, name, real)
    cells = [cell.config for cell in expand(load_experiment(SMOKE))]
    config = next(one for one in cells if one.model.method == "full" and one.calibration.enabled)
    longest, looking = config.data.max_length, bool(config.calibration.look_every)
    seen = steps.pretended_step(config, steps.Lengths.longest(longest), looking=looking)
    planned = known_peak(config).at(2 * config.train.micro_batch_size * longest)
    assert seen.peak_bytes == pytest.approx(planned, rel=0.25)
