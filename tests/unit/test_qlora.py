"""QLoRA on the CPU: 4-bit weights, real training steps, the adapter saved, reloaded and merged."""

import json

import pytest
import torch

from rcray.config import run_id
from rcray.config.model import ModelConfig
from rcray.data.batch import collate
from rcray.data.encode import EncodedPair
from rcray.errors import ModelError
from rcray.evaluate.stage import evaluate_run
from rcray.models.likelihood import side_logps
from rcray.models.load import load_model
from rcray.models.trained import load_trained, merge_adapter
from rcray.store import Store
from rcray.train import loop
from rcray.train.dynamics import read_dynamics
from rcray.train.launch import launch
from tests.small_runs import small_config

#: Token ids of the tiny vocabulary.
PAIRS = tuple(
    EncodedPair(str(i), tuple(range(10, 15 + i)), tuple(range(40 + i, 60)), tuple(range(70, 75 + i))) for i in range(4)
)
LORA = {"r": 4, "alpha": 8}


def likelihoods(model):
    batch = collate(PAIRS, range(len(PAIRS)))
    with torch.no_grad():
        return torch.stack([side_logps(model.eval(), side).sums for side in (batch.chosen, batch.rejected)])


@pytest.fixture(scope="module", params=["lora", "qlora"])
def trained(request, tmp_path_factory, model_cache):
    """A run of 8 steps through the launcher: its config, its store, and the model as it was when training ended."""
    method = request.param
    config = small_config(
        model={"name": "tiny-neox", "method": method, "lora": LORA},
        calibration=True,
        train={"learning_rate": 1e-3},
    )
    store = Store.open(tmp_path_factory.mktemp(method))
    store.cache.parent.mkdir(exist_ok=True)
    store.cache.symlink_to(model_cache)
    ended, publish = [], loop.publish_model
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "publish_model", lambda loaded, *place: (ended.append(loaded), publish(loaded, *place)))
        assert launch(config, store).status == "ok"
    return config, store, ended[0]


def test_it_learned(trained):
    config, store, _ = trained
    rows = read_dynamics(store.run(run_id(config)).dynamics).to_pandas()
    assert len(rows) == 8
    probed = (rows["probe_z_w"] - rows["probe_z_l"]).dropna()
    assert probed.iloc[-1] > probed.iloc[0] + 0.05
    assert rows["log_s_w"].notna().all() and rows["rho"].notna().all(), "scores of the last block's adapters"


def test_the_reloaded_adapter_gives_the_same_likelihoods(trained):
    config, store, ended = trained
    final = store.run(run_id(config)).final
    reloaded = load_trained(final, store.cache)
    start = load_model(config.model, store.cache).model
    assert (likelihoods(reloaded.model) - likelihoods(ended.model)).abs().max() < 1e-5
    assert (likelihoods(start) - likelihoods(ended.model)).abs().max() > 0.1, "and training moved them"
    packed = any(p.dtype == torch.uint8 for p in reloaded.model.parameters())
    assert packed is (config.model.method == "qlora")
    assert not any(p.requires_grad for p in reloaded.model.parameters())
    assert reloaded.tokenizer.chat_template == ended.tokenizer.chat_template


def test_final_holds_the_adapter_the_tokenizer_and_the_chain(trained):
    config, store, _ = trained
    final = store.run(run_id(config)).final
    assert {path.name for path in final.iterdir()} == {
        *("adapter_config.json", "adapter_model.safetensors", "adapter_chain.json"),
        *("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"),
    }
    assert sum(path.stat().st_size for path in final.glob("*.safetensors")) < 100_000
    chain = json.loads((final / "adapter_chain.json").read_text())
    assert chain["base"]["source"] == "tiny-neox" and len(chain["base"]["fingerprint"]) == 64
    assert chain["sft_adapter"] is None and chain["ours"]["state"] == "active"
    assert (chain["quantization"] or {}).get("kind") == ("nf4" if config.model.quantized else None)
    assert json.loads((final / "adapter_config.json").read_text())["base_model_name_or_path"] == "tiny-neox"


