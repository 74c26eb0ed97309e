"""LoRA adapters through peft: what they may attach to, new ones, trained ones, and the model without them."""

import json
import logging
import re
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rcray.config.model import LoraConfig, ModelConfig
from rcray.errors import ModelError, did_you_mean
from rcray.extras import explained_imports
from rcray.models.sources import ADAPTER_CONFIG, ADAPTER_WEIGHTS, Origin, tensor_entries

with explained_imports():
    from safetensors.torch import load_file

# bitsandbytes looks for a faster CPU kernel on the hub and warns about a package nobody needs.
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)

_LORA_TENSOR = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")


def require_packages(config: ModelConfig) -> None:
    """Refuses a method whose package is not installed, before anything is fetched or read."""
    needed = {"full": (), "lora": ("peft",), "qlora": ("peft", "bitsandbytes")}[config.method]
    for package in (*needed, *(("peft",) if config.sft_adapter else ())):
        if find_spec(package) is None:
            raise ModelError(
                f"model.method: {config.method!r} needs the package {package}, which is not installed",
                fix=f"pip install {package}, or use model.method: {'lora' if package == 'bitsandbytes' else 'full'}",
            )


def require_fit(origin: Origin) -> None:
    """Refuses wrong target names and adapters of another model, from a skeleton without weights."""
    config = origin.config
    named = config.trains_adapters and not isinstance(config.lora.targets, str)
    if not named and origin.sft_adapter is None:
        return
    linear = _linear_layers(origin)
    if named:
        _require_targets(config, linear)
    if origin.sft_adapter is not None:
        problem = _misfit(origin.sft_adapter, linear)
        if problem:
            raise ModelError(
                f"model.sft_adapter: {config.sft_adapter!r} does not fit its base {config.origin!r}: {problem}",
                fix="give the base model the adapter was trained on",
            )


def _linear_layers(origin: Origin) -> dict[str, tuple[int, int]]:
    """Name -> (inputs, outputs) of every layer an adapter can sit on."""
    from transformers import AutoConfig, AutoModelForCausalLM

    trusted = {"trust_remote_code": origin.config.trust_remote_code}
    settings = AutoConfig.from_pretrained(origin.base, **trusted)
    with torch.device("meta"):
        skeleton = AutoModelForCausalLM.from_config(settings, **trusted)
    shapes = {}
    for name, module in skeleton.named_modules():
        if isinstance(module, nn.Linear):
            shapes[name] = (module.in_features, module.out_features)
        elif type(module).__name__ == "Conv1D":  # GPT-2's linear layer, with its weight transposed
            shapes[name] = (module.weight.shape[0], module.weight.shape[1])
    return shapes


def _require_targets(config: ModelConfig, linear: dict[str, tuple[int, int]]) -> None:
    for target in config.lora.targets:
        if not any(f".{name}".endswith(f".{target}") for name in linear):
            available = {name.rpartition(".")[2] for name in linear}
            raise ModelError(
                f"model.lora.targets: {config.origin!r} has no module {target!r}{did_you_mean(target, available)}",
                fix="name modules of the model, or use all-linear",
            )


def _misfit(adapter: Path, linear: dict[str, tuple[int, int]]) -> str | None:
    """Why a LoRA adapter cannot sit on these layers; None where it can."""
    try:
        kind = json.loads((adapter / ADAPTER_CONFIG).read_text()).get("peft_type")
        entries = tensor_entries(adapter / ADAPTER_WEIGHTS)
    except (OSError, ValueError, AttributeError) as error:
        return f"it cannot be read ({type(error).__name__})"
    if kind != "LORA":
        return f"it is of the kind {kind!r}, not LORA"
    for name, entry in entries.items():
        if match := _LORA_TENSOR.fullmatch(name):
            module, part = match.groups()
            if module not in linear:
                return f"the base has no module {module!r}"
            inputs, outputs = linear[module]
            given, wanted = (entry["shape"][1], inputs) if part == "A" else (entry["shape"][0], outputs)
            if given != wanted:
                return f"{module} has width {wanted} there and {given} in the adapter"
    return None


def new_adapter(model: Any, lora: LoraConfig, seed: int) -> Any:
    """A fresh adapter, zero at first; everything else is frozen. Its start depends on the seed alone."""
    import peft

    settings = peft.LoraConfig(
        r=lora.r,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]  # a float is fine: only alpha / r is read
        lora_dropout=lora.dropout,
        target_modules=lora.targets if isinstance(lora.targets, str) else list(lora.targets),
        bias="none",
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return peft.get_peft_model(model, settings)


def attach_adapter(model: Any, directory: Path) -> Any:
    """A saved adapter on a model, frozen; a tensor too many or too few is an error, not a warning."""
    import peft

    settings = peft.PeftConfig.from_pretrained(str(directory))
    settings.inference_mode = True
    settings.base_model_name_or_path = None  # the chain knows it; peft would only compare names
    with torch.random.fork_rng(devices=[]):  # the values it starts from are drawn, then replaced
        wrapped = peft.get_peft_model(model, settings)
    loaded: Any = peft.set_peft_model_state_dict(wrapped, load_file(directory / ADAPTER_WEIGHTS))
    wrong = [*loaded.unexpected_keys, *(name for name in loaded.missing_keys if "lora_" in name)]
    if wrong:
        raise ModelError(f"{directory}: the adapter does not fit the model: {wrong[0]} has no counterpart")
    return wrapped


def adapters_off(model: Any) -> AbstractContextManager[Any]:
    """Within it the model is the one it started from; nothing changes for a model without adapters."""
    return model.disable_adapter() if hasattr(model, "disable_adapter") else nullcontext()
