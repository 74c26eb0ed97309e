"""One compute precision per run: what matrix products are computed in, decided once and used wherever a model runs.

Training, the reference and the key of its cache, probes, evaluation and every self-check ask the same object. Weights
may be stored otherwise: 4-bit, or float32 under autocast.
"""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from rcray.config import RunConfig
from rcray.errors import ConfigError
from rcray.records.status import Device, RunStatus

log = logging.getLogger(__name__)

#: Nats by which a summed log-likelihood may differ between two ways to compute it, however precise.
FLOOR = 1e-2
#: Per token, in units of the compute type's rounding; errors of tokens are independent, so they add up as a root.
_ROUNDINGS, _PER_TOKEN = 8, 1e-3
_TF32 = 2.0**-10


@dataclass(frozen=True)
class Precision:
    """What products are computed in."""

    compute: torch.dtype
    device: str = "cpu"
    autocast: bool = False
    tf32: bool = False

    @classmethod
    def of(cls, config: RunConfig, device: torch.device, trained: Device | None = None) -> "Precision":
        """That of a run; refused where the device has no such arithmetic.

        `trained`: the record of the GPU it was trained on, where that is past: what was decided there holds.
        """
        name: str = config.compute_dtype
        asked = config.train.precision
        if config.precision_is_open and trained is not None:
            name = trained.precision
        elif name == "bfloat16" and not _has_bfloat16(device, asked=asked == "bfloat16"):
            if not config.precision_is_open:
                raise _no_bfloat16(device, "train.precision" if asked == "bfloat16" else "model.dtype")
            log.warning("this card computes bfloat16 by emulation only: float32 is used (train.precision: auto)")
            name = "float32"
        if asked == "tf32" and device.type == "cpu":
            raise ConfigError("train.precision: 'tf32' is a GPU's, and this run is on the CPU", fix="use auto")
        # Adapters, norms of 4-bit models and the master weights of full fine-tuning are float32: only autocast brings
        # their products and attention to the precision of the others.
        mixed = config.model.trains_adapters or config.model.dtype != name
        return cls(getattr(torch, name), device.type, name != "float32" and mixed, asked == "tf32")

    @classmethod
    def going_on(cls, config: RunConfig, device: torch.device, status: RunStatus) -> "Precision":
        """That of a run to be trained: of the steps that were made already, wherever, else as this device decides.

        Raises:
            ConfigError: this device has no such arithmetic; steps in two precisions would be no one run.
        """
        trained = status.device if status.step else None
        precision = cls.of(config, device, trained)
        if trained and precision.compute == torch.bfloat16 and not _has_bfloat16(device, asked=False):
            raise ConfigError(
                f"train.precision: {config.train.precision!r}, and {status.step} steps of this run were made in "
                f"bfloat16 on {trained.name}; this {device.type} has no bfloat16 arithmetic",
                fix="let it go on on such a card, or set train.precision: float32, which is another run on any card",
            )
        return precision

    @classmethod
    def of_weights(cls, model: Any) -> "Precision":
        """That of a model as it stands: the dtype of its head, to which weights of another one are brought.

        The norms of a 4-bit model are float32, and what they give does not fit a head in 16 bits by itself.
        """
        weight = model.get_output_embeddings().weight
        compute = weight.dtype if weight.is_floating_point() else torch.float32
        others = any(p.is_floating_point() and p.dtype != compute for p in model.parameters())
        return cls(compute, weight.device.type, compute in (torch.bfloat16, torch.float16) and others)

    def __call__(self) -> AbstractContextManager[Any]:
        """The context in which the model is run."""
        return self.context()

    @property
    def context(self) -> Callable[[], AbstractContextManager[Any]]:
        """What makes that context, for who makes many."""
        return partial(torch.autocast, self.device, dtype=self.compute) if self.autocast else nullcontext

    @property
    def name(self) -> str:
        """For keys of what is cached."""
        return "tf32" if self.tf32 else str(self.compute)

    @property
    def rounding(self) -> float:
        """The relative error of one operation."""
        return _TF32 if self.tf32 else torch.finfo(self.compute).eps

    @property
    def exact(self) -> bool:
        """Whether it is float32 or better."""
        return self.rounding < 1e-6

    def tolerance(self, tokens: torch.Tensor) -> torch.Tensor:
        """Nats by which sums over so many tokens may differ: far above rounding, far below another model."""
        return FLOOR + max(_PER_TOKEN, _ROUNDINGS * self.rounding) * tokens.sqrt()

    def agree(self, one: torch.Tensor, two: torch.Tensor) -> bool:
        """Whether two ways to compute log-probabilities give the same, each token by itself.

        One alone may be further off than one of many is on average, and a large one was rounded as a large logit.
        """
        relative, absolute = (max(_PER_TOKEN, n * self.rounding) for n in (_ROUNDINGS, 2 * _ROUNDINGS))
        return torch.allclose(one.float(), two.float(), rtol=relative, atol=absolute)

    def same(self, one: torch.Tensor, two: torch.Tensor) -> bool:
        """Whether two ways to compute a tensor give the same as a whole: the error's norm against the norm."""
        off, size = (one.double() - two.double()).norm(), two.double().norm()
        return bool(off <= max(_PER_TOKEN, _ROUNDINGS * self.rounding) * size)

    def set_up(self) -> None:
        """Switches the process to TF32 for float32 products, or off it."""
        if self.device != "cpu":
            torch.set_float32_matmul_precision("high" if self.tf32 else "highest")


def _no_bfloat16(device: torch.device, field: str) -> ConfigError:
    fix = {"train.precision": "use auto", "model.dtype": "use float16 with its loss scaling, or float32"}[field]
    return ConfigError(f"{field}: 'bfloat16', and this {device.type} has no bfloat16 arithmetic", fix=fix)


def _has_bfloat16(device: torch.device, *, asked: bool) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "cpu" and asked:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return True
