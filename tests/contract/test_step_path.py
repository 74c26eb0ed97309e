"""A reader of one optimizer step opens eight files or fewer."""

from tests.step_path import traced_step


def test_a_calibrated_lora_step_reads_in_eight_files():
    files = traced_step()
    assert len(files) <= 8, sorted(files)
    assert {"rcray/train/step.py", "rcray/objectives/margin.py"} <= files.keys(), "the trace sees the step"
