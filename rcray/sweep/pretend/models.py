"""A config's model on the pretended device: its real shape in every layer, and no weights."""

from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn

from rcray.config.model import ModelConfig
from rcray.config.models import MODELS, stand_in
from rcray.config.shape import Shape
from rcray.models.adapters import new_adapter
from rcray.models.load import LoadedModel, ready_to_train, turn_off_dropout
from rcray.sweep.pretend.device import pretend_device

BLOCK = 64  # 4-bit weights that share a scale


def pretended_model(config: ModelConfig, *, layers: int | None = None) -> LoadedModel:
    """The model as `load_model` would give it, on the device of the watch around it; fewer layers where asked."""
    from transformers import AutoModelForCausalLM
    from transformers.initialization import no_init_weights

    settings = architecture(config)
    if layers is not None:
        settings.num_hidden_layers = layers
    with pretend_device(), no_init_weights():
        model = AutoModelForCausalLM.from_config(settings, dtype=getattr(torch, config.dtype))
    turn_off_dropout(model)
    if config.quantized:
        _quantize(model, getattr(torch, config.quantization.compute_dtype))
        model.is_loaded_in_4bit = True
        model = ready_to_train(model, config)
    if config.trains_adapters:
        with pretend_device(), mock.patch.object(nn.Module, "to", _moved):
            model = new_adapter(model, config.lora, seed=0)
    return LoadedModel(model, None)


def architecture(config: ModelConfig) -> Any:
    """The transformers configuration of a preset or of a local directory."""
    from transformers import AutoConfig

    if config.name in MODELS:
        return _of_shape(config.name, MODELS[config.name].shape)
    return AutoConfig.from_pretrained(Path(config.origin), trust_remote_code=config.trust_remote_code)


def _of_shape(name: str, shape: Shape) -> Any:
    from transformers import AutoConfig

    known = MODELS[stand_in(name)].embedded
    assert known is not None
    sizes: dict[str, Any] = {
        **known.settings,  # of the stand-in; what follows from the size is set below
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "tie_word_embeddings": shape.tied,
    }
    if shape.gated:
        sizes["num_key_value_heads"] = round(shape.heads * shape.key_values)
    return AutoConfig.for_model(known.model_type, **sizes)


def _quantize(model: nn.Module, compute: torch.dtype) -> None:
    """Puts bitsandbytes' 4-bit layers in the place of the linear ones, all but the head."""
    head = model.get_output_embeddings()  # type: ignore[operator]
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if type(layer) is nn.Linear and layer is not head:
                setattr(parent, name, _four_bit(layer, compute))


def _four_bit(layer: nn.Linear, compute: torch.dtype) -> nn.Module:
    """A layer whose weights count as packed: its own constructor would make them out of numbers that are not there."""
    from bitsandbytes.functional import QuantState
    from bitsandbytes.nn import Linear4bit

    outputs, inputs = layer.weight.shape
    device = pretend_device()
    packed = torch.empty(outputs * inputs // 2, 1, dtype=torch.uint8, device=device)
    state = QuantState(
        absmax=torch.empty(outputs * inputs // BLOCK, dtype=torch.float32, device=device),
        shape=layer.weight.shape,
        code=torch.empty(16, device=device),
        blocksize=BLOCK,
        quant_type="nf4",
        dtype=compute,
    )
    linear = Linear4bit.__new__(Linear4bit)
    nn.Module.__init__(linear)
    linear.in_features, linear.out_features = inputs, outputs
    linear.compute_dtype, linear.compute_type_is_set, linear.quant_storage = compute, True, torch.uint8
    linear.support_avx512bf16_for_cpu = False
    weight: Any = nn.Parameter(packed, requires_grad=False)
    weight.compress_statistics, weight.quant_type, weight.bnb_quantized = False, "nf4", True
    weight.quant_storage, weight.blocksize, weight.quant_state = torch.uint8, BLOCK, state
    linear.weight, linear.quant_state = weight, state
    linear.bias = None if layer.bias is None else nn.Parameter(layer.bias.detach(), requires_grad=False)
    return linear


def _moved(module: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
    """In the place of `Module.to`, which exchanges parameters in a way that fake ones do not bear."""
    _, dtype, _, _ = torch._C._nn._parse_to(*args, **kwargs)
    for part in module.modules():
        for name, p in part._parameters.items():
            if p is not None and p.is_floating_point() and dtype not in (None, p.dtype):
                part._parameters[name] = nn.Parameter(p.detach().to(dtype), p.requires_grad)
    return module
