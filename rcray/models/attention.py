"""Which kernel reads packed rows: FlexAttention, which skips what is masked, or SDPA under a mask.

Plain rows are causal and take SDPA's own kernels in either case, the flash one wherever torch has it. FlexAttention is
compiled for the card it runs on, and torch has its backward on GPUs only: it is taken where a small trial succeeds.
"""

import logging
from types import SimpleNamespace
from typing import Any, Literal

import torch
from torch import Tensor

from rcray.config.training import ExecutionConfig
from rcray.data.batch import collate
from rcray.data.encoded import EncodedPair
from rcray.data.layout import packed
from rcray.errors import ConfigError
from rcray.faults import classify
from rcray.models.capabilities import capabilities_of, try_again
from rcray.models.forward import FLEX, attention_of, heads_of
from rcray.models.precision import Precision

log = logging.getLogger(__name__)

#: Tokens of prompt, chosen and rejected in the trials. FlexAttention works on blocks of 128: some are skipped here, and
#: the second row ends within one. It is compiled anew for another width, and without a gradient.
_TRIALS = ((150, 230, 260), (90, 130, 175))
#: Kinds of input that it may be compiled for: with a gradient or without, of frozen inputs, of one row or several, of
#: one width or any. Past torch's own limit of 8 it would go on uncompiled, with all scores of a row in memory at once.
_COMPILED = 32


def use_attention(model: Any, device: torch.device, asked: Literal["auto", "sdpa", "flex"], *, packs: bool) -> None:
    """Sets the kernel of packed rows; with `auto` FlexAttention, where rows may be packed and it works on this GPU."""
    if asked != "sdpa" and device.type == "cuda":
        compile_anew()
    if asked == "flex":
        use_flex_attention(model, device)
    elif asked == "auto" and packs and device.type == "cuda":
        problem = why_no_flex(heads_of(model), capabilities_of(model).precision, device)
        if problem is None:
            use_flex_attention(model, device)
        else:
            log.warning("packed rows are read by SDPA under a mask: FlexAttention does not work here: %s", problem)


def read_with_attention(model: Any, device: torch.device, execution: ExecutionConfig) -> None:
    """The same for forwards alone, of a run's reference or its evaluation; on a CPU the model stays as it is."""
    if device.type == "cuda":
        use_attention(model, device, execution.attention, packs=execution.prompt_sharing != "off")


def attend_alike(model: Any, other: Any) -> None:
    """Gives a copy of another model its kernel of packed rows; it was tried there."""
    if attention_of(other) == FLEX:
        set_flex_attention(model)


def compile_anew() -> None:
    """Forgets what was compiled for another model: a process goes from cell to cell, and torch counts all of them."""
    torch.compiler.reset()
    torch.compiler.config.recompile_limit = _COMPILED


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


def why_no_flex(shape: tuple[int, int, int], precision: Precision, device: torch.device) -> str | None:
    """What keeps FlexAttention from such attention on this device; None where it agrees with masked SDPA.

    Compiled, forward and backward, for so many heads of queries, of keys and values, and of that width
    (`heads_of` a model), in the precision of the run.

    Raises:
        ConfigError: the GPU answers no more; what caused it tells that this process is of no use.
    """
    try:
        if all(_agrees(shape, precision, device, tokens) for tokens in _TRIALS):
            return None
        return "its output or gradient is not that of SDPA under a mask"
    except Exception as error:  # whatever a compiler, a missing kernel or a driver raises
        said = f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
        if classify(error) != "device":
            return said
        problem = f"execution.attention: the GPU failed while FlexAttention was tried: {said}"
        raise ConfigError(problem, fix="set execution.attention: sdpa") from error


def _agrees(
    shape: tuple[int, int, int], precision: Precision, device: torch.device, tokens: tuple[int, int, int]
) -> bool:
    """Whether output and gradients of one packed row are those of SDPA, and the output without a gradient, too."""
    heads, keys, width = shape
    layout = packed(collate([EncodedPair("a", *((1,) * count for count in tokens))], [0])).to(device)
    module = SimpleNamespace(training=True, is_causal=True, num_key_value_groups=heads // keys)
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, count, layout.ids.shape[1], width) for count in (heads, keys, keys)]
    parts = [torch.randn(shape, generator=generator).to(device, precision.compute) for shape in shapes]
    seed = torch.randn(1, shapes[0][2], heads, width, generator=generator).to(device, precision.compute)

    def run(mask: Any) -> list[Tensor]:
        query, key, value = leaves = [part.clone().requires_grad_() for part in parts]
        output, _ = attend(module, query, key, value, mask, scaling=width**-0.5)
        with torch.no_grad():
            alone, _ = attend(module, parts[0], parts[1], parts[2], mask, scaling=width**-0.5)
        return [output.detach(), alone, *torch.autograd.grad(output, leaves, seed)]

    ways = zip(run(layout.block_mask()), run(layout.mask()), strict=True)
    return all(precision.same(one, two) for one, two in ways)
