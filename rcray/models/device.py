"""The device that was asked for: used, or refused with the reason. A run never moves to another one in silence."""

import os

import torch

from rcray.errors import ConfigError
from rcray.models.load import CPU

GET_STARTED = "https://pytorch.org/get-started"


def asked_device(gpus: float, field: str = "execution.gpus_per_worker") -> torch.device:
    """The CPU for no GPU, whatever is in the machine; else the GPU this process may use.

    Raises:
        ConfigError: a GPU was asked for, and torch cannot use one.
    """
    if not gpus:
        return CPU
    if problem := why_no_gpu():
        raise ConfigError(f"{field}: {gpus:g}, and no GPU can be used: {problem[0]}", fix=problem[1])
    return torch.device("cuda", torch.cuda.current_device())


def evaluated_on(trained: float, asked: float | None) -> torch.device:
    """The device of an evaluation: what it asks for itself, else what the run was trained on."""
    return asked_device(trained) if asked is None else asked_device(asked, "evaluation.gpus")


def generators(device: torch.device | None) -> list[int]:
    """The GPU whose random numbers a model on this device draws; asking all that are visible would start each."""
    if device is None or device.type != "cuda":
        return []
    return [torch.cuda.current_device() if device.index is None else device.index]


def why_no_gpu() -> tuple[str, str] | None:
    """What keeps torch from using a GPU, and the fix; None where nothing does."""
    if torch.cuda.is_available():
        return None
    on_cpu = "or set execution.gpus_per_worker: 0 to train on the CPU"
    if torch.version.cuda is None and torch.version.hip is None:
        return (
            f"torch {torch.__version__} is built for CPUs",
            f"install the build for your driver ({GET_STARTED}), {on_cpu}",
        )
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1"):
        return f"CUDA_VISIBLE_DEVICES is {visible!r}, which hides every GPU", f"unset it, {on_cpu}"
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        reason = " ".join(str(error).split())[:200]
        return (
            f"{reason} (torch {torch.__version__}, CUDA {torch.version.cuda})",
            f"update the NVIDIA driver, or install the torch build for it ({GET_STARTED}), {on_cpu}",
        )
    return "torch sees no device", f"check `nvidia-smi`, {on_cpu}"
