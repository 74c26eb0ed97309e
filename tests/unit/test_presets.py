"""Model presets: the published settings as data, filled in only where an experiment leaves them open."""

import pytest
import torch

from rcray.config import RunConfig, build_run, run_id
from rcray.config.model import ModelConfig
from rcray.config.models import MODELS, PLAIN_CHAT_TEMPLATE, preset_models
from rcray.errors import ConfigError

NEOX = {"query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"}
LLAMA = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
SFT = "alignment-handbook/zephyr-7b-sft-qlora"

#: name: source, SFT adapter, method, learning rate, micro-batch, r, alpha, targets
PUBLISHED = {
    "pythia-410m": ("EleutherAI/pythia-410m", None, "full", 6e-7, 4, None, None, None),
    "pythia-2.8b": ("EleutherAI/pythia-2.8b", None, "qlora", 1e-4, 4, 16, 32, NEOX),
    "mistral-7b": ("mistralai/Mistral-7B-v0.1", SFT, "qlora", 3e-7, 1, 8, 16, LLAMA),
    "qwen2.5-7b": ("Qwen/Qwen2.5-7B-Instruct", None, "qlora", 5e-7, 1, 8, 16, LLAMA),
}


def resolved(model, **settings) -> RunConfig:
    return build_run({"model": model, **settings}, {}, "test")


@pytest.mark.parametrize("name", PUBLISHED)
def test_as_published(name):
    source, sft, method, rate, micro, r, alpha, targets = PUBLISHED[name]
    config = resolved(name)
    model, train = config.model, config.train
    assert (model.name, model.origin, model.sft_adapter, model.method) == (name, source, sft, method)
    assert (train.learning_rate, train.batch_size, train.micro_batch_size) == (rate, 32, micro)
    assert (train.epochs, train.schedule, train.warmup_steps, train.weight_decay) == (1, "constant", 0, 0)
    assert (train.clip_norm, train.seed) == (1.0, 42)
    assert (config.data.max_length, config.data.max_prompt_length) == (1024, 512)
    assert not model.trust_remote_code
    assert config.execution.gradient_checkpointing is (method == "qlora"), "a 7B model trains on 24 GB by it"
    if method == "qlora":
        assert (model.lora.r, model.lora.alpha, model.lora.dropout, set(model.lora.targets)) == (r, alpha, 0, targets)
        quantization = model.quantization
        assert (quantization.kind, quantization.double_quant, quantization.compute_dtype) == ("nf4", False, "bfloat16")
    assert (model.chat_template is not None) is name.startswith("pythia"), "only its tokenizer has no template"


def test_every_preset_is_in_the_table():
    assert set(preset_models()) == {*PUBLISHED, "smollm2-135m"}, "the last is ours"


#: name: architecture, vocabulary, hidden, layers, heads, key and value heads, intermediate; all parameters, trained
SKELETONS = {
    "pythia-410m": (("gpt_neox", 50304, 1024, 24, 16, 16, 4096), 405_334_016, 405_334_016),
    "pythia-2.8b": (("gpt_neox", 50304, 2560, 32, 32, 32, 10240), 2_775_208_960, 20_971_520),
    "mistral-7b": (("mistral", 32000, 4096, 32, 32, 8, 14336), 7_241_732_096, 20_971_520),
    "qwen2.5-7b": (("qwen2", 152064, 3584, 28, 28, 4, 18944), 7_615_616_512, 20_185_088),
}


@pytest.mark.parametrize("name", SKELETONS)
def test_parameter_counts(name):
    """Counted on a skeleton of the real size, which has no weights; the adapter sits on the preset's targets."""
    import peft
    from transformers import AutoConfig, AutoModelForCausalLM

    (kind, vocabulary, hidden, layers, heads, kv_heads, intermediate), parameters, trained = SKELETONS[name]
    config = AutoConfig.for_model(
        kind,
        vocab_size=vocabulary,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=intermediate,
        tie_word_embeddings=False,
    )
    preset, lora = MODELS[name], ModelConfig(name=name).lora
    assert (preset.shape.heads, preset.shape.heads * preset.shape.key_values) == (heads, kv_heads)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
        assert sum(p.numel() for p in model.parameters()) == parameters
        assert preset.shape.parameters == pytest.approx(parameters, rel=0.002)
        if preset.model["method"] != "full":
            settings = peft.LoraConfig(r=lora.r, target_modules=list(lora.targets), task_type="CAUSAL_LM")
            model = peft.get_peft_model(model, settings)
            assert preset.shape.adapters(lora.r, lora.targets) == trained, "exactly"
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == trained


def test_what_is_written_wins():
    config = resolved(
        {"name": "mistral-7b", "source": "./mirror", "sft_adapter": None, "lora": {"r": 4}, "dtype": "float32"},
        train={"learning_rate": 1e-5, "micro_batch_size": 2},
    )
    model = config.model
    assert (model.origin, model.sft_adapter, model.dtype) == ("./mirror", None, "float32")
    assert (model.lora.r, model.lora.alpha, set(model.lora.targets)) == (4, 16, LLAMA), (
        "the rest of lora is the preset's"
    )
    assert (config.train.learning_rate, config.train.micro_batch_size, config.train.batch_size) == (1e-5, 2, 32)


