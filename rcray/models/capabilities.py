"""What a model allows: tried once, on a few tokens, and kept beside the model, not on it."""

import inspect
import logging
import weakref
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from rcray.data.batch import Batch, Side
from rcray.data.layout import Layout, packed, two_rows, worth_packing
from rcray.errors import ConfigError
from rcray.faults import classify
from rcray.models.blocks import blocks_of
from rcray.models.forward import FLEX, answer_logps, attention_of, body_of
from rcray.models.head import Sketch
from rcray.models.precision import Precision

log = logging.getLogger(__name__)

#: Settings by which architectures scale or cap their logits after the head; small logits would hide a cap.
_LOGIT_SHAPING = ("final_logit_softcapping", "logit_scale", "logits_scaling", "lm_head_multiplier")


class Capabilities:
    """What one model allows; each answer is found when it is first asked for."""

    sketch: Sketch | None = None  # beside its head, where scores are estimated by one
    tokens: int | None = None  # that a forward without a graph has room for, where it was found that more have not
    packed_forwards: int = 0  # without a graph, made of packed rows
    untried: bool = False  # a known architecture whose numbers are only pretended: ways agree without being compared

    def __init__(self, model: Any):
        self._model = weakref.ref(model)

    @cached_property
    def precision(self) -> Precision:
        """What it is run in: as its run says (`use_precision`), else that of its weights."""
        return Precision.of_weights(self.model)

    @property
    def model(self) -> Any:
        """The model these are the capabilities of."""
        model = self._model()
        assert model is not None
        return model

    @cached_property
    def plain_head(self) -> bool:
        """Whether logits are the head applied to the body's output and nothing more.

        Some architectures scale, cap or project their logits afterwards. They take the plain path.
        """
        model, head = self.model, self.model.get_output_embeddings()
        shaped = any(getattr(getattr(model, "config", None), n, None) not in (None, 0, 1) for n in _LOGIT_SHAPING)
        plain = not shaped and _is_linear(head) and (self.untried or _head_is_last(model, head, self.precision))
        if not plain:
            log.info("%s does more than apply its head; likelihoods take the plain path", type(model).__name__)
        return plain

    @cached_property
    def packs_rows(self) -> bool:
        """Whether packed rows give this model's likelihoods."""
        model = self.model
        packs = (
            self.plain_head
            and attention_of(model) in ("sdpa", FLEX)
            and "position_ids" in inspect.signature(body_of(model).forward).parameters
            and self._agree(lambda batch: _logps(model, packed(batch)), lambda batch: _logps(model, two_rows(batch)))
        )
        if not packs:
            level = logging.INFO if model.get_output_embeddings().weight.device.type == "cpu" else logging.WARNING
            log.log(level, "%s does not take packed rows; each pair is forwarded as two rows", type(model).__name__)
        return packs

    @cached_property
    def short_mlp(self) -> nn.Module | None:
        """The last feed-forward layer, where likelihoods stay the same without the prompts' way through it."""
        model, mlp = self.model, last_mlp(self.model)
        if mlp is None:
            return None
        short = self._agree(
            lambda batch: _logps(model, two_rows(batch), mlp), lambda batch: _logps(model, two_rows(batch))
        )
        return mlp if short else None

    def _agree(self, *ways: Callable[[Batch], Tensor]) -> bool:
        """Whether ways to compute likelihoods agree on a few tokens; one that cannot be gone does not."""
        if self.untried:
            return True
        weight = self.model.get_output_embeddings().weight
        words = torch.arange(1, 12) % weight.shape[0]

        def side(*columns: int) -> Side:
            ids = words[list(columns)][None]
            return Side(ids, torch.ones_like(ids), (torch.arange(len(columns)) >= 3).long()[None])

        batch = Batch(torch.tensor([0]), side(0, 1, 2, 3, 4, 5), side(0, 1, 2, 6, 7))
        try:
            with torch.no_grad(), self.precision():
                one, two = (way(batch) for way in ways)
        except (TypeError, ValueError, RuntimeError) as error:
            if classify(error) in ("memory", "device"):  # says nothing of the way
                raise
            return False
        return self.precision.agree(one, two)

    @property
    def worth_packing(self) -> Callable[[Batch], bool]:
        """The rule by which packed rows spare enough of pairs, on the device and with the kernel the model has now."""
        model = self.model
        if model.get_output_embeddings().weight.device.type == "cpu":
            return worth_packing
        return partial(worth_packing, hidden=model.config.hidden_size, skips=attention_of(model) == FLEX)

    @property
    def window(self) -> int | None:
        """How many tokens back the model reads, where that is bounded: a mask of ours would lift the bound."""
        config = self.model.config
        return getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None


