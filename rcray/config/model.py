"""Which model a run starts from, and the presets of the paper's four models as data."""

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from rcray.config.section import Section
from rcray.errors import did_you_mean

Method = Literal["full", "lora", "qlora"]
Dtype = Literal["float32", "bfloat16"]

_COMMIT = re.compile(r"[0-9a-f]{40}")

#: Embedded models: see models/tiny.py.
TINY_NAMES = ("tiny-neox", "tiny-mistral", "tiny-qwen2")

#: For tokenizers that come without one, such as Pythia's: role tags as plain text, every turn closed by the end-of-text
#: token, line breaks before a tag and never after the token that ends an answer.
PLAIN_CHAT_TEMPLATE = (
    "{% for m in messages %}"
    "{{ ('' if loop.first else '\\n') + '<|' + m['role'] + '|>\\n' + (m['content'] | trim) + eos_token }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '\\n<|assistant|>\\n' }}{% endif %}"
)


@dataclass(frozen=True)
class ModelPreset:
    """What a known model fills in where an experiment leaves it open, and how large it is."""

    model: Mapping[str, Any]  # fields of `model:`
    train: Mapping[str, Any]  # fields of `train:`
    parameters: int
    trainable: int


_GPT_NEOX_LAYERS = ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"]
_LLAMA_LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def _qlora(source: str, r: int, alpha: int, targets: list[str], **more: Any) -> dict[str, Any]:
    """The published QLoRA: nf4 without double quantisation, computed in bfloat16."""
    return {
        "source": source,
        "dtype": "bfloat16",
        "method": "qlora",
        "lora": {"r": r, "alpha": alpha, "targets": targets},
        "quantization": {"kind": "nf4", "double_quant": False, "compute_dtype": "bfloat16"},
        **more,
    }


#: The authors' start weights, adapters, rates and micro-batches; their global batch is 32 pairs, one epoch, a constant
#: rate. The 410M model is kept in float32: next to bfloat16 weights, steps of 6e-7 would round to nothing.
MODEL_PRESETS: Mapping[str, ModelPreset] = {
    "pythia-410m": ModelPreset(
        {
            "source": "EleutherAI/pythia-410m",
            "method": "full",
            "dtype": "float32",
            "chat_template": PLAIN_CHAT_TEMPLATE,
        },
        {"learning_rate": 6e-7, "batch_size": 32, "micro_batch_size": 4},
        parameters=405_334_016,
        trainable=405_334_016,
    ),
    "pythia-2.8b": ModelPreset(
        _qlora("EleutherAI/pythia-2.8b", 16, 32, _GPT_NEOX_LAYERS, chat_template=PLAIN_CHAT_TEMPLATE),
        {"learning_rate": 1e-4, "batch_size": 32, "micro_batch_size": 4},
        parameters=2_775_208_960,
        trainable=20_971_520,
    ),
    "mistral-7b": ModelPreset(
        _qlora("mistralai/Mistral-7B-v0.1", 8, 16, _LLAMA_LAYERS, sft_adapter="alignment-handbook/zephyr-7b-sft-qlora"),
        {"learning_rate": 3e-7, "batch_size": 32, "micro_batch_size": 1},
        parameters=7_241_732_096,
        trainable=20_971_520,
    ),
    "qwen2.5-7b": ModelPreset(
        _qlora("Qwen/Qwen2.5-7B-Instruct", 8, 16, _LLAMA_LAYERS),
        {"learning_rate": 5e-7, "batch_size": 32, "micro_batch_size": 1},
        parameters=7_615_616_512,
        trainable=20_185_088,
    ),
}


class LoraConfig(Section):
    """The adapters of LoRA and QLoRA; without effect in full fine-tuning."""

    r: int = Field(16, ge=1, description="rank")
    alpha: float = Field(32, gt=0, description="scale: the adapter's output counts alpha / r")
    dropout: float = Field(0.0, description="0, as everywhere")
    targets: str | tuple[str, ...] = Field("all-linear", description="all-linear, or a list of module names")

    @field_validator("dropout")
    @classmethod
    def _none(cls, dropout: float) -> float:
        if dropout != 0:
            raise ValueError(f"{dropout} is not allowed; margins compare two forwards, dropout would make them noise")
        return dropout

    @field_validator("targets")
    @classmethod
    def _a_list_or_all(cls, targets: str | tuple[str, ...]) -> str | tuple[str, ...]:
        if isinstance(targets, str):
            if targets != "all-linear":
                raise ValueError(f"{targets!r} is not allowed; give all-linear or a list, such as [{targets}]")
            return targets
        if not targets:
            raise ValueError("[] is not allowed; give all-linear or at least one module name")
        return tuple(sorted(set(targets)))  # the order has no effect, so it must not split a run in two


