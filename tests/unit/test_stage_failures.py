"""A stage that fails after training costs that stage, not the training."""

from dataclasses import replace

import pytest

from rcray.config import run_id
from rcray.errors import ConfigError
from rcray.evaluate import command
from rcray.evaluate.stage import Outcome
from rcray.faults import classify
from rcray.records.states import State
from rcray.sweep.grid import Cell
from rcray.sweep.ledger import build_ledger
from rcray.sweep.losses import given_up
from rcray.sweep.trial import _carry_out
from rcray.train.launch import is_finished, is_trained, is_whole, launch
from tests.small_runs import small_config

DATA = {"train_pairs": 8, "eval_pairs": 4}


@pytest.fixture
def cell():
    config = small_config(data=DATA)
    return Cell(run_id(config), config, ())


@pytest.fixture(autouse=True)
def without_tune(monkeypatch):
    from ray import tune

    monkeypatch.setattr(tune, "report", lambda *_: None)


class Stage:
    """Fails with each of these errors, then works."""

    def __init__(self, *errors):
        self.errors, self.calls = list(errors), 0

    def __call__(self, config, store, **_):
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)


def carry_out(cell, store, *stages, given_up=None):
    _carry_out(cell, store.run(cell.run_id), store, stages, False, given_up)


def weights(store, cell):
    return (store.run(cell.run_id).final / "model.safetensors").stat().st_mtime_ns


def shown(cell, store):
    (entry,) = build_ledger([cell], store, stopped={}).cells
    return entry.status, entry.error


@pytest.mark.parametrize(
    ("error", "state"),
    [(ConfigError("no such benchmark"), State.FAILED), (MemoryError("evaluation"), State.OOM)],
)
def test_a_failed_stage_alone_is_done_again(cell, store, error, state):
    stage, run = Stage(error), store.run(cell.run_id)
    carry_out(cell, store, stage)
    trained = weights(store, cell)
    status, text = shown(cell, store)
    assert status is state and str(error) in text and is_trained(run) and not is_finished(run)
    carry_out(cell, store, stage)  # the next command
    assert stage.calls == 2 and weights(store, cell) == trained
    assert shown(cell, store) == (State.OK, "") and is_whole(run) and run.recover_status().error == ""


def test_a_stage_that_lost_its_connection_is_no_failure_until_it_is_given_up(cell, store):
    error = ConnectionError("the hub does not answer")
    stage, run = Stage(error, error), store.run(cell.run_id)
    for _ in range(2):  # as Tune tries it again
        with pytest.raises(ConnectionError):
            carry_out(cell, store, stage)
        assert is_finished(run), "the training has not failed"
    trained = weights(store, cell)
    carry_out(cell, store, stage, given_up=given_up("its process was lost 3 times", error))
    assert stage.calls == 2
    status, text = shown(cell, store)
    assert status is State.FAILED
    assert text == "its process was lost 3 times: ConnectionError: the hub does not answer"
    carry_out(cell, store, stage)  # the next command
    assert stage.calls == 3 and weights(store, cell) == trained
    assert shown(cell, store) == (State.OK, "") and run.recover_status().error == ""


def test_what_a_training_met_is_no_failure_before_it_is_given_up(cell, store, monkeypatch):
    monkeypatch.setattr("rcray.sweep.trial.launch", Stage(ConnectionError("reset")))
    with pytest.raises(ConnectionError):
        carry_out(cell, store)
    status = store.run(cell.run_id).recover_status()
    assert (status.status, status.error) == (State.PENDING, "ConnectionError: reset")


def test_a_failed_training_and_a_degenerate_model_are_as_they_were(cell, store):
    launch(cell.config, store)
    run = store.run(cell.run_id)
    whole = run.recover_status()
    for half in (
        replace(whole, status=State.DEGENERATE, error="answers without reading"),
        replace(whole, status=State.FAILED, step=0, error="an earlier model lies there"),
    ):
        run.write_status(half)
        assert not is_trained(run)


def test_a_run_whose_stage_failed_can_be_evaluated(cell, store, monkeypatch):
    carry_out(cell, store, Stage(ConfigError("no such benchmark")))
    outcomes = [RuntimeError("again"), Outcome(cell.run_id, (), (), 0)]
    monkeypatch.setattr(command, "check_settings", lambda _: None)

    def measured(targets, settings, show, say):
        result = outcomes.pop(0)
        show(targets[0], ConfigError(str(result)) if isinstance(result, Exception) else result)

    monkeypatch.setattr(command, "_on_ray", measured)
    target, run = command.find_run(cell.run_id, store), store.run(cell.run_id)
    settings = command.EvaluationConfig(preference=False, benchmarks=("rcray_choice",), limit=2)
    with pytest.raises(Exception, match="1 failed"):
        command.evaluate([target], settings, print, print)
    assert run.recover_status().status is State.FAILED, "nothing has been mended"
    command.evaluate([target], settings, print, print)
    assert (run.recover_status().status, run.recover_status().error) == (State.OK, "")


def test_a_lost_evaluation_on_ray_is_no_fault_of_the_cell():
    from ray.exceptions import WorkerCrashedError

    assert classify(WorkerCrashedError()) == "transient"
