"""Errors told apart, a cell in smaller portions, and a process that lets go of the cell before."""

import gc

import pytest
import torch

from rcray.config import RunConfig
from rcray.errors import ConfigError, RunLockedError
from rcray.sweep.faults import classify
from rcray.sweep.grid import Cell
from rcray.sweep.trial import adjustment, run_trial, smaller_micro_batch, with_micro_batch
from tests.small_runs import small_config


class ActorDiedError(Exception):
    """By the name of Ray's."""


def caused(error, cause):
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), "memory"),
        (MemoryError(), "memory"),
        (caused(RuntimeError("training failed"), torch.OutOfMemoryError()), "memory"),
        (ActorDiedError("killed because the node was running low on memory"), "memory"),
        (ActorDiedError("the node has died"), "transient"),
        (ConnectionResetError("by peer"), "transient"),
        (TimeoutError(), "transient"),
        (RunLockedError("another process is training it"), "transient"),
        (OSError(116, "Stale file handle"), "transient"),
        (OSError(28, "No space left on device"), "deterministic"),
        (ConfigError("no"), "deterministic"),
        (RuntimeError("out of memory, says a user's own code"), "deterministic"),
        (ZeroDivisionError(), "deterministic"),
    ],
)
def test_errors_are_told_apart(error, kind):
    assert classify(error) == kind


@pytest.mark.parametrize(
    ("batch", "micro", "workers", "expected"),
    [(32, 8, 0, 4), (32, 1, 0, None), (12, 6, 0, 3), (9, 9, 0, 3), (32, 8, 4, 4), (32, 4, 4, None), (32, 2, 0, 1)],
)
def test_half_the_micro_batch(batch, micro, workers, expected):
    config = RunConfig.model_validate(
        {"train": {"batch_size": batch, "micro_batch_size": micro}, "execution": {"workers": workers}}
    )
    found = smaller_micro_batch(config)
    assert found == expected
    if found:
        smaller = RunConfig.model_validate(with_micro_batch(config, found).model_dump())
        assert smaller.train.batch_size == batch, "the same pairs per update"


@pytest.mark.parametrize(("granularity", "smaller_windows"), [("microbatch", True), ("step", False)])
def test_a_smaller_window_is_told(granularity, smaller_windows):
    config = RunConfig.model_validate({"calibration": {"granularity": granularity}})
    note = adjustment(config, 4).note
    assert note.startswith("micro-batch 8 -> 4")
    assert ("smaller windows" in note) == smaller_windows


def test_a_process_lets_go_of_what_it_trained(store, monkeypatch):
    """Ray's processes go from cell to cell; models of finished ones would add up until Python happens to tidy up."""
    from ray import tune

    from rcray.config import run_id
    from rcray.train.loop import Training

    def trainings():
        return sum(type(thing) is Training for thing in gc.get_objects())

    config = small_config(data={"train_pairs": 8, "eval_pairs": 4})
    seen = []
    monkeypatch.setattr(tune, "report", lambda *_: None)
    gc.collect()
    gc.disable()
    try:
        cell = Cell(run_id(config), config, ())
        run_trial({"cell": cell.content()}, store, (lambda *_: seen.append(trainings()),))
    finally:
        gc.enable()
    assert store.run(cell.run_id).read_status().status == "ok"
    assert (seen, trainings()) == ([0], 0), "neither while it is evaluated nor after"
