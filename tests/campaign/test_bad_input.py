"""The bad-input campaign, as long as a test may take; `python -m tests.campaign.bad_input` goes on for longer."""

import pytest

from rcray.errors import EXIT_USAGE
from tests.campaign import bad_input, wrong_files, wrong_rows

CONFIGS, ROWS = 500, 100


def test_wrong_inputs_are_refused_by_the_hundred(capsys):
    tally = bad_input.campaign(CONFIGS, ROWS)
    with capsys.disabled():
        print(f"\n{tally.describe()}")
    assert tally.configs >= 400
    assert set(tally.rows) == set(wrong_rows.WRONG_ROWS)
    assert {"field in a file", "field on an axis", "field in a cell", "field by --set"} <= set(tally.kinds)


def test_a_sound_file_is_not_called_wrong(tmp_path):
    """The campaign can fail: what is accepted, or refused in other words, is noticed."""
    sound = wrong_files.Wrong("sound", b"name: x\n")
    unnamed = wrong_files.Wrong("unnamed", b"name: x\nrun: {train: {seed: -1}}\n", named="train.epochs")
    with bad_input.working_directory(tmp_path):
        with pytest.raises(AssertionError, match="exit code 0"):
            bad_input.check(sound, "plan", tmp_path, bad_input.Tally())
        with pytest.raises(AssertionError, match="is not named"):
            bad_input.check(unnamed, "plan", tmp_path, bad_input.Tally())


def test_a_wrong_row_ends_the_command_before_any_weights_are_read(tmp_path):
    (tmp_path / "rows.jsonl").write_bytes(b"\n".join([wrong_rows.row(), wrong_rows.row(chosen=None)]))
    (tmp_path / "mine.yaml").write_text("name: mine\nrun: {data: {name: rows.jsonl, bad_rows: fail}}\n")
    with bad_input.working_directory(tmp_path):
        code, out, err = bad_input.run(["train", "mine.yaml", "--no-tracking"])
    assert (code, out) == (EXIT_USAGE, "")
    assert "rows.jsonl:2: 'chosen' is null" in err and "Traceback" not in err
    assert not (tmp_path / "rcray-store" / "cache").exists(), "no model was built"
