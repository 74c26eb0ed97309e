"""The adapter chain: base, SFT adapter merged, ours on top; rebuilt exactly, or refused with the piece named."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from rcray.config.model import ModelConfig
from rcray.data.batch import collate
from rcray.data.encode import EncodedPair
from rcray.errors import EXIT_USAGE, ModelError
from rcray.models import load as load_module
from rcray.models import sources
from rcray.models.load import load_model
from rcray.models.trained import load_trained, merge_adapter, save_trained

PAIRS = tuple(
    EncodedPair(str(i), tuple(range(10, 15 + i)), tuple(range(40 + i, 60)), tuple(range(70, 75 + i))) for i in range(4)
)
LORA = {"r": 2, "alpha": 4}


def likelihoods(model):
    from rcray.models.likelihood import side_logps

    with torch.no_grad():
        return side_logps(model.eval(), collate(PAIRS, range(len(PAIRS))).chosen).sums


def stir(model, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))


@pytest.fixture
def base(quick_cache, tmp_path):
    return shutil.copytree(quick_cache / "tiny-mistral", tmp_path / "base")


@pytest.fixture
def sft(base, tmp_path):
    """An SFT adapter as somebody else would publish it, and the likelihoods of base and adapter together."""
    loaded = load_model(ModelConfig(name=str(base), method="lora", lora=LORA), tmp_path / "cache")
    stir(loaded.model, 1)
    loaded.model.save_pretrained(tmp_path / "sft")
    loaded.tokenizer.chat_template = "SFT " + loaded.tokenizer.chat_template
    loaded.tokenizer.save_pretrained(tmp_path / "sft")
    return tmp_path / "sft", likelihoods(loaded.model)


def start(base, sft, method="lora", **more):
    return ModelConfig(name=str(base), sft_adapter=str(sft), method=method, lora=LORA, **more)


@pytest.fixture(params=["lora", "qlora"])
def final(request, base, sft, tmp_path):
    """A trained adapter on top of base and SFT adapter, and its likelihoods."""
    loaded = load_model(start(base, sft[0], request.param), tmp_path / "cache")
    stir(loaded.model, 2)
    save_trained(loaded, tmp_path / "final")
    return tmp_path / "final", likelihoods(loaded.model)


@pytest.mark.parametrize("method", ["full", "lora"])
def test_the_sft_adapter_is_merged_first(base, sft, tmp_path, method):
    loaded = load_model(start(base, sft[0], method), tmp_path / "cache")
    torch.testing.assert_close(likelihoods(loaded.model), sft[1], rtol=0, atol=1e-4)
    plain = load_model(ModelConfig(name=str(base)), tmp_path / "cache").model
    assert (likelihoods(plain) - sft[1]).abs().max() > 0.1
    assert loaded.tokenizer.chat_template.startswith("SFT "), "the adapter's tokenizer, with its template"


def test_the_merge_is_made_once(base, sft, tmp_path, monkeypatch):
    load_model(start(base, sft[0]), tmp_path / "cache")
    monkeypatch.setattr(load_module, "attach_adapter", lambda *_: pytest.fail("merged again"))
    load_model(start(base, sft[0], "qlora"), tmp_path / "cache")
    assert len([p for p in (tmp_path / "cache" / "models").iterdir() if p.is_dir()]) == 1


def test_a_complete_chain_gives_the_same_likelihoods(final, tmp_path):
    directory, expected = final
    torch.testing.assert_close(
        likelihoods(load_trained(directory, tmp_path / "cache").model), expected, rtol=0, atol=1e-5
    )
    elsewhere = load_trained(directory, tmp_path / "another machine's cache")
    torch.testing.assert_close(likelihoods(elsewhere.model), expected, rtol=0, atol=1e-5)


def test_the_chain_says_what_it_is_made_of(final, base, sft):
    chain = json.loads((final[0] / "adapter_chain.json").read_text())
    assert chain["base"]["source"] == str(base)
    assert (chain["sft_adapter"]["source"], chain["sft_adapter"]["state"]) == (str(sft[0]), "merged")
    assert chain["ours"]["state"] == "active"
    prints = [chain[link]["fingerprint"] for link in ("base", "sft_adapter", "ours")]
    assert len(set(prints)) == 3 and all(len(digest) == 64 for digest in prints)
    assert not list(final[0].glob("model*.safetensors")), "the base is not copied"


def change(path):
    tensors = load_file(path)
    name = sorted(tensors)[0]
    tensors[name] = tensors[name] + 1e-3
    save_file(tensors, path, metadata={"format": "pt"})


def drop_the_sft_link(chain):
    content = json.loads(chain.read_text())
    content["sft_adapter"] = content["model"]["sft_adapter"] = None
    chain.write_text(json.dumps(content))


BREAKS = {
    "no chain": (lambda t: (t / "final/adapter_chain.json").unlink(), "adapter_chain.json is missing"),
    "SFT link cut": (lambda t: drop_the_sft_link(t / "final/adapter_chain.json"), "adapter_chain.json is damaged"),
    "no SFT adapter": (lambda t: shutil.rmtree(t / "sft"), "model.sft_adapter: cannot load"),
    "no SFT weights": (lambda t: (t / "sft/adapter_model.safetensors").unlink(), "has no adapter_model.safetensors"),
    "other SFT adapter": (lambda t: change(t / "sft/adapter_model.safetensors"), "the SFT adapter"),
    "no base": (lambda t: shutil.rmtree(t / "base"), "model.name: cannot load"),
    "other base": (lambda t: change(t / "base/model.safetensors"), "the base"),
    "no adapter": (lambda t: (t / "final/adapter_model.safetensors").unlink(), "its own weights"),
    "other adapter": (lambda t: change(t / "final/adapter_model.safetensors"), "its own weights"),
}


@pytest.mark.parametrize("final", ["lora"], indirect=True)
@pytest.mark.parametrize("broken", BREAKS)
def test_an_incomplete_chain_is_refused_with_the_missing_piece(final, tmp_path, broken):
    break_it, expected = BREAKS[broken]
    break_it(tmp_path)
    for use in (load_trained, lambda *where: merge_adapter(where[0], tmp_path / "export", where[1])):
        with pytest.raises(ModelError) as caught:
            use(final[0], tmp_path / "cache")
        assert "the adapter chain is incomplete" in str(caught.value) and expected in str(caught.value)
        assert caught.value.exit_code == EXIT_USAGE
    assert not (tmp_path / "export").exists()


def test_a_full_model_is_its_own_chain(base, sft, tmp_path):
    loaded = load_model(start(base, sft[0], "full"), tmp_path / "cache")
    save_trained(loaded, tmp_path / "final")
    shutil.rmtree(sft[0])
    shutil.rmtree(base)
    trained = load_trained(tmp_path / "final", tmp_path / "cache")
    assert torch.equal(likelihoods(trained.model), likelihoods(loaded.model))
    change(tmp_path / "final" / "model.safetensors")
    with pytest.raises(ModelError, match="its own weights"):
        load_trained(tmp_path / "final", tmp_path / "cache")


# -- adapters that do not fit


def refuse(config, cache) -> str:
    with pytest.raises(ModelError) as caught:
        load_model(config, cache)
    return str(caught.value)


def test_an_adapter_of_another_architecture(quick_cache, sft, tmp_path):
    message = refuse(start(quick_cache / "tiny-neox", sft[0]), tmp_path / "cache")
    assert "does not fit its base" in message and "the base has no module 'model.layers.0" in message


def test_an_adapter_of_another_width(base, sft, tmp_path):
    path = sft[0] / "adapter_model.safetensors"
    save_file({name: t[:, :-1].contiguous() for name, t in load_file(path).items()}, path)
    message = refuse(start(base, sft[0]), tmp_path / "cache")
    assert "does not fit its base" in message and "width" in message


def test_an_adapter_with_a_tensor_missing(base, sft, tmp_path):
    path = sft[0] / "adapter_model.safetensors"
    save_file(dict(list(load_file(path).items())[1:]), path)
    assert "has no counterpart" in refuse(start(base, sft[0]), tmp_path / "cache")
    assert not [p for p in (tmp_path / "cache" / "models").iterdir() if p.is_dir()], "nothing half merged is kept"


def test_not_a_lora_adapter(base, sft, tmp_path):
    path = sft[0] / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "peft_type": "IA3"}))
    assert "'IA3', not LORA" in refuse(start(base, sft[0]), tmp_path / "cache")


def test_an_adapter_is_no_base(sft, tmp_path):
    assert "is an adapter, not a model" in refuse(ModelConfig(name=str(sft[0])), tmp_path)


def test_no_such_adapter(base, tmp_path):
    assert "no such directory" in refuse(start(base, tmp_path / "nothing"), tmp_path)


@pytest.mark.parametrize("final", ["lora"], indirect=True)
def test_an_adapter_of_ours_does_not_go_on_a_plain_base(final, base, tmp_path):
    """The published evaluation did this: the trained adapter on the base, without the SFT adapter between."""
    message = refuse(start(base, final[0]), tmp_path / "cache")
    assert "incomplete" in message and "belongs on top of" in message


def test_an_adapter_of_ours_may_start_another_run_on_its_own_base(base, quick_cache, tmp_path):
    loaded = load_model(ModelConfig(name=str(base), method="lora", lora=LORA), tmp_path / "cache")
    stir(loaded.model, 3)
    save_trained(loaded, tmp_path / "first")
    second = load_model(start(base, tmp_path / "first"), tmp_path / "cache")
    torch.testing.assert_close(likelihoods(second.model), likelihoods(loaded.model), rtol=0, atol=1e-4)
    change(base / "model.safetensors")
    assert "does not fit its base" in refuse(start(base, tmp_path / "first"), tmp_path / "cache")


# -- fingerprints


def fingerprint(tmp_path, base, **settings):
    return load_model(ModelConfig(name=str(base), **settings), tmp_path / "cache").fingerprint


def test_the_fingerprint_shows_weights_and_how_they_are_kept(base, sft, tmp_path):
    prints = {
        "full": fingerprint(tmp_path, base),
        "qlora": fingerprint(tmp_path, base, method="qlora"),
        "fp4": fingerprint(tmp_path, base, method="qlora", quantization={"kind": "fp4"}),
        "sft": fingerprint(tmp_path, base, sft_adapter=str(sft[0])),
    }
    assert fingerprint(tmp_path, base, method="lora") == prints["full"], "the same reference, computed once"
    copied = shutil.copytree(base, tmp_path / "copied")
    assert fingerprint(tmp_path, copied) == prints["full"]
    change(base / "model.safetensors")
    prints["changed"] = fingerprint(tmp_path, base)
    change(sft[0] / "adapter_model.safetensors")
    prints["changed sft"] = fingerprint(tmp_path, copied, sft_adapter=str(sft[0]))
    assert len(set(prints.values())) == len(prints)


def test_how_weights_are_spread_over_files_does_not_matter(base, tmp_path):
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained(base).save_pretrained(tmp_path / "parts", max_shard_size="200KB")
    for path in base.glob("tok*"):
        shutil.copy(path, tmp_path / "parts")
    shutil.copy(base / "chat_template.jinja", tmp_path / "parts")
    assert len(sources.weight_files(tmp_path / "parts")) > 1
    assert fingerprint(tmp_path, tmp_path / "parts") == fingerprint(tmp_path, base)


def test_weights_are_hashed_once(base, tmp_path, monkeypatch):
    first = fingerprint(tmp_path, base)
    with monkeypatch.context() as patch:
        patch.setattr(sources, "tensors_fingerprint", lambda _: pytest.fail("read again"))
        assert fingerprint(tmp_path, base, method="qlora") != first
    change(base / "model.safetensors")
    assert fingerprint(tmp_path, base) != first
