"""Estimates: held against the embedded models themselves, and the paper's runtime table."""

import pytest
from transformers import AutoModelForCausalLM

from rcray.config import RunConfig
from rcray.config.model import ModelConfig
from rcray.config.models import MODELS, embedded_models
from rcray.sweep.cost import estimate, train_memory

GPU = {"gpus_per_worker": 1}


def config(**settings):
    return RunConfig.model_validate(settings)


@pytest.mark.parametrize("name", embedded_models())
def test_shapes_agree_with_the_embedded_models(name, quick_cache):
    model = AutoModelForCausalLM.from_pretrained(quick_cache / name)
    shape = MODELS[name].shape
    assert shape.vocabulary == model.config.vocab_size
    assert shape.parameters == pytest.approx(sum(p.numel() for p in model.parameters()), rel=0.02)
    assert ModelConfig(name=str(quick_cache / name)).shape == shape, "a directory is read from its config.json"


def test_a_hub_model_is_unknown_before_its_download():
    cost = estimate(config(model="owner/name", data={"name": "ultrafeedback"}, execution=GPU))
    assert (cost.hours, cost.gpu_hours, cost.train_bytes) == (None, None, None)
    assert cost.weight == float("inf"), "it may be long, so it starts first"


@pytest.mark.parametrize(("name", "published_minutes"), [("mistral-7b", 651), ("pythia-2.8b", 259)])
def test_hours_are_near_the_published_ones(name, published_minutes):
    cost = estimate(config(model=name, data="ultrafeedback", objective="dpo", execution=GPU))
    assert cost.gpu_hours * 60 == pytest.approx(published_minutes, rel=0.25)


def test_what_costs_more_is_estimated_higher():
    def hours(**settings):
        return estimate(config(**{"model": "mistral-7b", "data": "ultrafeedback", "execution": GPU, **settings})).hours

    plain = hours()
    assert hours(train={"epochs": 2}) == pytest.approx(2 * plain)
    assert hours(objective="ti-dpo") > plain, "its reference runs beside it"
    assert hours(calibration={"scores": "full"}) > plain
    assert hours(execution={"gpus_per_worker": 1, "workers": 2}, train={"micro_batch_size": 2}) == pytest.approx(
        plain / 2
    )


def test_memory_by_method():
    def gigabytes(**model):
        made = config(model={"name": "mistral-7b", **model}, data="ultrafeedback", execution=GPU)
        return train_memory(made, MODELS["mistral-7b"].shape) / 1e9

    full, lora, qlora = (gigabytes(method=method) for method in ("full", "lora", "qlora"))
    assert full > 4 * 2 * 7.2, "weights, gradients and two moments in bfloat16"
    assert 14.4 < lora < 32
    assert qlora < 24 < full
    assert lora - qlora == pytest.approx(7.0e9 * (2 - 0.5625) / 1e9, rel=0.02), "only the stored body differs"


def test_memory_grows_with_the_micro_batch():
    def host(size):
        return estimate(config(model="pythia-410m", train={"micro_batch_size": size}, data="ultrafeedback")).host_bytes

    assert host(8) > host(4) > host(1)
