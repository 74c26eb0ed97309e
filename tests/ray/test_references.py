"""References as Ray tasks: computed once, divided among the workers of a real local cluster."""

import pytest
import torch

import rcray.models.reference as reference
from rcray.config import Experiment
from rcray.data.prepare import prepare_data
from rcray.models.load import load_model
from rcray.sweep.connection import connect
from rcray.sweep.grid import expand
from rcray.sweep.placement import NodeKind
from rcray.sweep.preparation import LARGE, build_references, reference_tasks, shared_references

pytestmark = pytest.mark.ray


def cells(**run):
    grid = {"objective": ["dpo", "cpo", "dil-bce"], "calibration.enabled": [False, True]}
    return expand(Experiment(name="large", run=run, grid=grid))


def test_only_large_references_have_a_stage_and_each_only_one():
    assert shared_references(cells(data={"train_pairs": LARGE})) == []
    assert len(shared_references(cells(data={"train_pairs": LARGE + 1}))) == 1


@pytest.mark.parametrize(
    ("execution", "nodes", "pairs", "expected"),
    [
        ({}, [("large", {"CPU": 64.0}, 3)], None, 3),
        ({}, [("large", {"CPU": 64.0}, 3), ("head", {"CPU": 0.0}, 1)], None, 3),
        ({}, [("large", {"CPU": 64.0}, 3)], LARGE + 1, 2),
        ({"gpus_per_worker": 1}, [("eight", {"CPU": 64.0, "GPU": 8.0}, 2)], None, 16),
        ({"gpus_per_worker": 0.25}, [("two", {"CPU": 64.0, "GPU": 2.0}, 1)], None, 2),
        ({"storage": "s3://bucket/runs"}, [("large", {"CPU": 64.0}, 3)], None, 1),
    ],
)
def test_one_task_per_node_or_gpu(execution, nodes, pairs, expected):
    (config,) = shared_references(cells(data={"train_pairs": pairs or 10**6}, execution=execution))
    config = config.model_copy(update={"data": config.data.model_copy(update={"train_pairs": pairs})})
    assert reference_tasks(config, [NodeKind(*node) for node in nodes]) == expected


def test_tasks_divide_the_work(store, monkeypatch):
    import ray

    (config,) = shared_references(cells(data={"train_pairs": LARGE + 60, "eval_pairs": 4}))
    connect(needs_dashboard=False)
    try:
        build_references([config], store, [NodeKind(name, {"CPU": 1.0}, 1) for name in "ab"])
    finally:
        ray.shutdown()
    loaded = load_model(config.model, store.cache)
    data = prepare_data(config.data, loaded.tokenizer, store.cache).train
    forward, pairs = reference._forward, []

    def counts(model, encoded, index, device):
        pairs.append(len(index))
        return forward(model, encoded, index, device)

    monkeypatch.setattr(reference, "_forward", counts)
    logps = reference.reference_logps(loaded, data, store.cache, torch.device("cpu"))
    assert len(logps.sum_w) == LARGE + 60
    assert pairs == [4], "nothing was left to compute but the sample"
    locks = {path.name for path in (store.cache / "reference").glob("*.locks/*")}
    assert {"000000", "000001"} <= locks