_KNOWN: "weakref.WeakKeyDictionary[Any, Capabilities]" = weakref.WeakKeyDictionary()


def capabilities_of(model: Any) -> Capabilities:
    """The capabilities of this very model; a copy of it finds its own."""
    if model not in _KNOWN:
        _KNOWN[model] = Capabilities(model)
    return _KNOWN[model]


def use_precision(model: Any, precision: Precision) -> None:
    """From now on whatever runs this model runs it so, in this process."""
    precision.set_up()
    known = capabilities_of(model)
    if known.precision != precision:  # what was tried otherwise is tried again
        known = _KNOWN[model] = Capabilities(model)
        known.precision = precision


def last_mlp(model: Any) -> nn.Module | None:
    """The feed-forward module of the last block, where the architecture calls it `mlp` and it has one plain output."""
    try:
        mlp = getattr(blocks_of(body_of(model))[-1], "mlp", None)
    except (ValueError, IndexError):
        return None
    if not isinstance(mlp, nn.Module) or hasattr(mlp, "experts") or hasattr(mlp, "gate"):
        return None  # a router looks at all tokens
    return mlp


def try_again(model: Any) -> None:
    """Forgets what was tried, with another kernel; the precision stays."""
    known = _KNOWN.pop(model, None)
    if known is not None:
        capabilities_of(model).precision = known.precision


def use_liger(model: Any, device: torch.device) -> None:
    """Liger's kernels in the place of the model's own norms, rotary positions and gated layers; never of its loss.

    Raises:
        ConfigError: no GPU, no package, or none for this architecture.
    """
    if device.type == "cpu":
        raise ConfigError("execution.liger: true, and Liger's kernels are a GPU's", fix="leave it off on a CPU")
    try:
        from liger_kernel.transformers import _apply_liger_kernel_to_instance
        from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN
    except ImportError:
        raise ConfigError(
            "execution.liger: true needs the package liger-kernel, which is not installed",
            fix="pip install liger-kernel",
        ) from None
    causal = model.get_base_model() if hasattr(model, "get_base_model") else model
    if causal.config.model_type not in MODEL_TYPE_TO_APPLY_LIGER_FN:
        raise ConfigError(
            f"execution.liger: true, and Liger has no kernels for {causal.config.model_type}", fix="leave it off"
        )
    _apply_liger_kernel_to_instance(causal, cross_entropy=False, fused_linear_cross_entropy=False)


def _is_linear(head: Any) -> bool:
    """Whether it is a matrix product with its weight as it stands: not one kept in 4 bits, not one with an adapter."""
    return isinstance(head, nn.Linear) and head.weight.is_floating_point()


def _head_is_last(model: Any, head: nn.Linear, precision: Precision) -> bool:
    ids = torch.arange(1, 5, device=head.weight.device)[None] % head.weight.shape[0]
    with torch.no_grad(), precision():
        logits = model(input_ids=ids, use_cache=False).logits
        hidden = body_of(model)(input_ids=ids, use_cache=False).last_hidden_state
        # Dropout is off, so the two forwards agree but for rounding.
        close = 1e-3 if precision.exact else 4 * precision.rounding
        return torch.allclose(logits.float(), head(hidden.to(head.weight.dtype)).float(), atol=close, rtol=close)


def _logps(model: Any, layout: Layout, mlp: nn.Module | None = None) -> Tensor:
    device = model.get_output_embeddings().weight.device
    return answer_logps(model, layout.to(device), mlp=mlp)[0]