def test_merged_for_export(trained, tmp_path):
    config, store, ended = trained
    final = store.run(run_id(config)).final
    merge = merge_adapter(final, tmp_path / "export", store.cache)
    plain = load_model(ModelConfig(name=str(merge.directory)), store.cache)
    assert not any(".lora_" in name for name, _ in plain.model.named_parameters())
    gap = (likelihoods(plain.model) - likelihoods(ended.model)).abs().max().item()
    print(f"{config.model.method}: merged and as trained differ by {merge.gap:.2g} a token, {gap:.2g} an answer (nats)")
    recorded = json.loads((merge.directory / "adapter_chain.json").read_text())["ours"]
    assert recorded["state"] == "merged" and recorded["gap_nats"] == merge.gap
    if config.model.quantized:
        assert merge.quantized and 1e-3 < merge.gap < 1 and "not that model" in recorded["evaluated"]
    else:
        assert not merge.quantized and merge.gap < 1e-5 and gap < 1e-4
    again = load_trained(merge.directory, store.cache)
    assert torch.equal(likelihoods(again.model), likelihoods(plain.model))
    with pytest.raises(ModelError, match="exists already"):
        merge_adapter(final, merge.directory, store.cache)
    with pytest.raises(ModelError, match="no adapter to merge"):
        merge_adapter(merge.directory, tmp_path / "other", store.cache)


def test_evaluated_as_trained(trained):
    config, store, _ = trained
    rows = {row.metric: row for row in evaluate_run(config, store).rows}
    assert rows["margin"].value > 0


# -- gradients through 4-bit weights


def gradients(model):
    model.zero_grad()
    batch = collate(PAIRS, range(len(PAIRS)))
    (side_logps(model, batch.chosen).sums - side_logps(model, batch.rejected).sums).sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.requires_grad}


def load(quick_cache, name, method):
    loaded = load_model(ModelConfig(name=str(quick_cache / name), method=method, lora=LORA), quick_cache / "cache")
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter_name, parameter in loaded.model.named_parameters():
            if "lora_B" in parameter_name:
                parameter.copy_(0.05 * torch.randn(parameter.shape, generator=generator))
    return loaded.model


@pytest.mark.parametrize("name", ["tiny-neox", "tiny-mistral", "tiny-qwen2"])
def test_gradients_are_those_of_the_unpacked_weights_also_after_an_evaluation(quick_cache, name):
    """On some CPUs bitsandbytes repacks the weights in eval mode, for a kernel that has no backward."""
    from bitsandbytes.functional import dequantize_4bit

    packed, plain = load(quick_cache, name, "qlora"), load(quick_cache, name, "lora")
    with torch.no_grad():
        targets = dict(plain.named_parameters())
        for parameter_name, parameter in packed.named_parameters():
            if parameter.dtype == torch.uint8:
                targets[parameter_name].copy_(dequantize_4bit(parameter.data, parameter.quant_state))
    before = likelihoods(packed)
    packed.train()
    ours, expected = gradients(packed), gradients(plain)
    assert (before - likelihoods(plain)).abs().max() < 1e-4
    assert ours.keys() == expected.keys()
    for parameter_name, gradient in expected.items():
        assert gradient.abs().sum() > 0
        torch.testing.assert_close(ours[parameter_name], gradient, rtol=1e-3, atol=1e-4 * float(gradient.abs().max()))


def test_double_quantisation_is_asked_for(quick_cache):
    def state(double):
        config = ModelConfig(
            name=str(quick_cache / "tiny-neox"), method="qlora", quantization={"double_quant": double, "kind": "fp4"}
        )
        model = load_model(config, quick_cache / "cache").model
        return next(p.quant_state for p in model.parameters() if p.dtype == torch.uint8)

    assert state(True).nested and not state(False).nested
    assert state(False).quant_type == "fp4"


def test_what_is_to_be_sharded_is_the_same_weights_in_numbers_that_fsdp_can_cut(quick_cache):
    from bitsandbytes.functional import dequantize_4bit
    from bitsandbytes.nn import Params4bit

    config = ModelConfig(name=str(quick_cache / "tiny-neox"), method="qlora", dtype="bfloat16")

    def weights(*, to_shard):
        model = load_model(config, quick_cache / "cache", to_shard=to_shard).model
        return [p for p in model.parameters() if isinstance(p, Params4bit)]

    packed, cut = weights(to_shard=False), weights(to_shard=True)
    assert {p.dtype for p in packed} == {torch.uint8} and {p.dtype for p in cut} == {torch.bfloat16}
    for one, other in zip(packed, cut, strict=True):
        assert one.nbytes == other.nbytes
        assert torch.equal(dequantize_4bit(one.data, one.quant_state), dequantize_4bit(other.data, other.quant_state))
