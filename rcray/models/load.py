"""From a model config to weights and tokenizer: full, LoRA, or QLoRA; dropout off, safetensors only."""

import hashlib
import logging
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rcray.config import content_key
from rcray.config.model import ModelConfig
from rcray.errors import ModelError
from rcray.extras import explained_imports
from rcray.files import build_once
from rcray.models.adapters import attach_adapter, new_adapter, require_fit, require_packages
from rcray.models.chain import require_usable_as_sft
from rcray.models.sources import Origin, cannot_load, locate, save_whole, short_reason

with explained_imports():
    from safetensors import SafetensorError

log = logging.getLogger(__name__)

CPU = torch.device("cpu")
_LOADING_ERRORS = (OSError, ValueError, LookupError, RuntimeError, ImportError, SafetensorError)


@dataclass(frozen=True)
class LoadedModel:
    """A model with its tokenizer, and where its weights came from."""

    model: Any
    tokenizer: Any
    origin: Origin | None = None  # None: made in memory

    @cached_property
    def fingerprint(self) -> str:
        """Content of the model without our adapter: what the reference likelihoods depend on."""
        return weights_fingerprint(self.model) if self.origin is None else self.origin.fingerprint


def load_model(
    config: ModelConfig, cache: Path, *, seed: int = 0, device: torch.device = CPU, to_shard: bool = False
) -> LoadedModel:
    """The model a run starts from; for LoRA and QLoRA with a fresh adapter, drawn from `seed`.

    `to_shard`: 4-bit weights are packed into numbers that FSDP can cut.
    """
    origin = checked_origin(config, cache)
    model = load_frozen(origin, device, quantized=config.quantized, to_shard=to_shard)
    if config.trains_adapters:
        model = new_adapter(model, config.lora, seed)
    return LoadedModel(model, _load_tokenizer(origin, model), origin)


def checked_origin(config: ModelConfig, cache: Path) -> Origin:
    """Where the weights lie, after every check that needs no weights."""
    require_packages(config)
    origin = locate(config, cache)
    try:
        require_fit(origin)
    except _LOADING_ERRORS as error:
        raise cannot_load(config, short_reason(error)) from None
    require_usable_as_sft(origin)
    return origin


def load_frozen(origin: Origin, device: torch.device, *, quantized: bool, to_shard: bool = False) -> Any:
    """Base weights with the SFT adapter in them, in 4 bits if asked; no adapter of ours yet."""
    directory = origin.base if origin.sft_adapter is None else merged_base(origin)
    model = _read_weights(origin.config, directory, device, _four_bit(origin.config, to_shard) if quantized else None)
    turn_off_dropout(model)
    return ready_to_train(model, origin.config) if quantized else model


def ready_to_train(model: Any, config: ModelConfig) -> Any:
    """A model whose linear layers are kept in 4 bits, its norms and what flows between its blocks in float32.

    Needed at every load: without it a reloaded adapter meets another model.
    """
    from peft import prepare_model_for_kbit_training

    for module in model.modules():
        # On CPUs with AVX512-BF16 the first forward in eval mode repacks the weights for a bfloat16 kernel without a
        # backward: every gradient after it would be silently wrong.
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
    model = prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    stored = getattr(torch, config.dtype)
    if config.quantization.compute_dtype == config.dtype:
        # Embeddings and head are products, or looked up: in float32 they would be the same numbers, twice as large.
        for module in (model.get_input_embeddings(), model.get_output_embeddings()):
            module.weight.data = module.weight.data.to(stored)
    return model


def merged_base(origin: Origin) -> Path:
    """The base with its SFT adapter merged, as a model directory in the cache; made once and shared by every run."""
    assert origin.sft_adapter is not None
    adapter, config = origin.sft_adapter, origin.config
    key = content_key([origin.base_fingerprint, origin.sft_fingerprint, config.dtype], 24)

    def build(directory: Path) -> None:
        base = _read_weights(config, origin.base, CPU)
        merged = attach_adapter(base, adapter).merge_and_unload(safe_merge=True)
        save_whole(merged, directory)

    return build_once(origin.cache / "models" / f"merged-{key}", build)


def _read_weights(config: ModelConfig, directory: Path, device: torch.device, four_bit: Any = None) -> Any:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()  # a sweep's screen is the ledger's
    options: dict[str, Any] = {"dtype": getattr(torch, config.dtype), "trust_remote_code": config.trust_remote_code}
    if four_bit is not None:
        options["quantization_config"] = four_bit
    if device.type != "cpu" or four_bit is not None:
        # 4-bit weights are packed where they will stay; not told where, transformers takes any GPU that it sees.
        options["device_map"] = {"": str(device)}
    try:
        read: Any = AutoModelForCausalLM.from_pretrained(
            directory, use_safetensors=True, output_loading_info=True, **options
        )
        model, info = read
        if info["missing_keys"]:  # transformers would fill them with random numbers and go on
            raise ValueError(f"weights missing: {', '.join(sorted(info['missing_keys'])[:3])}, …")
    except _LOADING_ERRORS as error:
        raise cannot_load(config, short_reason(error)) from None
    return model


def _four_bit(config: ModelConfig, to_shard: bool) -> Any:
    from transformers import BitsAndBytesConfig

    quantization = config.quantization
    # FSDP makes parameters of what it cuts, and torch lets only floating point numbers be ones: the same bytes, then,
    # under the name of the dtype that is computed in.
    storage = getattr(torch, quantization.compute_dtype) if to_shard else torch.uint8
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=quantization.kind,
        bnb_4bit_use_double_quant=quantization.double_quant,
        bnb_4bit_compute_dtype=getattr(torch, quantization.compute_dtype),
        bnb_4bit_quant_storage=storage,
    )


def tokenizer_of(origin: Origin) -> Any:
    """The SFT adapter's tokenizer if it brings one: it has the template the adapter was trained with."""
    adapter = origin.sft_adapter
    own = adapter is not None and (adapter / "tokenizer_config.json").is_file()
    return read_tokenizer(origin.config, adapter if own and adapter else origin.base)


def _load_tokenizer(origin: Origin, model: Any) -> Any:
    tokenizer = tokenizer_of(origin)
    if len(tokenizer) > model.get_input_embeddings().weight.shape[0]:
        log.warning("%s: some of the tokenizer's %d tokens have no embedding", origin.config.origin, len(tokenizer))
    return tokenizer


def read_tokenizer(config: ModelConfig, directory: Path) -> Any:
    """A tokenizer with words and a chat template; the config's template wins."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(directory, trust_remote_code=config.trust_remote_code)
        if not tokenizer.encode("a"):
            raise ValueError("its tokenizer has no vocabulary")
    except _LOADING_ERRORS as error:
        raise cannot_load(config, short_reason(error)) from None
    if config.chat_template:
        tokenizer.chat_template = config.chat_template
    if not tokenizer.chat_template:
        raise ModelError(
            f"model.name: the tokenizer of {config.origin!r} has no chat template",
            fix="give one as model.chat_template, as Jinja text or a file",
        )
    return tokenizer


def turn_off_dropout(model: nn.Module) -> None:
    """Preference margins compare two forwards of one model: dropout would make them noise."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    # Attention reads its rate from a plain number of its own, copied from the config when the model was made.
    for holder in (*model.modules(), model.config):
        for name, value in list(vars(holder).items()):
            if ("dropout" in name or "pdrop" in name) and isinstance(value, float):
                setattr(holder, name, 0.0)


def weights_fingerprint(model: nn.Module) -> str:
    """SHA-256 over names, shapes and bytes of the state dict; for models that were not read from files."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
