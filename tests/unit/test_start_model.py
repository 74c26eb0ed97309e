"""`train.epochs: 0`: the start model as a cell of its own, evaluated and not trained."""

import pytest
import torch
from safetensors.torch import load_file

from rcray.config import run_id
from rcray.config.evaluation import EvaluationConfig
from rcray.config.schema import Experiment
from rcray.evaluate.stage import evaluate_run
from rcray.records.states import State
from rcray.sweep.grid import expand
from rcray.train.launch import is_finished, launch
from tests.small_runs import SMALL, small_config


def start(**settings):
    return small_config(**{**settings, "train": {**settings.get("train", {}), "epochs": 0}})


def test_one_run_whatever_would_have_been_trained():
    same = [
        start(),
        start(objective="cpo"),
        start(calibration=True),
        start(train={"learning_rate": 1e-3, "seed": 7, "batch_size": 16}),
    ]
    assert len({run_id(config) for config in same}) == 1
    others = [start(model="tiny-mistral"), start(data={"seed": 3}), start(likelihood="mean"), small_config()]
    assert len({run_id(config) for config in [same[0], *others]}) == 1 + len(others)
    adapted = [start(model={"name": "tiny-neox", "method": "lora", "lora": {"r": r}}) for r in (4, 8)]
    assert len({run_id(config) for config in adapted}) == 1, "a new adapter changes nothing"


def test_a_grid_over_epochs_has_it_once():
    grid = {"train.epochs": [0, 1], "objective": ["dpo", "cpo"], "calibration.enabled": [False, True]}
    labels = [cell.label for cell in expand(Experiment(name="some", run=SMALL, grid=grid))]
    assert len(labels) == 5
    assert labels[0] == "tiny-neox · start model"
    assert labels[1] == "tiny-neox · dpo · no RC · epochs=1"


@pytest.mark.parametrize("method", ["full", "lora"])
def test_it_is_kept_untrained_and_evaluated_as_any_other(store, method):
    config = start(model={"name": "tiny-neox", "method": method})
    assert not config.needs_reference, "nothing is trained, so nothing is prepared for it"
    status = launch(config, store)
    assert (status.status, status.step, status.total_steps) == ("ok", 0, 0)
    assert is_finished(store.run(run_id(config)))
    run = store.run(run_id(config))
    if method == "full":
        (base,) = (store.cache / "models").glob("tiny-neox-*/model.safetensors")
        kept, expected = load_file(run.final / "model.safetensors"), load_file(base)
        assert all(torch.equal(kept[name], expected[name]) for name in expected)
    evaluation = evaluate_run(config, store, EvaluationConfig(benchmarks=("rcray_choice",), limit=8))
    rows = {row.metric: row for row in evaluation.rows}
    assert rows["acc"].status is State.OK and rows["acc"].value is not None
    assert rows["drift_w"].value == rows["drift_l"].value == rows["margin"].value == 0
    assert rows["accuracy"].status is State.UNDEFINED
    assert rows["accuracy"].reason == "the start model is its own reference"
