"""Which kernel reads packed rows: FlexAttention, which skips what is masked, or SDPA under a mask.

Plain rows are causal and take SDPA's own kernels in either case, the flash one wherever torch has it. FlexAttention is
compiled for the card it runs on, and torch has its backward on GPUs only: it is taken where a small trial succeeds.
"""

import logging
from types import SimpleNamespace
from typing import Any, Literal

import torch
from torch import Tensor

from rcray.data.batch import collate
from rcray.data.encoded import EncodedPair
from rcray.data.layout import packed
from rcray.errors import ConfigError
from rcray.models.capabilities import capabilities_of, try_again
from rcray.models.forward import FLEX

log = logging.getLogger(__name__)

#: Tokens of prompt, chosen and rejected in the trial: FlexAttention works on blocks of 128, and some are skipped here.
_TRIAL = (150, 230, 260)


def use_attention(model: Any, device: torch.device, asked: Literal["auto", "sdpa", "flex"], *, packs: bool) -> None:
    """Sets the kernel of packed rows; with `auto` FlexAttention, where rows may be packed and it works on this GPU."""
    if asked == "flex":
        use_flex_attention(model, device)
    elif asked == "auto" and packs and device.type == "cuda":
        problem = why_no_flex(model, device)
        if problem is None:
            use_flex_attention(model, device)
        else:
            log.warning("packed rows are read by SDPA under a mask: FlexAttention does not work here: %s", problem)


def use_flex_attention(model: Any, device: torch.device) -> None:
    """Packed rows by FlexAttention.

    Raises:
        ConfigError: no GPU, or a model that cannot.
    """
    if device.type != "cuda":
        raise ConfigError(
            f"execution.attention: 'flex' cannot be trained on {device.type}: torch has no backward for it there",
            fix="use auto",
        )
    try:
        set_flex_attention(model)
    except (ValueError, ImportError) as error:
        raise ConfigError(
            f"execution.attention: 'flex' does not fit {type(model).__name__}: {error}", fix="use auto"
        ) from None
    try_again(model)


def set_flex_attention(model: Any) -> None:
    """Makes it the model's; transformers refuses those that are not made for it."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(FLEX, attend)
    AttentionMaskInterface.register(FLEX, sdpa_mask)  # of plain rows: none
    model.set_attn_implementation(FLEX)


def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any) -> Any:
    """Packed rows come with a block mask, and go by FlexAttention; plain ones by SDPA."""
    from torch.nn.attention.flex_attention import BlockMask
    from transformers.integrations.flex_attention import flex_attention_forward
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if not isinstance(attention_mask, BlockMask):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    kind = query.device.type
    if torch.is_autocast_enabled(kind):  # which knows of SDPA, and not of this: rotary positions give float32
        query, key, value = (part.to(torch.get_autocast_dtype(kind)) for part in (query, key, value))
    return flex_attention_forward(module, query, key, value, attention_mask, **options)


def why_no_flex(model: Any, device: torch.device) -> str | None:
    """What keeps FlexAttention from this model's attention on this device; None where it agrees with masked SDPA.

    Compiled, forward and backward, in the shape of its heads and in the precision of the run.
    """
    precision, config = capabilities_of(model).precision, model.config
    heads = config.num_attention_heads
    groups = heads // (getattr(config, "num_key_value_heads", None) or heads)
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    layout = packed(collate([EncodedPair("a", *((1,) * tokens for tokens in _TRIAL))], [0])).to(device)
    module = SimpleNamespace(training=True, is_causal=True, num_key_value_groups=groups)
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, heads // share, layout.ids.shape[1], width) for share in (1, groups, groups)]
    parts = [torch.randn(shape, generator=generator).to(device, precision.compute) for shape in shapes]
    seed = torch.randn(1, shapes[0][2], heads, width, generator=generator).to(device, precision.compute)

    def run(mask: Any) -> list[Tensor]:
        query, key, value = leaves = [part.clone().requires_grad_() for part in parts]
        output, _ = attend(module, query, key, value, mask, scaling=width**-0.5)
        return [output.detach(), *torch.autograd.grad(output, leaves, seed)]

    try:
        ways = zip(run(layout.block_mask()), run(layout.mask()), strict=True)
        if not all(precision.same(one, two) for one, two in ways):
            return "its output or gradient is not that of SDPA under a mask"
    except Exception as error:  # whatever a compiler, a missing kernel or a driver raises
        return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
    return None
