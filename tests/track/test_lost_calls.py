"""A tracker that fails at any call, is away, or is given a damaged cell: nothing is lost, nothing is doubled."""

from dataclasses import replace

import pytest

from rcray.track.tracker import TrackerUnavailableError
from tests.track.in_memory import MemoryTracker, delivery_to, kept
from tests.track.stored_runs import finish, make_cell, train_to


@pytest.fixture
def store(empty_store):
    return empty_store


class FailsAt(MemoryTracker):
    """Fails once, at the n-th call that changes something: before it is stored, or after."""

    def __init__(self, fails_at, stored):
        super().__init__()
        self.fails_at, self.stored = fails_at, stored


def _failing(name):
    def method(self, *arguments, **named):
        writes = [call for call in self.calls if call not in ("read_run", "find_run")]
        fails = len(writes) == self.fails_at
        if fails and not self.stored:
            self.fails_at = -1
            raise TrackerUnavailableError("lost")
        result = getattr(MemoryTracker, name)(self, *arguments, **named)
        if fails and self.fails_at >= 0:
            self.fails_at = -1
            raise TrackerUnavailableError("lost after it was stored")
        return result

    return method


WRITES = (
    "open_experiment",
    "create_run",
    "log_params",
    "log_points",
    "set_tags",
    "set_state",
    "log_files",
    "log_table",
)
for _name in WRITES:
    setattr(FailsAt, _name, _failing(_name))


@pytest.mark.parametrize("stored", [False, True], ids=["before it is stored", "after it is stored"])
@pytest.mark.parametrize("same_process", [True, False], ids=["same process", "another process"])
def test_whatever_call_is_lost_the_result_is_the_same(store, tracker, stored, same_process):
    """Every single write fails once, in turn; the next pass makes it good, in this process or another."""
    cells = [make_cell("dpo", steps=40)]
    for cell in cells:
        finish(store, cell)
    delivery_to(tracker, store, cells, started_here={cell.run_id for cell in cells}).deliver(final=True)

    def content(tracked):
        return sorted(
            (
                found_run.run.name,
                found_run.run.state,
                sorted(found_run.run.params.items()),
                {k: v for k, v in found_run.run.tags.items() if k not in ("mlflow.parentRunId", "experiment")},
                sorted((p.name, p.step, p.value) for p in found_run.points),
                sorted(found_run.files),
                found_run.tables,
            )
            for found_run in tracked.kept.values()
        )

    (store.experiment("small") / "tracking.jsonl").unlink()
    failures = 0
    for at in range(100):
        failing = FailsAt(at, stored)
        delivery = delivery_to(failing, store, cells)
        try:
            delivery.deliver(final=True)
        except TrackerUnavailableError:
            failures += 1
            assert failing.fails_at < 0
            second = delivery if same_process else delivery_to(failing, store, cells)
            second.deliver(final=True)
        assert content(failing) == content(tracker), at
        (store.experiment("small") / "tracking.jsonl").unlink()
        if failing.fails_at >= 0:
            break  # past the last write
    assert 10 < failures == at, "every single write was lost once"


def test_an_absent_tracker_loses_nothing(store, tracker):
    cell = make_cell(steps=20)
    delivery = delivery_to(tracker, store, [cell], live=True)
    train_to(store, cell, 5)
    delivery.deliver()
    tracker.down = True
    train_to(store, cell, 15)
    with pytest.raises(TrackerUnavailableError):
        delivery.deliver()
    tracker.down = False
    finish(store, cell)
    delivery.deliver(final=True)
    assert [step for step, _ in tracker.curve(kept(tracker, cell).run.id, "z_w")] == list(range(1, 21))


def test_a_damaged_cell_does_not_hold_up_the_others(store, tracker):
    bad, good = make_cell("dpo"), make_cell("cpo")
    for cell in (bad, good):
        finish(store, cell)
    next(store.run(bad.run_id).dynamics.glob("part-*")).write_bytes(b"not parquet")
    delivery = delivery_to(tracker, store, [bad, good])
    delivery.deliver(final=True)
    assert kept(tracker, good).run.state == "FINISHED"
    assert list(delivery.problems) == [bad.run_id]
    assert bad.label in delivery.problems[bad.run_id]


@pytest.mark.parametrize("edited", ["edited by hand", "[1, 2]"])
def test_a_tag_that_somebody_edited_only_costs_sending_again(store, tracker, edited):
    cell = make_cell()
    finish(store, cell)
    delivery_to(tracker, store, [cell]).deliver(final=True)
    there = kept(tracker, cell)
    there.run = replace(there.run, tags={**there.run.tags, "rcray.delivered": edited})
    there.files.clear()
    delivery = delivery_to(tracker, store, [cell])
    delivery.deliver(final=True)
    assert not delivery.problems and "status.json" in kept(tracker, cell).files