def test_a_rate_does_not_cross_over_to_another_method():
    """1e-4 is an adapter's; on all weights it would wreck the model."""
    assert resolved({"name": "pythia-2.8b", "method": "lora"}).train.learning_rate == 1e-4
    assert resolved({"name": "pythia-2.8b", "method": "full"}).train.learning_rate == 1e-6


def test_other_models_get_no_preset():
    assert resolved("EleutherAI/pythia-410m").train.learning_rate == resolved("tiny-neox").train.learning_rate
    assert resolved("EleutherAI/pythia-2.8b").model.method == "full"


def test_a_preset_survives_a_round_trip():
    config = resolved("mistral-7b", calibration=True)
    again = RunConfig.model_validate(config.model_dump(mode="json"))
    assert again == config and run_id(again) == run_id(config)


@pytest.mark.parametrize(
    ("written", "meant"),
    [("pythia-410", "pythia-410m"), ("mistral7b", "mistral-7b"), ("qwen-7b", "qwen2.5-7b"), ("tiny-neo", "tiny-neox")],
)
def test_wrong_names_get_did_you_mean(written, meant):
    with pytest.raises(ConfigError) as caught:
        resolved(written)
    message = str(caught.value)
    assert f"unknown model {written!r}; did you mean {meant!r}?" in message
    assert "model.name" in message and "owner/name" in message


# -- what the method decides


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("tiny-neox", "head"),
        ({"name": "tiny-qwen2", "method": "lora"}, "adapters"),
        ({"method": "qlora"}, "adapters"),
        ("pythia-410m", "head"),
        ("mistral-7b", "adapters"),
        ({"name": "mistral-7b", "method": "full"}, "head"),
    ],
)
def test_the_scores_are_of_what_is_trained(model, expected):
    assert resolved(model).calibration.scores == expected
    assert resolved(model, calibration=True).calibration.scores == expected
    assert resolved(model, calibration={"scores": "full"}).calibration.scores == "full"


@pytest.mark.parametrize(("method", "scores"), [("lora", "head"), ("qlora", "sketch"), ("full", "adapters")])
def test_scores_of_what_is_not_trained_are_refused(method, scores):
    with pytest.raises(ConfigError, match=rf"calibration\.scores '{scores}' reads what model\.method '{method}'"):
        resolved({"method": method}, calibration={"scores": scores})


@pytest.mark.parametrize(
    "settings",
    [
        {"lora": {"r": 0}},
        {"lora": {"dropout": 0.05}},
        {"lora": {"targets": "q_proj"}},
        {"lora": {"targets": []}},
        {"quantization": {"kind": "int8"}},
        {"method": "dora"},
        {"chat_template": "no/such/file"},
    ],
    ids=str,
)
def test_refused(settings):
    section, value = next(iter(settings.items()))
    field = f"model.{section}" + (f".{next(iter(value))}" if isinstance(value, dict) else "")
    with pytest.raises(ConfigError) as caught:
        resolved({"method": "qlora", **settings})
    assert field in str(caught.value)


def test_compute_is_in_the_models_precision_unless_given():
    assert resolved({"dtype": "bfloat16"}).model.quantization.compute_dtype == "bfloat16"
    given = {"dtype": "bfloat16", "quantization": {"compute_dtype": "float32"}}
    assert resolved(given).model.quantization.compute_dtype == "float32"


def key(**model):
    return run_id(resolved(model))


def test_inactive_fields_do_not_split_a_run():
    assert key() == key(lora={"r": 4}) == key(quantization={"kind": "fp4"})
    assert key(method="lora") == key(method="lora", quantization={"kind": "fp4"})
    assert key(method="lora", lora={"targets": ["a", "b"]}) == key(method="lora", lora={"targets": ["b", "a", "b"]})
    active = [
        *({}, {"method": "lora"}, {"method": "qlora"}, {"sft_adapter": "./a"}, {"source": "./b"}),
        *({"method": "lora", "lora": {"r": 4}}, {"method": "qlora", "lora": {"alpha": 4}}),
        *({"method": "qlora", "quantization": {"kind": "fp4"}}, {"chat_template": "{{ messages }}"}),
    ]
    assert len({key(**settings) for settings in active}) == len(active)


# -- chat templates


def test_a_template_file_is_its_text(tmp_path):
    file = tmp_path / "template.jinja"
    file.write_text(PLAIN_CHAT_TEMPLATE)
    config = ModelConfig(name="tiny-neox", chat_template=str(file))
    assert config.chat_template == PLAIN_CHAT_TEMPLATE
    file.write_text("plain words")
    with pytest.raises(ValueError, match="holds no Jinja template"):
        ModelConfig(name="tiny-neox", chat_template=str(file))


def test_the_default_template_ends_an_answer_with_the_end_token(make_tokenizer):
    tokenizer = make_tokenizer(PLAIN_CHAT_TEMPLATE)
    turns = [
        {"role": "user", "content": " Hi "},
        {"role": "assistant", "content": "Yes?"},
        {"role": "user", "content": "Bye\n"},
    ]
    prompt = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    assert prompt == ("<|user|>\nHi<|end|>\n<|assistant|>\nYes?<|end|>\n<|user|>\nBye<|end|>\n<|assistant|>\n")
    whole = tokenizer.apply_chat_template([*turns, {"role": "assistant", "content": "Ciao"}], tokenize=False)
    assert whole == prompt + "Ciao<|end|>"
    assert tokenizer.encode(whole)[: len(tokenizer.encode(prompt))] == tokenizer.encode(prompt)
