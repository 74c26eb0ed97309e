"""Exports load in plain peft and transformers, and are the model that was trained."""

import pytest
import torch
from typer.testing import CliRunner

from rcray.cli import app
from rcray.config import run_id
from rcray.errors import ModelError
from rcray.export import export_run
from rcray.models.trained import load_trained
from rcray.train.launch import launch
from tests.small_runs import small_config

TEXT = torch.tensor([[5, 9, 40, 77, 12, 300, 8]])


@pytest.fixture(scope="module")
def trained(tmp_path_factory, model_cache):
    """A LoRA run and a full one, of one step each."""
    from rcray.store import Store

    store = Store.open(tmp_path_factory.mktemp("export") / "store")
    store.cache.symlink_to(model_cache)
    small = {"data": {"train_pairs": 8, "eval_pairs": 4}, "train": {"learning_rate": 1e-2}}
    lora = small_config(**small, model={"name": "tiny-neox", "method": "lora"}, calibration={"scores": "adapters"})
    full = small_config(**small)
    for config in (lora, full):
        launch(config, store)
    return store, lora, full


def logits(model):
    with torch.no_grad():
        return model.eval()(input_ids=TEXT).logits


def as_trained(store, config):
    return logits(load_trained(store.run(run_id(config)).final, store.cache).model)


def test_an_adapter_loads_in_plain_peft(trained, tmp_path):
    from peft import AutoPeftModelForCausalLM

    store, lora, _ = trained
    exported = export_run(lora, store, tmp_path / "adapter")
    assert exported.kind == "adapter"
    model = AutoPeftModelForCausalLM.from_pretrained(exported.directory, dtype=torch.float32)
    torch.testing.assert_close(logits(model), as_trained(store, lora), rtol=0, atol=1e-4)
    with model.disable_adapter():
        assert (logits(model) - as_trained(store, lora)).abs().max() > 1e-3, "the adapter does something"


@pytest.mark.parametrize("which", ["merged", "full"])
def test_whole_weights_load_in_plain_transformers(trained, tmp_path, which):
    from transformers import AutoModelForCausalLM

    store, lora, full = trained
    config = lora if which == "merged" else full
    exported = export_run(config, store, tmp_path / which, merge=True)
    assert exported.kind == ("merged" if which == "merged" else "full weights")
    assert not (exported.directory / "adapter_config.json").exists()
    model = AutoModelForCausalLM.from_pretrained(exported.directory, dtype=torch.float32)
    torch.testing.assert_close(logits(model), as_trained(store, config), rtol=0, atol=1e-4)


def test_the_cards_own_lines_run(trained, tmp_path):
    store, lora, _ = trained
    exported = export_run(lora, store, tmp_path / "adapter")
    card = (exported.directory / "README.md").read_text()
    for word in ("DPO", "reward calibration | off", "synthetic", run_id(lora), "tiny-neox (lora)", "fingerprint"):
        assert word in card
    scope: dict = {}
    exec(card.partition("```python\n")[2].partition("```")[0], scope)
    assert isinstance(scope["model"], torch.nn.Module)


def test_the_command_says_where_and_never_overwrites(trained, tmp_path):
    store, lora, _ = trained
    target = tmp_path / "out"
    run = ["export", run_id(lora), "--to", str(target), "--store", str(store.root)]
    done = CliRunner().invoke(app, run)
    assert done.exit_code == 0, done.output
    assert f"adapter in {target}" in done.output and "from_pretrained" in done.output
    with pytest.raises(ModelError, match="exists already"):
        export_run(lora, store, target)
