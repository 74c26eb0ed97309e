"""The recorder: parts named by their steps, every step exactly once after a rewind."""

import math
import os

import pyarrow.parquet as pq
import pytest

from rcray.records.columns import COLUMNS
from rcray.train.dynamics import SCHEMA, Recorder, part_name, read_dynamics, sound_until

DEFAULTS = {"int": 0, "float": math.nan, "bool": False, "str": ""}


def row(step, **known):
    return {**{c.name: DEFAULTS[c.kind] for c in COLUMNS}, "step": step, "loss": step / 10, **known}


def record(directory, *parts):
    recorder = Recorder(directory)
    for steps in parts:
        for step in steps:
            recorder.add(row(step))
        recorder.flush()
    return recorder


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def steps(directory, **how):
    return read_dynamics(directory, **how)["step"].to_pylist()


def test_parts_are_named_by_first_and_last_step(tmp_path):
    record(tmp_path, range(1, 6), range(6, 8))
    assert names(tmp_path) == [part_name(1, 5), part_name(6, 7)]
    assert pq.read_table(tmp_path / part_name(6, 7))["step"].to_pylist() == [6, 7]


def test_rows_come_back_as_they_went(tmp_path):
    recorder = Recorder(tmp_path)
    recorder.add(row(1, loss=0.1 + 0.2, in_band=True, skipped="first step", tokens=2**40, rho=-math.inf))
    recorder.flush()
    (kept,) = read_dynamics(tmp_path).to_pylist()
    assert (kept["loss"], kept["in_band"], kept["skipped"], kept["tokens"]) == (
        0.1 + 0.2,
        True,
        "first step",
        2**40,
    )
    assert kept["rho"] == -math.inf
    assert math.isnan(kept["z_w"])


def test_nothing_is_written_before_a_flush_nor_for_no_rows(tmp_path):
    recorder = Recorder(tmp_path / "dynamics")
    recorder.flush()
    recorder.add(row(1))
    assert not (tmp_path / "dynamics").exists()
    recorder.flush()
    recorder.flush()
    assert names(tmp_path / "dynamics") == [part_name(1, 1)]


def test_a_row_without_a_column_is_refused(tmp_path):
    incomplete = row(1)
    del incomplete["rho"]
    with pytest.raises(KeyError, match="rho"):
        Recorder(tmp_path).add(incomplete)


def test_extra_keys_of_a_row_are_left_out(tmp_path):
    recorder = Recorder(tmp_path)
    recorder.add(row(1, total_steps=9))
    recorder.flush()
    assert read_dynamics(tmp_path).schema.names == SCHEMA.names


@pytest.mark.parametrize(
    ("step", "left"),
    [
        (9, [part_name(1, 5), part_name(6, 9)]),  # at the very end: nothing to forget
        (5, [part_name(1, 5)]),  # at a part
        (7, [part_name(1, 5), part_name(6, 7)]),  # inside the last
        (3, [part_name(1, 3)]),  # inside the first
        (6, [part_name(1, 5), part_name(6, 6)]),
        (0, []),
    ],
)
def test_rewind(tmp_path, step, left):
    recorder = record(tmp_path, range(1, 6), range(6, 10))
    recorder.add(row(10))
    recorder.rewind(step)
    assert names(tmp_path) == left
    assert steps(tmp_path) == list(range(1, step + 1))
    recorder.flush()
    assert names(tmp_path) == left, "buffered rows are forgotten too"


def test_every_step_once_after_a_rewind_and_going_on(tmp_path):
    recorder = record(tmp_path, range(1, 6), range(6, 10))
    recorder.rewind(7)
    for step in range(8, 12):
        recorder.add(row(step))
    recorder.flush()
    assert steps(tmp_path) == list(range(1, 12))


def test_a_rewind_that_was_killed_half_way_is_finished_by_the_next(tmp_path, monkeypatch):
    """The shortened part is published before the old one goes: nothing is lost in between."""
    recorder = record(tmp_path, range(1, 6), range(6, 10))
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", lambda *_a, **_k: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            recorder.rewind(7)
    assert set(range(1, 8)) <= set(steps(tmp_path))
    recorder.rewind(7)
    assert steps(tmp_path) == list(range(1, 8))


def test_a_directory_without_parts(tmp_path):
    Recorder(tmp_path / "none").rewind(3)
    table = read_dynamics(tmp_path / "none")
    assert (table.num_rows, table.schema) == (0, SCHEMA)
    assert read_dynamics(tmp_path / "none", columns=["step", "loss"]).schema.names == ["step", "loss"]


@pytest.mark.parametrize("after", [0, 3, 5, 6, 9, 50])
def test_reading_after_a_step(tmp_path, after):
    record(tmp_path, range(1, 6), range(6, 10))
    assert steps(tmp_path, after_step=after) == list(range(after + 1, 10))


def test_reading_after_a_step_does_not_open_old_parts(tmp_path):
    record(tmp_path, range(1, 6), range(6, 10))
    (tmp_path / part_name(1, 5)).write_bytes(b"unreadable")
    assert steps(tmp_path, after_step=5) == [6, 7, 8, 9]


def test_chosen_columns_in_their_order(tmp_path):
    record(tmp_path, range(1, 4))
    table = read_dynamics(tmp_path, columns=["loss", "z_w"], after_step=1)
    assert table.schema.names == ["loss", "z_w"]
    assert table["loss"].to_pylist() == [0.2, 0.3]


def test_records_from_before_a_column_are_read_as_not_measured(tmp_path):
    recorder = Recorder(tmp_path)
    recorder.add(row(1))
    recorder.flush()
    (part,) = tmp_path.glob("part-*.parquet")
    pq.write_table(pq.read_table(part).drop_columns(["rho_full", "padding"]), part)
    table = read_dynamics(tmp_path)
    assert table.schema.names == SCHEMA.names
    assert math.isnan(table["rho_full"][0].as_py()) and table["step"][0].as_py() == 1
    assert read_dynamics(tmp_path, ["padding"]).num_rows == 1


# -- damage


def test_the_record_is_sound_up_to_the_first_damaged_or_missing_part(tmp_path):
    assert sound_until(tmp_path) == 0
    record(tmp_path, range(1, 6), range(6, 8), range(8, 12))
    assert sound_until(tmp_path) == 11
    (tmp_path / part_name(8, 11)).write_bytes((tmp_path / part_name(8, 11)).read_bytes()[:100])
    assert sound_until(tmp_path) == 7
    (tmp_path / part_name(6, 7)).unlink()
    assert sound_until(tmp_path) == 5


def test_a_turned_byte_shows_unless_it_changes_nothing(tmp_path):
    record(tmp_path, range(1, 200))
    path = tmp_path / part_name(1, 199)
    sound, rows = path.read_bytes(), read_dynamics(tmp_path).to_pandas()
    noticed = 0
    for place in range(0, len(sound), 41):
        content = bytearray(sound)
        content[place] ^= 0xFF
        path.write_bytes(content)
        if sound_until(tmp_path) == 0:
            noticed += 1
        else:  # in what only describes the numbers
            assert read_dynamics(tmp_path).to_pandas().equals(rows), place
    assert noticed > 100


def test_a_part_of_other_steps_than_its_name_says_is_not_sound(tmp_path):
    record(tmp_path, range(1, 6))
    (tmp_path / part_name(1, 5)).rename(tmp_path / part_name(1, 6))
    assert sound_until(tmp_path) == 0
