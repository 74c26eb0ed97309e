"""A reader of one calibrated step opens eight files; where looks watch it, nine; steered by the update, thirteen."""

from dataclasses import replace

import pytest

from rcray.models import tiny
from tests.step_path import BETWEEN, LOOKING, PUBLISHED, PUBLISHED_LOOKING, UNWATCHED, traced_steps

#: The ninth of the published step is the guard, which watches every run with looks. Steering adds its rule, the
#: optimizer's preview and the look that both read; a look adds pairs of its own, which are laid out and judged in it.
MOST = {UNWATCHED: 8, PUBLISHED: 9, PUBLISHED_LOOKING: 15, BETWEEN: 13, LOOKING: 16}


@pytest.fixture(scope="module")
def steps():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiny, "TINY_MODELS", {n: replace(r, warm_up_steps=2) for n, r in tiny.TINY_MODELS.items()})
        yield traced_steps()


@pytest.mark.parametrize("step", MOST)
def test_a_calibrated_lora_step_reads_in_few_files(steps, step):
    files = steps[step]
    assert len(files) <= MOST[step], sorted(files)
    assert {"rcray/train/step.py", "rcray/objectives/margin.py"} <= files.keys(), "the trace sees the step"


def test_what_is_known_before_the_first_step_is_settled_there(steps):
    """How pairs are packed, under which precision, at what rate, and how many steps the optimizer made."""
    settled = {f"rcray/{name}.py" for name in ("models/capabilities", "models/precision", "train/setup")}
    assert not (settled | {"rcray/calibration/preview.py"}) & steps[PUBLISHED].keys()
