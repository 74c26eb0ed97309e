"""One run of each preset family on a real card, in bfloat16: what a pretended one cannot show."""

import math

import pytest

from rcray.models.device import why_no_gpu
from rcray.train.launch import launch
from tests.small_runs import records, small_config

pytestmark = pytest.mark.skipif(why_no_gpu() is not None, reason="no GPU")

FAMILIES = {
    "full": {"model": {"name": "tiny-neox"}, "train": {"precision": "bfloat16"}},
    "lora": {"model": {"name": "tiny-mistral", "method": "lora", "dtype": "bfloat16"}},
    "qlora": {
        "model": {"name": "tiny-qwen2", "method": "qlora", "dtype": "bfloat16"},
        "execution": {"gradient_checkpointing": True},
    },
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_is_made_and_recorded(store, family):
    settings = dict(FAMILIES[family])
    execution = {"gpus_per_worker": 1, **settings.pop("execution", {})}
    config = small_config(data={"train_pairs": 8, "eval_pairs": 8}, execution=execution, **settings)
    status = launch(config, store)
    assert status.status == "ok" and status.step == 1
    assert status.device.precision == "bfloat16" and status.device.peak_bytes > 0
    (step,) = records(store, config).to_dict("records")
    assert math.isfinite(step["loss"]) and math.isfinite(step["grad_norm"])
