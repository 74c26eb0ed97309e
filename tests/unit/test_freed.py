"""What a step held is gone when it is made: nothing of it waits for Python's collector, least of all on a GPU."""

import gc

import pytest
from torch import Tensor

from benchmarks.steps import Setting, Size
from rcray.train.step import optimizer_step

SMALL = Size(vocabulary=97, hidden=32, layers=2, heads=2)


@pytest.mark.parametrize("calibrated", [True, False])
@pytest.mark.parametrize("sharing", ["on", "off"])
@pytest.mark.parametrize("method", ["full", "lora"])
def test_a_step_leaves_no_tensor_to_the_collector(method, sharing, calibrated):
    setting = Setting.of(method, SMALL, pairs=4, prompt=6, answer=4, sharing=sharing, micro=2)
    state = setting.state(calibrated=calibrated)
    optimizer_step(state, setting.batches, 1)  # the optimizer makes its moments
    gc.collect()
    gc.disable()
    try:
        optimizer_step(state, setting.batches, 2)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        left = [tuple(kept.shape) for kept in gc.garbage if isinstance(kept, Tensor)]
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert left == []
