"""Thousands of cells: those under way are delivered while they are, and what is level costs nothing."""

import itertools

import pytest

from rcray import follow
from rcray.store import RunDir
from rcray.track.sessions import Session
from tests.track.in_memory import delivery_to, kept
from tests.track.stored_runs import finish, make_cell, set_status, train_to

CELLS, RUNNING = 3000, 12


@pytest.fixture
def store(empty_store):
    return empty_store


@pytest.fixture(scope="module")
def many():
    return [make_cell(train={"seed": seed}) for seed in range(CELLS)]


def delivered(tracker, cell):
    runs = [each for each in tracker.kept.values() if each.run.tags.get("rcray.run_id") == cell.run_id]
    return max((step for each in runs for step, _ in tracker.curve(each.run.id, "loss")), default=0)


def reads(monkeypatch):
    """The runs whose status is read from here on."""
    read = []
    original = RunDir.read_status
    monkeypatch.setattr(RunDir, "read_status", lambda run: read.append(run.run_id) or original(run))
    return read


def test_running_cells_are_reached_among_thousands_that_wait(store, tracker, many, monkeypatch):
    asked = itertools.count()  # a clock that goes on when it is asked: a pass may ask it a hundred times
    monkeypatch.setattr(
        follow.time, "process_time", lambda: next(asked) * follow._DUTY * follow.SLOWEST_POLL_SECONDS / 100
    )
    running = many[CELLS - RUNNING :]
    delivery = delivery_to(tracker, store, many, live=True)
    live = {"a": Session(tuple(cell.run_id for cell in many))}
    for step in (5, 10, 15):
        for cell in running:
            train_to(store, cell, step)
        for _ in range(4):
            follow._pass(delivery, live, lambda sent: None)
        assert [delivered(tracker, cell) for cell in running] == [step] * RUNNING
    assert len(tracker.kept) < CELLS, "the limit cut no pass short: this shows nothing"


def test_a_pass_goes_on_where_the_last_one_stopped(store, tracker):
    cells = [make_cell(train={"seed": seed}) for seed in range(10)]
    delivery = delivery_to(tracker, store, cells, live=True)
    reached = set()
    for step in range(1, 5):
        for cell in cells:  # every one of them has news in every pass
            train_to(store, cell, step)
        before = {cell.run_id: delivered(tracker, cell) for cell in cells}
        asked = iter([False, False] * 3)  # before a cell, and after its batch
        delivery.deliver(stop=lambda asked=asked: next(asked, True))
        reached |= {cell.run_id for cell in cells if delivered(tracker, cell) > before[cell.run_id]}
    assert len(reached) == 10


def test_what_is_level_is_not_read_again(store, tracker, monkeypatch):
    cells = [make_cell(train={"seed": seed}) for seed in range(20)]
    train_to(store, cells[7], 5)
    finish(store, cells[8])
    store.run(cells[8].run_id).evaluation.unlink()
    delivery = delivery_to(tracker, store, cells, live=True, awaits_evaluation=True)
    delivery.deliver()
    read = reads(monkeypatch)
    delivery.deliver()
    assert read == []
    set_status(store, cells[7], "running", seconds=2.5)
    finish(store, cells[8])
    delivery.deliver()
    assert set(read) == {cells[7].run_id, cells[8].run_id}
    assert "evaluation.json" in kept(tracker, cells[8]).files, "measured after its training"
    read.clear()
    delivery.deliver(final=True)
    assert set(read) == {cell.run_id for cell in cells}, "the last pass asks of every one"
    assert kept(tracker, cells[7]).run.state == "KILLED"
