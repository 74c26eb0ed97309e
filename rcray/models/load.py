"""From a model name to weights and tokenizer: an embedded tiny model, a local directory, or a hub id."""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import nn

from rcray.config.model import ModelConfig
from rcray.errors import ModelError
from rcray.models.tiny import TINY_MODELS, tiny_model_dir


@dataclass(frozen=True)
class LoadedModel:
    """A model with its tokenizer."""

    model: Any
    tokenizer: Any

    @cached_property
    def fingerprint(self) -> str:
        """Hash of every weight, computed once: what the reference likelihoods depend on."""
        return weights_fingerprint(self.model)


def load_model(config: ModelConfig, cache: Path) -> LoadedModel:
    """Loads weights (safetensors only) and tokenizer, with dropout off."""
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()  # a sweep's screen is the ledger's
    source = str(tiny_model_dir(config.name, cache)) if config.name in TINY_MODELS else config.name
    shared: dict[str, Any] = {"revision": config.revision, "trust_remote_code": config.trust_remote_code}
    try:
        if source.startswith(("/", "./", "../")) and not Path(source).is_dir():  # a path is no hub id
            raise FileNotFoundError("no such directory")
        read: Any = AutoModelForCausalLM.from_pretrained(
            source, dtype=getattr(torch, config.dtype), use_safetensors=True, output_loading_info=True, **shared
        )
        model, found = read
        tokenizer = AutoTokenizer.from_pretrained(source, **shared)
        if found["missing_keys"]:  # transformers would fill them with random numbers and go on
            raise ValueError(f"weights missing: {', '.join(sorted(found['missing_keys'])[:3])}, …")
        if not tokenizer.encode("a"):
            raise ValueError("its tokenizer has no vocabulary")
    except (OSError, ValueError, LookupError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:400]
        raise ModelError(
            f"model.name: cannot load {config.name!r}: {type(error).__name__}: {reason}",
            fix=f"give an embedded model ({', '.join(TINY_MODELS)}), a local directory with safetensors weights, "
            "or a hub id that is reachable or cached",
        ) from None
    if not tokenizer.chat_template:
        raise ModelError(
            f"model.name: the tokenizer of {config.name!r} has no chat template",
            fix="save the tokenizer with a chat_template in its directory",
        )
    turn_off_dropout(model)
    return LoadedModel(model, tokenizer)


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
    """SHA-256 over names, shapes and bytes of the state dict."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
