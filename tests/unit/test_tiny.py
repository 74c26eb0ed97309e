"""The embedded models: real architectures, complete directories, built once; and what loading refuses."""

import json
import math
import shutil
from dataclasses import replace

import pytest
import torch
from torch import nn

from rcray.config.data import DataConfig
from rcray.config.model import ModelConfig
from rcray.data.batch import collate
from rcray.data.pairs import load_pairs
from rcray.errors import EXIT_USAGE, ModelError
from rcray.models import tiny
from rcray.models.likelihood import side_logps
from rcray.models.load import load_model, turn_off_dropout, weights_fingerprint
from rcray.models.sources import save_whole
from tests.small_runs import encode_pairs

CLASSES = {"tiny-neox": "GPTNeoXForCausalLM", "tiny-mistral": "MistralForCausalLM", "tiny-qwen2": "Qwen2ForCausalLM"}


def test_any_worker_of_a_group_may_build_it(tmp_path, monkeypatch):
    """transformers writes weights on rank 0 alone, and whichever worker has the lock builds for all."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    monkeypatch.setitem(tiny.TINY_MODELS, "tiny-neox", replace(tiny.TINY_MODELS["tiny-neox"], warm_up_steps=1))
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    try:
        built = tiny.tiny_model_dir("tiny-neox", tmp_path)
    finally:
        dist.destroy_process_group()
    assert (built / "model.safetensors").is_file() and (built / "config.json").is_file()


def test_saving_plants_nothing_on_the_model(quick_cache, tmp_path):
    model = load_model(ModelConfig(name=str(quick_cache / "tiny-neox")), quick_cache, seed=1).model
    before = set(vars(model))
    save_whole(model, tmp_path / "saved")
    assert set(vars(model)) == before and (tmp_path / "saved" / "model.safetensors").is_file()


@pytest.mark.parametrize("name", CLASSES)
def test_every_architecture_loads_as_any_model_and_scores_pairs(quick_cache, name):
    from transformers import AutoModelForCausalLM

    plain = AutoModelForCausalLM.from_pretrained(quick_cache / name)
    assert type(plain).__name__ == CLASSES[name]
    loaded = load_model(ModelConfig(name=str(quick_cache / name)), quick_cache)
    assert weights_fingerprint(plain) == weights_fingerprint(loaded.model)
    assert max(loaded.tokenizer.get_vocab().values()) < plain.config.vocab_size, "every token has an embedding"
    data = encode_pairs(load_pairs(DataConfig(train_pairs=4)).train, loaded.tokenizer, DataConfig())
    assert data.report.rows("realigned") == []
    batch = collate(data.pairs, range(4))
    with torch.no_grad():
        logps = side_logps(loaded.model, batch.chosen)
    assert logps.sums.isfinite().all() and (logps.sums < 0).all()


@pytest.mark.parametrize("name", CLASSES)
def test_two_training_forwards_are_equal(quick_cache, name):
    loaded = load_model(ModelConfig(name=str(quick_cache / name)), quick_cache)
    loaded.model.train()
    ids = torch.arange(5, 25)[None]
    with torch.no_grad():
        assert torch.equal(loaded.model(input_ids=ids).logits, loaded.model(input_ids=ids).logits)


def test_dropout_is_turned_off_wherever_it_is_written():
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    model = GPTNeoXForCausalLM(GPTNeoXConfig(vocab_size=30, hidden_dropout=0.5, attention_dropout=0.5, **sizes)).train()
    ids = torch.arange(20)[None]

    def noisy():
        with torch.no_grad():
            return not torch.equal(model(input_ids=ids).logits, model(input_ids=ids).logits)

    assert noisy()
    turn_off_dropout(model)
    assert all(module.p == 0 for module in model.modules() if isinstance(module, nn.Dropout))
    assert not noisy()


@pytest.mark.parametrize("name", CLASSES)
def test_saved_as_safetensors_only(quick_cache, name):
    names = {path.name for path in (quick_cache / name).iterdir()}
    assert {"model.safetensors", "config.json", "tokenizer.json"} <= names
    assert not {n for n in names if n.endswith((".bin", ".pt", ".pth", ".pkl"))}


def test_warm_up_taught_the_language(neox):
    """After it a right answer costs far less than a guess, and rightly less than a flawed one."""
    data = encode_pairs(load_pairs(DataConfig(eval_pairs=32)).held_out, neox.tokenizer, DataConfig())
    batch = collate(data.pairs, range(32))
    with torch.no_grad():
        chosen, rejected = side_logps(neox.model, batch.chosen), side_logps(neox.model, batch.rejected)
    per_token = (chosen.sums / chosen.lengths).mean().item()
    assert per_token > -0.5 * math.log(neox.model.config.vocab_size)
    assert (chosen.sums > rejected.sums).float().mean() > 0.6


def test_built_once_and_read_by_others(model_cache):
    first = tiny.tiny_model_dir("tiny-neox", model_cache)
    written = (first / "model.safetensors").stat().st_mtime_ns
    assert tiny.tiny_model_dir("tiny-neox", model_cache) == first
    assert (first / "model.safetensors").stat().st_mtime_ns == written
    assert first.stat().st_mode & 0o777 == 0o755
    assert list(first.parent.glob(".building-*")) == []


def test_building_is_reproducible_and_leaves_the_generator_alone(monkeypatch, tmp_path):
    monkeypatch.setitem(tiny.TINY_MODELS, "tiny-neox", replace(tiny.TINY_MODELS["tiny-neox"], warm_up_steps=1))
    torch.manual_seed(7)
    before = torch.get_rng_state()
    prints = []
    for cache in (tmp_path / "a", tmp_path / "b"):
        built = tiny.tiny_model_dir("tiny-neox", cache)
        prints.append((built / "model.safetensors").read_bytes())
        assert torch.equal(torch.get_rng_state(), before)
        torch.manual_seed(7)
    assert prints[0] == prints[1]


def test_a_recipe_names_its_directory(monkeypatch, tmp_path):
    monkeypatch.setattr(tiny, "_build", lambda recipe, target: (target / "built").write_text(str(recipe)))
    first = tiny.tiny_model_dir("tiny-qwen2", tmp_path)
    monkeypatch.setitem(tiny.TINY_MODELS, "tiny-qwen2", replace(tiny.TINY_MODELS["tiny-qwen2"], version=99))
    assert tiny.tiny_model_dir("tiny-qwen2", tmp_path) != first


def test_a_failed_build_leaves_nothing(monkeypatch, tmp_path):
    def half(_recipe, target):
        (target / "config.json").write_text("{}")
        raise KeyboardInterrupt

    monkeypatch.setattr(tiny, "_build", half)
    with pytest.raises(KeyboardInterrupt):
        tiny.tiny_model_dir("tiny-neox", tmp_path)
    assert [path.suffix for path in (tmp_path / "models").iterdir()] in ([], [".lock"])


# -- what loading refuses


def refuse(name, cache) -> str:
    with pytest.raises(ModelError) as caught:
        load_model(ModelConfig(name=str(name)), cache)
    message = str(caught.value)
    assert caught.value.exit_code == EXIT_USAGE
    assert "model.name" in message and str(name) in message and "fix:" in message
    assert len(message) < 1000
    return message


@pytest.fixture
def copy(quick_cache, tmp_path):
    return shutil.copytree(quick_cache / "tiny-neox", tmp_path / "model")


def test_the_copy_itself_loads(copy, tmp_path):
    load_model(ModelConfig(name=str(copy)), tmp_path)


@pytest.mark.parametrize("name", ["/no/such/directory", "./nor/this", "../nor-that"])
def test_a_missing_directory(tmp_path, name):
    assert "no such directory" in refuse(name, tmp_path)


def test_no_chat_template(copy, tmp_path):
    (copy / "chat_template.jinja").unlink()
    assert "no chat template" in refuse(copy, tmp_path)


def test_pickled_weights_are_not_read(copy, tmp_path):
    from safetensors.torch import load_file

    torch.save(load_file(copy / "model.safetensors"), copy / "pytorch_model.bin")
    (copy / "model.safetensors").unlink()
    assert "safetensors" in refuse(copy, tmp_path)


def test_a_truncated_weight_file(copy, tmp_path):
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    refuse(copy, tmp_path)


def test_missing_weights_are_not_made_up(copy, tmp_path):
    from safetensors.torch import load_file, save_file

    weights = load_file(copy / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if "layers.1." not in name}
    save_file(kept, copy / "model.safetensors", metadata={"format": "pt"})
    assert "weights missing: gpt_neox.layers.1." in refuse(copy, tmp_path)


def test_weights_of_another_shape(copy, tmp_path):
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "vocab_size": 99}))
    refuse(copy, tmp_path)


@pytest.mark.parametrize("text", ["{", "{}", '{"model_type": "no-such-model"}'])
def test_a_wrong_config(copy, tmp_path, text):
    (copy / "config.json").write_text(text)
    refuse(copy, tmp_path)


def test_no_tokenizer(copy, tmp_path):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (copy / name).unlink()
    assert "tokenizer" in refuse(copy, tmp_path)


def test_a_damaged_tokenizer(copy, tmp_path):
    (copy / "tokenizer.json").write_text("{}")
    refuse(copy, tmp_path)
