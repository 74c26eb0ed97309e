"""Trained models in MLflow, only when asked for: they load again, and the best cell is the one registered."""

import json
from types import SimpleNamespace

import mlflow
import pytest
import torch
from mlflow.tracking import MlflowClient

from rcray.config import RunConfig
from rcray.errors import ConfigError, RcrayError
from rcray.models.trained import load_trained
from rcray.store import Store
from rcray.sweep.grid import Cell
from rcray.sync import Models, Synced, sync, sync_models
from rcray.track.address import Address
from rcray.track.book import Book
from rcray.train.launch import launch
from tests.small_runs import SMALL
from tests.track.stored_runs import evaluate, make_cell, set_status

PROMPT = "a b c d"


def trained_cell(store: Store, **settings) -> Cell:
    run = {**SMALL, "data": {"train_pairs": 8, "eval_pairs": 8}, **settings}
    config = RunConfig.model_validate(run)
    status = launch(config, store)
    assert status.status == "ok"
    return Cell(status.run_id, config, ())


def logits(model, tokenizer):
    with torch.no_grad():
        return model(input_ids=torch.tensor([tokenizer.encode(PROMPT)])).logits


def test_models_are_off_by_default(tmp_path):
    assert Models().log == "none"
    with pytest.raises(ConfigError, match=r"--register(.|\n)*--log-models best"):
        Models(register="name")


def test_the_model_of_a_run_that_was_not_delivered(store, monkeypatch):
    cell = make_cell()
    set_status(store, cell, "ok")
    evaluate(store, cell, 0.5)
    monkeypatch.setattr("rcray.track.mlflow.MlflowTracker", lambda address, artifacts: None)
    delivery = SimpleNamespace(problems={cell.run_id: "status.json: refused"})
    synced = Synced("small", Address(store.default_tracking_uri), (cell,), delivery)
    with pytest.raises(RcrayError, match=r"no run in MLflow to go to: status\.json: refused"):
        sync_models(synced, store, Models("best"))


@pytest.mark.slow
def test_the_best_cell_is_logged_registered_and_loads_again(store):
    address = Address(store.default_tracking_uri)
    plain = trained_cell(store)
    adapted = trained_cell(store, model={"name": "tiny-neox", "method": "lora", "lora": {"r": 4}})
    evaluate(store, plain, 0.5)
    evaluate(store, adapted, 0.75)
    book = Book(store, "models")
    book.enter([plain, adapted], "", address.uri)
    synced = sync(book, store, address)
    runs = book.server(address.uri).runs
    client = MlflowClient(address.uri)
    assert not client.list_artifacts(runs[adapted.run_id], "model")

    with pytest.raises(ConfigError, match=r"--best-by 'acc'.*preference/accuracy"):
        sync_models(synced, store, Models("best", best_by="acc"))
    said = sync_models(synced, store, Models("all", "small-model"))
    assert said[-1].endswith("registered as small-model version 1")
    (version,) = client.search_model_versions("name = 'small-model'")
    assert version.run_id == runs[adapted.run_id]
    assert client.get_model_version_by_alias("small-model", "best").version == version.version
    for cell in (plain, adapted):
        folder = client.download_artifacts(runs[cell.run_id], "model")
        loaded = mlflow.transformers.load_model(folder, return_type="components")
        original = load_trained(store.run(cell.run_id).final, store.cache)
        wanted = logits(original.model, original.tokenizer)
        restored = logits(loaded["model"].eval(), loaded["tokenizer"])
        assert (wanted - restored).abs().max() < (1e-4 if cell is adapted else 1e-7), cell.label
        with open(f"{folder}/adapter_chain.json") as chain:
            assert json.load(chain)["ours"]["state"] == ("merged" if cell is adapted else "full weights")

    again = sync_models(synced, store, Models("all", "small-model"))
    assert all("already" in line for line in again[:-1]) and again[-1] == said[-1], "nothing twice"


def test_no_finished_cell_is_no_best_one(tmp_path):
    from rcray.track.registry import best_to_register
    from tests.track.stored_runs import finish, set_status

    store = Store.open(tmp_path / "store")
    good, collapsed = make_cell("dpo"), make_cell("cpo")
    finish(store, good, 0.5)
    finish(store, collapsed, 0.9)
    set_status(store, collapsed, "degenerate")
    assert store.run(collapsed.run_id).scores() == {}, "a degenerate run has no score"
    assert best_to_register(store, [collapsed, good], "preference/accuracy") == good
    with pytest.raises(ConfigError, match="no finished cell"):
        best_to_register(store, [collapsed], "preference/accuracy")
