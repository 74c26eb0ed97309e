"""What a GPU does and holds, from the makers' data sheets: dense rates, without sparsity."""

from collections.abc import Mapping
from dataclasses import dataclass

from rcray.config import RunConfig
from rcray.errors import ConfigError, did_you_mean


@dataclass(frozen=True)
class Accelerator:
    """One kind of GPU. Rates are in floating point operations per second, memory in bytes."""

    name: str
    flops: float  # 16-bit
    tf32: float
    float32: float
    memory: float
    utilisation: float = 0.45  # of the rate, in a training step with recomputation; the paper's runtimes agree with it

    def rate(self, config: RunConfig) -> float:
        """What a run gets of it, in the precision it computes in."""
        if config.compute_dtype != "float32":
            return self.flops * self.utilisation
        return (self.tf32 if config.train.precision == "tf32" else self.float32) * self.utilisation


ACCELERATORS: Mapping[str, Accelerator] = {
    "a6000": Accelerator("RTX A6000", 154.8e12, 77.4e12, 38.7e12, 48e9),
    "l40s": Accelerator("L40S", 362e12, 183e12, 91.6e12, 48e9),
    "l4": Accelerator("L4", 121e12, 60e12, 30.3e12, 24e9),
    "a100-40": Accelerator("A100 40 GB", 312e12, 156e12, 19.5e12, 40e9),
    "a100-80": Accelerator("A100 80 GB", 312e12, 156e12, 19.5e12, 80e9),
    "h100": Accelerator("H100 SXM", 989e12, 494e12, 67e12, 80e9),
}
DEFAULT = "a6000"  # one of the paper's two kinds, so that its runtime table can be held against ours


def accelerator(name: str) -> Accelerator:
    """By its short name."""
    try:
        return ACCELERATORS[name.lower()]
    except KeyError:
        raise ConfigError(
            f"--gpu: unknown card {name!r}{did_you_mean(name, ACCELERATORS)}", fix="name one of them"
        ) from None
