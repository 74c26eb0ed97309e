"""Progress inside a cell: written while it runs, gone afterwards, and said where there is no terminal."""

import time

import pytest

from rcray import progress as screens
from rcray.config import run_id
from rcray.progress import CountLine, LedgerScreen, ProgressLine
from rcray.records import progress
from rcray.records.ledger import Ledger, LedgerEntry
from rcray.records.progress import REFERENCE, TRAINING, Progress, read_progress, report, reporting
from rcray.records.states import State
from rcray.train.launch import launch
from tests.small_runs import small_config


def test_every_phase_of_a_run_is_reported(store, monkeypatch):
    seen = []
    written = progress.write_json
    monkeypatch.setattr(progress, "_WRITE_SECONDS", 0.0)
    monkeypatch.setattr(progress, "write_json", lambda path, note: (seen.append(note), written(path, note)))
    config = small_config(objective={"name": "dpo"})
    launch(config, store)
    phases = list(dict.fromkeys(note["phase"] for note in seen))
    assert phases == ["preparation", REFERENCE, TRAINING]
    steps = [note["done"] for note in seen if note["phase"] == TRAINING]
    assert steps == list(range(1, 9)), "with the steps, not with the checkpoints"
    assert seen[-1]["rate"] > 0 and seen[-1]["total"] == 8
    assert read_progress(store.run(run_id(config)).path) is None, "nobody is at it any more"


def test_an_evaluation_says_how_far_its_requests_are(store, monkeypatch):
    from rcray.config.evaluation import EvaluationConfig
    from rcray.evaluate.stage import evaluate_run

    config = small_config(objective={"name": "cpo"})
    launch(config, store)
    seen = []
    monkeypatch.setattr(progress, "_WRITE_SECONDS", 0.0)
    monkeypatch.setattr(progress, "write_json", lambda path, note: seen.append((note["done"], note["total"])))
    evaluate_run(config, store, EvaluationConfig(preference=False, benchmarks=("rcray_cloze",), limit=8))
    asked = seen[-1][1]
    assert asked >= 8 and seen[-1][0] == asked and len({done for done, _ in seen}) > 1
    seen.clear()
    evaluate_run(config, store, EvaluationConfig(preference=False, samples=2, sample_tokens=4))
    assert seen[-1] == (8, 8), "two prompts, two models, greedily and by a draw"


def test_a_long_pass_says_how_far_it_is(capsys, often):
    with CountLine("pairs read") as line:
        line.update(0, 8)
        time.sleep(0.01)
        line.update(2, 8)
    assert "pairs read 2/8" in capsys.readouterr().err


def test_what_is_said_of_it():
    assert Progress(TRAINING, 12, 24, 0.5).text == "training 12/24, 2.0 s each, 24 s left"
    assert Progress(REFERENCE, 10, 1000, 2.0).text == "reference 10/1000, 2.0/s, 8 min left"
    assert Progress(TRAINING, 0, 24).text == "training 0/24"


def test_a_damaged_note_is_no_note(tmp_path):
    (tmp_path / ".progress.json").write_text("{")
    assert read_progress(tmp_path) is None
    report(TRAINING, 1, 2)  # outside of a run: nothing happens
    assert [path.name for path in tmp_path.iterdir()] == [".progress.json"]


@pytest.fixture
def often(monkeypatch):
    monkeypatch.setattr(screens, "LINE_SECONDS", 0.0)
    monkeypatch.setattr(screens, "_LOOK_SECONDS", 0.02)


def test_without_a_terminal_a_line_now_and_then(capsys, often):
    entry = LedgerEntry("id", "tiny · dpo", State.RUNNING, 3, 9, doing="training 3/9, 1.0 s each, 6 s left")
    with LedgerScreen("t") as screen:
        screen.refresh(Ledger((entry,)))
    assert "tiny · dpo: training 3/9, 1.0 s each, 6 s left" in capsys.readouterr().out


def test_what_is_awaited_is_said_until_a_cell_runs(capsys, often):
    with LedgerScreen("t") as screen:
        screen.refresh(Ledger((LedgerEntry("id", "tiny · dpo"),)))
        assert "starting Ray and its processes" in capsys.readouterr().out
        screen.refresh(Ledger((LedgerEntry("id", "tiny · dpo", State.OK),)))
    assert "starting" not in capsys.readouterr().out


def test_a_single_run_says_what_comes_before_its_first_step(tmp_path, capsys, often):
    with reporting(tmp_path), ProgressLine("tiny · dpo", tmp_path):
        report(REFERENCE, 64, 128)
        said, deadline = "", time.monotonic() + 120
        while "tiny · dpo: reference 64/128" not in said:
            assert time.monotonic() < deadline, said
            time.sleep(0.02)
            said += capsys.readouterr().err
