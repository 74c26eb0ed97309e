"""Whole optimizer steps of the presets on a GPU that is only pretended: what they wait for, compute in, and hold."""

import pytest

from rcray.config import RunConfig
from rcray.config.models import MODELS
from rcray.config.objectives import BY_NAME
from rcray.models.inference import TOKENS
from rcray.sweep.cost import estimate
from rcray.sweep.memory import (
    ALLOCATOR,
    FORWARD_TOKENS,
    GPU_CONTEXT_BYTES,
    extra_weights,
    forward_bytes,
    known_peak,
    measured_peaks,
    peak_key,
)
from tests.gpu.cells import (
    ALL,
    BETWEEN,
    CELLS,
    FORWARDS,
    GPU,
    PLANNED,
    PLANNED_SLOWLY,
    PRESETS,
    SLOW_CELLS,
    WHOLE,
    look_at,
    planned,
    seen,
    whole,
)

pytestmark = pytest.mark.timeout(1200)


def compute_dtype(name):
    return RunConfig.model_validate(ALL[name]["config"]).compute_dtype


def planned_config(name, **train):
    """A planned cell as RunConfig, its pairs as long as those that were looked at, so that it can be estimated."""
    given = planned(name)["config"]
    changed = {"data": {**given["data"], "max_length": BETWEEN}, "train": {**given["train"], **train}}
    return RunConfig.model_validate({**given, **changed})


def quick_and_slow(quick, slow):
    return [*quick, *(pytest.param(name, marks=pytest.mark.slow) for name in slow)]


every = pytest.mark.parametrize("name", quick_and_slow(CELLS, SLOW_CELLS))


@every
def test_a_whole_step_is_made(name):
    assert "error" not in seen(name), seen(name).get("error")


def test_every_family_of_objectives_is_among_them():
    tried = {BY_NAME[content["config"]["objective"]["name"]] for content in CELLS.values()}
    assert {params.__module__ for params in tried} == {params.__module__ for params in BY_NAME.values()}


@every
def test_a_step_waits_once(name):
    """Once more for a look."""
    waits = seen(name)["waits"]
    assert sum(waits.values()) <= 1 + ALL[name]["looking"], waits


@every
def test_nothing_is_copied_there_while_the_host_waits(name):
    assert seen(name)["stalls"] == {}
    assert seen(name)["copies"], "the batches came through pinned memory"


@pytest.mark.parametrize("name", FORWARDS)
def test_a_forward_without_a_graph_waits_for_its_sums_alone(name):
    step = seen(name)
    assert "error" not in step, step.get("error")
    assert sum(step["waits"].values()) <= 1, step["waits"]
    assert step["stalls"] == {} and len(step["attention"]) == 1


@pytest.mark.parametrize("name", FORWARDS)
def test_the_plan_tells_what_such_a_forward_holds(name):
    step, config = seen(name), RunConfig.model_validate(FORWARDS[name]["config"])
    said = FORWARD_TOKENS * forward_bytes(config, config.model.shape)
    assert said == pytest.approx(step["peak_bytes"] - step["weights_bytes"], rel=0.1)
    assert TOKENS["cuda"] == FORWARD_TOKENS


@every
def test_products_and_attention_are_in_the_one_compute_precision(name):
    """All of a 7B model's arithmetic is in 16 bits; float32 is left to the few scores of adapters."""
    step, computed = seen(name), compute_dtype(name)
    assert {kind.split()[0] for kind in step["attention"]} == {computed}
    others = sum(flops for dtype, flops in step["products"].items() if dtype != computed)
    assert others <= (0 if computed == "float32" else 0.02) * step["products"][computed], step["products"]


def test_a_model_in_float32_is_among_them():
    """Trained in full and asked for: nothing of it may be multiplied in 16 bits."""
    assert [name for name in CELLS if compute_dtype(name) == "float32"] == ["full float32"]


def test_plain_rows_take_the_causal_kernel_and_packed_rows_the_masked_one():
    assert set(seen("rows")["attention"]) == {"bfloat16 causal"}
    assert "bfloat16 masked" in seen("qlora plain")["attention"]


@pytest.mark.parametrize("name", quick_and_slow(PLANNED, PLANNED_SLOWLY))
def test_the_plan_tells_the_peak_of_a_whole_step(name):
    config = planned_config(name)
    tokens = 2 * config.train.micro_batch_size * BETWEEN
    said = measured_peaks()[peak_key(config)].at(tokens) + extra_weights(config, config.model.shape)
    assert said == pytest.approx(whole(name), rel=0.1)


@pytest.mark.parametrize("name", quick_and_slow(PLANNED, PLANNED_SLOWLY))
def test_the_estimate_is_of_the_step_or_of_a_forward_whichever_holds_more(name):
    config = planned_config(name)
    forward, extra = seen(f"forward {config.model.name}"), extra_weights(config, config.model.shape)
    held = whole(name, "weights_bytes") - extra + forward["peak_bytes"] - forward["weights_bytes"]
    expected = max(whole(name) - extra, held) * ALLOCATOR + extra + GPU_CONTEXT_BYTES
    assert estimate(config).train_bytes == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("name", {**PLANNED, **PLANNED_SLOWLY})
def test_the_estimate_takes_the_peak_that_was_measured_for_such_a_cell(name):
    """Of micro-batches so large that no forward holds more."""
    config = planned_config(name, micro_batch_size=8)
    peak, extra = measured_peaks()[peak_key(config)], extra_weights(config, config.model.shape)
    assert estimate(config).train_bytes == peak.at(16 * BETWEEN) * ALLOCATOR + extra + GPU_CONTEXT_BYTES


@pytest.mark.slow
def test_a_whole_step_holds_what_follows_from_few_layers():
    for name, step in look_at(WHOLE).items():
        assert step["peak_bytes"] == pytest.approx(whole(name), rel=0.01), name


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("objective", ["dpo", "tdpo"])
def test_the_plan_knows_every_preset(name, objective):
    for fidelity in ("paper", "official"):
        given = {"model": name, "data": "ultrafeedback", "objective": objective, "fidelity": fidelity}
        config = RunConfig.model_validate({**given, "execution": GPU})
        assert config.calibration.look_every, "as it resolves, it takes looks"
        peak = known_peak(config)
        assert peak.fixed > MODELS[name].shape.body * (0.5 if config.model.quantized else 4)
        assert peak.per_token > 0
