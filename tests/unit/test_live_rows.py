"""Live rows: there as soon as a step is made, gone when a part has them, and no concern of the training."""

import math

import pytest

from rcray.records.live import FILE, LiveRows, read_live
from rcray.train.dynamics import Recorder, read_dynamics
from rcray.train.launch import launch
from tests.small_runs import Killed, kill_at, small_config
from tests.unit.test_dynamics_recorder import row


def test_a_row_is_there_at_once_and_goes_into_a_part(tmp_path):
    recorder = Recorder(tmp_path / "dynamics", LiveRows(tmp_path))
    recorder.add(row(1, rho=-math.inf, in_band=True))
    recorder.add(row(2))
    first, second = read_live(tmp_path)
    assert (first["step"], first["loss"], first["rho"], first["in_band"]) == (1, 0.1, -math.inf, True)
    assert "z_w" not in first, "what was not measured is not written"
    assert second["step"] == 2
    recorder.flush()
    assert not (tmp_path / FILE).exists()
    assert read_dynamics(tmp_path / "dynamics")["step"].to_pylist() == [1, 2]
    recorder.add(row(3))
    recorder.rewind(2)
    assert read_live(tmp_path) == [], "a step that is made again"


def test_a_disk_that_takes_nothing_stops_no_step(tmp_path):
    live = LiveRows(tmp_path / "gone")
    live.add(row(1))
    live.clear()
    assert read_live(tmp_path / "gone") == []


def test_a_run_leaves_none_behind_however_it_ends(store):
    seen = []
    config = small_config(objective="dpo")
    from rcray.config import run_id

    run = store.run(run_id(config))

    def watch(rows):
        seen.append([each["step"] for each in read_live(run.path)])
        kill_at(5)(rows)

    with pytest.raises(Killed):
        launch(config, store, on_step=watch)
    assert seen == [[1], [1, 2], [1, 2, 3], [4], [4, 5]], "each step at once; a checkpoint at 3 takes its rows"
    assert not (run.path / FILE).exists()
    launch(config, store)
    assert not (run.path / FILE).exists() and len(read_dynamics(run.dynamics)) == 8
