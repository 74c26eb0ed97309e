"""A reader of one optimizer step opens eight files or fewer; of one that is calibrated by the update, thirteen."""

import pytest

from tests.step_path import BETWEEN, LOOKING, PUBLISHED, traced_steps

#: Steering adds its rule, the optimizer's preview and the look that both read; a look adds pairs of its own.
MOST = {PUBLISHED: 8, BETWEEN: 13, LOOKING: 16}


@pytest.fixture(scope="module")
def steps():
    return traced_steps()


@pytest.mark.parametrize("step", MOST)
def test_a_calibrated_lora_step_reads_in_few_files(steps, step):
    files = steps[step]
    assert len(files) <= MOST[step], sorted(files)
    assert {"rcray/train/step.py", "rcray/objectives/margin.py"} <= files.keys(), "the trace sees the step"