class QuantizationConfig(Section):
    """How QLoRA stores the frozen weights; without effect in other methods."""

    kind: Literal["nf4", "fp4"] = "nf4"
    double_quant: bool = Field(False, description="quantise the scales as well")
    compute_dtype: Dtype = Field("float32", description="of the matrix products; model.dtype unless given")


class ModelConfig(Section):
    """Which weights to start from, and what of them is trained. Weights are read from safetensors only."""

    name: str = Field("tiny-neox", min_length=1, description="embedded model, preset, hub id, or local directory")
    source: str | None = Field(None, description="hub id or directory of the weights, where it is not the name")
    revision: str | None = Field(None, description="hub revision; pin it for a run you want to repeat")
    dtype: Dtype = "float32"
    trust_remote_code: bool = Field(False, description="run code that ships with the model; off unless asked")
    method: Method = Field("full", description="full, lora, or qlora: lora on 4-bit weights")
    lora: LoraConfig = Field(default_factory=LoraConfig)
    quantization: QuantizationConfig = Field(default_factory=QuantizationConfig)
    sft_adapter: str | None = Field(None, description="hub id or directory of an adapter merged into the base first")
    chat_template: str | None = Field(None, description="Jinja text or a file of it; the tokenizer's own unless given")

    @model_validator(mode="before")
    @classmethod
    def _fill_from_preset(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        preset = MODEL_PRESETS.get(str(given.get("name")))
        filled = fill_open(given, preset.model if preset else {})
        if "dtype" in filled:
            filled = fill_open(filled, {"quantization": {"compute_dtype": filled["dtype"]}})
        return filled

    @field_validator("name")
    @classmethod
    def _is_known_or_a_place(cls, name: str) -> str:
        if "/" not in name and name not in MODEL_PRESETS and name not in TINY_NAMES:
            raise ValueError(
                f"unknown model {name!r}{did_you_mean(name, (*MODEL_PRESETS, *TINY_NAMES))}; "
                "a hub id is written owner/name, a directory with a slash, as in ./name"
            )
        return name

    @field_validator("chat_template")
    @classmethod
    def _file_becomes_its_text(cls, template: str | None) -> str | None:
        """A run is its content, so the text is kept and not the path; a template without braces would say nothing."""
        if template is None or "{" in template:
            return template
        try:
            text = Path(template).read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ValueError(f"{template!r} is neither Jinja text nor a readable file: {reason}") from None
        if "{" not in text:
            raise ValueError(f"the file {template!r} holds no Jinja template")
        return text

    @model_validator(mode="after")
    def _code_is_pinned(self) -> "ModelConfig":
        remote = self.origin not in TINY_NAMES and not Path(self.origin).is_dir()
        if self.trust_remote_code and remote and not _COMMIT.fullmatch(self.revision or ""):
            raise ValueError(
                f"trust_remote_code runs whatever code {self.origin!r} holds, and revision {self.revision!r} is no "
                "commit; pin the one you have read: revision: its 40 hex digits"
            )
        return self

    @property
    def label(self) -> str:
        """The name, with the method where it is not the one expected under that name."""
        preset = MODEL_PRESETS.get(self.name)
        usual = preset.model["method"] if preset else "full"
        return self.name if self.method == usual else f"{self.name} ({self.method})"

    @property
    def origin(self) -> str:
        """Where the base weights come from: a hub id, a directory, or an embedded model's name."""
        return self.source or self.name

    @property
    def quantized(self) -> bool:
        """Whether the frozen weights are kept in 4 bits."""
        return self.method == "qlora"

    @property
    def trains_adapters(self) -> bool:
        """Whether only adapters are trained."""
        return self.method != "full"


def fill_open(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """`given`, with what it leaves open taken from `defaults`; mappings are filled field by field."""
    filled = dict(given)
    for name, value in defaults.items():
        if name not in filled:
            filled[name] = copy.deepcopy(value)
        elif isinstance(filled[name], Mapping) and isinstance(value, Mapping):
            filled[name] = fill_open(filled[name], value)
    return filled


def train_defaults(model: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a preset says about `train:`; its rate is that of its method, and far off for another."""
    preset = MODEL_PRESETS.get(str(model.get("name")))
    if preset is None:
        return {}
    same = (model.get("method", preset.model["method"]) == "full") == (preset.model["method"] == "full")
    return {name: value for name, value in preset.train.items() if same or name != "learning_rate"}


def default_scores(model: Mapping[str, Any]) -> str:
    """Whose gradients stand for the scores: the head's where it is trained, else the last adapters'."""
    preset = MODEL_PRESETS.get(str(model.get("name")))
    method = model.get("method", preset.model["method"] if preset else "full")
    return "head" if method == "full" else "adapters"
