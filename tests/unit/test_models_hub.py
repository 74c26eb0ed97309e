"""Hub ids: found in the hub's local cache without a connection, or refused in one line."""

import json
import shutil

import pytest
import torch

from rcray.config.model import ModelConfig
from rcray.errors import ModelError
from rcray.models.load import load_model
from rcray.models.trained import load_trained, save_trained

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Publishes directories into a local hub cache, as a download would."""
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))

    def publish(directory, name, without=()):
        place = tmp_path / "hub" / f"models--{name.replace('/', '--')}"
        shutil.copytree(directory, place / "snapshots" / COMMIT, ignore=shutil.ignore_patterns(*without))
        (place / "refs").mkdir()
        (place / "refs" / "main").write_text(COMMIT)

    return publish


def test_a_preset_from_the_cache_with_its_template_and_its_commit_recorded(hub, quick_cache, tmp_path):
    """A stand-in under the preset's hub id, whose tokenizer has no template, as Pythia's has none."""
    hub(quick_cache / "tiny-neox", "EleutherAI/pythia-410m", without=["chat_template.jinja"])
    config = ModelConfig(name="pythia-410m")
    loaded = load_model(config, tmp_path / "cache")
    assert loaded.tokenizer.chat_template == config.chat_template
    save_trained(loaded, tmp_path / "final")
    base = json.loads((tmp_path / "final" / "adapter_chain.json").read_text())["base"]
    assert (base["source"], base["commit"]) == ("EleutherAI/pythia-410m", COMMIT)
    assert load_model(ModelConfig(name="pythia-410m", revision=COMMIT), tmp_path / "cache").fingerprint


def test_the_mistral_chain_from_the_cache(hub, quick_cache, tmp_path):
    """Base and SFT adapter by their hub ids; quantised and computed in float32, which this test can run."""
    exact = {"dtype": "float32", "quantization": {"compute_dtype": "float32"}}
    base = load_model(ModelConfig(name=str(quick_cache / "tiny-mistral"), method="lora"), tmp_path / "cache")
    base.model.save_pretrained(tmp_path / "sft")
    base.tokenizer.save_pretrained(tmp_path / "sft")
    hub(quick_cache / "tiny-mistral", "mistralai/Mistral-7B-v0.1", without=["chat_template.jinja"])
    hub(tmp_path / "sft", "alignment-handbook/zephyr-7b-sft-qlora")
    config = ModelConfig(name="mistral-7b", **exact)
    loaded = load_model(config, tmp_path / "cache")
    assert any(p.dtype == torch.uint8 for p in loaded.model.parameters())
    assert loaded.tokenizer.chat_template, "it comes with the SFT adapter"
    save_trained(loaded, tmp_path / "final")
    load_trained(tmp_path / "final", tmp_path / "cache")
    shutil.rmtree(tmp_path / "hub" / "models--alignment-handbook--zephyr-7b-sft-qlora")
    with pytest.raises(ModelError, match=r"chain is incomplete.*sft_adapter.*zephyr-7b-sft-qlora"):
        load_trained(tmp_path / "final", tmp_path / "cache")


@pytest.mark.parametrize("name", ["nobody/nothing", "pythia-2.8b"])
def test_not_cached_and_no_connection(hub, tmp_path, name):
    with pytest.raises(ModelError) as caught:
        load_model(ModelConfig(name=name), tmp_path)
    message = str(caught.value)
    assert "model.name: cannot load" in message and "fix:" in message and len(message) < 1000


def test_only_a_pickle(hub, quick_cache, tmp_path):
    hub(quick_cache / "tiny-neox", "somebody/pickled", without=["*.safetensors"])
    with pytest.raises(ModelError, match=r"it has no model\.safetensors"):
        load_model(ModelConfig(name="somebody/pickled"), tmp_path)
