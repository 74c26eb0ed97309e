"""Code that ships with a model runs only if asked for, and then from a commit that was named."""

import json

import pytest
import torch
from safetensors.torch import save_file

from rcray.config import build_run
from rcray.config.model import ModelConfig
from rcray.errors import ConfigError, ModelError
from rcray.models.load import load_model
from rcray.train.checkpoint import save_checkpoint

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def with_code(tmp_path):
    """A model directory whose code leaves a mark when it is imported."""
    folder, mark = tmp_path / "model", tmp_path / "mark"
    folder.mkdir()
    own = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel", "AutoTokenizer": ["own.OwnTok", None]}
    (folder / "config.json").write_text(json.dumps({"model_type": "own-kind", "auto_map": own}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "OwnTok", "auto_map": own}))
    (folder / "own.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
    save_file({"a": torch.zeros(1)}, folder / "model.safetensors")
    return folder, mark


def test_a_models_code_is_not_run(with_code, tmp_path):
    folder, mark = with_code
    with pytest.raises(ModelError, match=r"model\.name"):
        load_model(ModelConfig(name=str(folder)), tmp_path / "cache")
    assert not mark.exists()


def test_that_code_would_leave_its_mark(with_code, tmp_path, monkeypatch):
    """The test above can fail: asked for, the same code is run."""
    folder, mark = with_code
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    with pytest.raises((ModelError, AttributeError)):
        load_model(ModelConfig(name=str(folder), trust_remote_code=True), tmp_path / "cache")
    assert mark.exists()


def test_off_unless_asked():
    assert ModelConfig().trust_remote_code is False


@pytest.mark.parametrize("revision", [None, "main", "v1.0", COMMIT[:12], COMMIT + "0"])
def test_code_from_the_hub_is_pinned_to_a_commit(revision):
    model = {"name": "owner/model", "trust_remote_code": True, "revision": revision}
    with pytest.raises(ConfigError, match=r"trust_remote_code.*not a commit"):
        build_run({"model": model}, {}, "x")


def test_a_commit_or_a_directory_of_ones_own_will_do(tmp_path):
    assert ModelConfig(name="owner/model", trust_remote_code=True, revision=COMMIT).trust_remote_code
    assert ModelConfig(name=str(tmp_path), trust_remote_code=True).trust_remote_code


def test_pickled_weights_are_no_weights(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gpt_neox"}')
    torch.save({"a": torch.zeros(1)}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"no model\.safetensors"):
        load_model(ModelConfig(name=str(tmp_path)), tmp_path / "cache")


class Touch:
    """Unpickled, it makes a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (self.path, "w"))


def test_a_checkpoint_with_code_in_it_is_not_run(tmp_path):
    """Hash and size are right, as somebody who can write the store would make them."""
    import pickle

    from rcray.files import measured, write_json
    from rcray.train.checkpoint import Progress, Resumable, restore_newest

    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
    state = Resumable(model, optimizer, scheduler)
    path = save_checkpoint(tmp_path / "checkpoints", state, Progress(step=1), keep=1)
    mark = tmp_path / "mark"
    torch.save({"optimizer": Touch(str(mark))}, path / "optimizer.pt")
    names = ("model.safetensors", "optimizer.pt", "state.json")
    write_json(path / "manifest.json", {name: measured(path / name) for name in names})
    with pytest.raises(pickle.UnpicklingError):
        restore_newest(tmp_path / "checkpoints", state)
    assert not mark.exists()
