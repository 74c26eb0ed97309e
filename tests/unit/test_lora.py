"""Full, LoRA and 4-bit models: what is trained, and that the chunked head changes neither values nor gradients."""

import shutil

import pytest
import torch

from rcray.config.model import ModelConfig
from rcray.data.batch import collate
from rcray.data.encode import EncodedPair
from rcray.errors import ModelError
from rcray.models import adapters
from rcray.models.adapters import adapters_off
from rcray.models.capabilities import capabilities_of
from rcray.models.likelihood import side_logps
from rcray.models.load import load_model

NAMES = ["tiny-neox", "tiny-mistral", "tiny-qwen2"]
METHODS = ["full", "lora", "qlora"]
LAYERS = {
    "tiny-neox": {"query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"},
    "tiny-mistral": {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"},
}
LAYERS["tiny-qwen2"] = LAYERS["tiny-mistral"]

PAIRS = (
    EncodedPair("a", (10, 20, 30), (40, 50), (60, 70, 80, 90, 1)),
    EncodedPair("b", (11,), (21, 31, 41, 51, 61, 71, 1), (22,)),
)


def stir(model, scale=0.05):
    """A fresh adapter is zero, and so is the gradient of half of it: move it off."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.copy_(scale * torch.randn(parameter.shape, generator=generator))


def load(directory, method="lora", **settings):
    return load_model(ModelConfig(name=str(directory), method=method, **settings), directory.parent / "cache")


@pytest.fixture(scope="session")
def tied(quick_cache):
    """A Qwen2 model whose head is its embedding."""
    from transformers import AutoConfig, AutoModelForCausalLM

    source, target = quick_cache / "tiny-qwen2", quick_cache / "tied"
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(source, tie_word_embeddings=True, initializer_range=0.1)
    shutil.copytree(source, target)
    AutoModelForCausalLM.from_config(config).save_pretrained(target)
    return target


def values_and_gradients(model, side):
    logps = side_logps(model, side)
    model.zero_grad()
    (logps.sums * torch.tensor([1.0, -2.0])).sum().backward()
    trained = {name: p.grad.clone() for name, p in model.named_parameters() if p.requires_grad}
    return logps.logp.detach(), trained


def gaps(model, side):
    """Largest difference of the chunked path to the plain one: in a log-probability, in a gradient."""
    chunked, gradients = values_and_gradients(model, side)
    assert capabilities_of(model).plain_head is True, "the chunked path was taken"
    capabilities_of(model).plain_head = False
    plain, expected = values_and_gradients(model, side)
    capabilities_of(model).plain_head = True
    assert gradients.keys() == expected.keys() and gradients
    assert all(gradient.abs().sum() > 0 for gradient in expected.values() if gradient.ndim > 1)
    scale = max(gradient.abs().max() for gradient in expected.values())
    worst = max((gradients[name] - expected[name]).abs().max() for name in expected)
    return (chunked - plain).abs().max().item(), (worst / max(1, scale)).item()


@pytest.mark.parametrize("name", [*NAMES, "tied"])
@pytest.mark.parametrize("method", METHODS)
def test_chunked_equals_plain(quick_cache, tied, name, method):
    model = load(quick_cache / name, method).model
    stir(model)
    head = model.get_output_embeddings()
    assert (head.weight is model.get_input_embeddings().weight) is (name == "tied")
    side = collate(PAIRS, range(2)).chosen
    assert max(gaps(model, side)) < 1e-5
    if method != "qlora":  # 4-bit weights are computed with in float32
        assert max(gaps(model.double(), side)) < 1e-9


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("method", METHODS)
def test_what_is_trained(quick_cache, name, method):
    model = load(quick_cache / name, method).model
    trained = {n for n, p in model.named_parameters() if p.requires_grad}
    if method == "full":
        assert trained == {n for n, _ in model.named_parameters()}
        return
    assert trained and all(".lora_" in n for n in trained)
    assert {n.split(".lora_")[0].rpartition(".")[2] for n in trained} == LAYERS[name], "all-linear, without the head"
    assert all(p.dtype == torch.float32 for p in model.parameters() if p.requires_grad)
    packed = [p for p in model.parameters() if p.dtype == torch.uint8]
    assert bool(packed) is (method == "qlora")


def test_a_fresh_adapter_changes_nothing_and_its_start_is_the_seeds(quick_cache):
    directory, cache = quick_cache / "tiny-neox", quick_cache / "cache"
    config = ModelConfig(name=str(directory), method="lora")
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = load_model(config, cache, seed=3).model
    assert torch.equal(torch.get_rng_state(), state), "the global generator is left alone"
    torch.manual_seed(6)
    again, other = load_model(config, cache, seed=3).model, load_model(config, cache, seed=4).model
    start, same, differ = ({n: p for n, p in m.named_parameters() if "lora_A" in n} for m in (first, again, other))
    assert all(torch.equal(start[n], same[n]) for n in start)
    assert not any(torch.equal(start[n], differ[n]) for n in start)
    side = collate(PAIRS, range(2)).chosen
    with torch.no_grad():
        plain = side_logps(load(directory, "full").model, side).sums
        assert torch.equal(side_logps(first, side).sums, plain)
        stir(first)
        assert not torch.equal(side_logps(first, side).sums, plain)
        with adapters_off(first):
            assert torch.equal(side_logps(first, side).sums, plain)
    assert all(p.requires_grad for n, p in first.named_parameters() if "lora_" in n), "still trained afterwards"


@pytest.mark.parametrize("method", ["lora", "qlora"])
def test_named_targets_only(quick_cache, method):
    model = load(quick_cache / "tiny-mistral", method, lora={"r": 2, "alpha": 3, "targets": ["v_proj", "q_proj"]}).model
    adapted = {n.split(".lora_")[0].rpartition(".")[2] for n, _ in model.named_parameters() if ".lora_" in n}
    assert adapted == {"q_proj", "v_proj"}
    settings = model.peft_config["default"]
    assert (settings.r, settings.lora_alpha, settings.lora_dropout) == (2, 3, 0)


@pytest.mark.parametrize("method", ["lora", "qlora"])
def test_two_training_forwards_are_equal(quick_cache, method):
    model = load(quick_cache / "tiny-neox", method).model.train()
    stir(model)
    ids = torch.arange(5, 25)[None]
    with torch.no_grad():
        assert torch.equal(model(input_ids=ids).logits, model(input_ids=ids).logits)


# -- what is refused


def forbid_reading(monkeypatch):
    import transformers

    def read(*_args, **_kwargs):
        pytest.fail("weights were read first")

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", read)


def test_unknown_targets_are_named_with_the_available_ones_before_weights_are_read(quick_cache, monkeypatch):
    forbid_reading(monkeypatch)
    with pytest.raises(ModelError) as caught:
        load(quick_cache / "tiny-neox", lora={"targets": ["dense", "q_proj"]})
    message = str(caught.value)
    assert "model.lora.targets" in message and "'q_proj'" in message
    assert all(layer in message for layer in LAYERS["tiny-neox"])


@pytest.mark.parametrize(("method", "package"), [("qlora", "bitsandbytes"), ("qlora", "peft"), ("lora", "peft")])
def test_a_missing_package_is_named_first(tmp_path, monkeypatch, method, package):
    present = adapters.find_spec
    monkeypatch.setattr(adapters, "find_spec", lambda name: None if name == package else present(name))
    with pytest.raises(ModelError, match=f"'{method}' needs the package {package}"):
        load_model(ModelConfig(name="/no/such/directory", method=method), tmp_path)


def test_full_fine_tuning_needs_neither(quick_cache, monkeypatch):
    monkeypatch.setattr(adapters, "find_spec", lambda name: None)
    load(quick_cache / "tiny-neox", "full")
