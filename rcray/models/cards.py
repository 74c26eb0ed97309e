"""Each GPU tried once on what a run asks of it: a product in bfloat16, one in 4 bits, attention, a sum between two."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rcray.models.attention import compile_anew, why_no_flex
from rcray.models.capabilities import capabilities_of
from rcray.models.forward import FLEX, attention_of, heads_of
from rcray.models.precision import Precision
from rcray.records.status import Device

GIB = 2**30
#: As torch numbers the kernels behind `scaled_dot_product_attention`.
KERNELS = {-1: "none", 0: "math", 1: "flash", 2: "efficient", 3: "cudnn", 4: "overrideable"}

#: Of queries, of keys and values, and their width, where no model says; the width is that of the 7B models.
_HEADS = (8, 8, 128)


@dataclass(frozen=True)
class Tried:
    """What came of one card: what it is, and what does not work, with the fix."""

    detail: str
    problems: tuple[tuple[str, str], ...] = ()


def attention_kernel(query: Tensor, key: Tensor, mask: Tensor | None) -> str:
    """The kernel that torch takes for causal rows, or for rows with a mask of ours, where a backward is to follow.

    With a gradient some kernels are left out: flash attention has none for wide heads on some cards.
    """
    grouped = key.shape[1] < query.shape[1]
    with torch.enable_grad():
        choice = torch._fused_sdp_choice(query, key, key, mask, 0.0, mask is None, enable_gqa=grouped)
    return KERNELS.get(int(choice), str(choice))


def attention_kernels(device: torch.device, dtype: torch.dtype, heads: int, keys: int, width: int) -> dict[str, str]:
    """Which kernels plain and packed rows are computed by; under a mask transformers repeats the keys' heads."""
    shapes = [(1, count, 64, width) for count in (heads, keys)]
    query, key = (torch.zeros(shape, dtype=dtype, device=device, requires_grad=True) for shape in shapes)
    mask = torch.ones(1, 1, 64, 64, dtype=torch.bool, device=device).tril()
    return {"plain": attention_kernel(query, key, None), "packed": attention_kernel(query, query, mask)}


def device_record(model: Any, device: torch.device, *, packed: bool = False) -> Device | None:
    """What is written down of the card a run is on; None on a CPU.

    And of packed rows, if a step had some (`packed`) or a forward without a graph.
    """
    if device.type != "cuda":
        return None
    allowed = capabilities_of(model)
    packed = packed or allowed.packed_forwards > 0
    by = attention_of(model) or "eager"
    if by in ("sdpa", FLEX):
        kernels = attention_kernels(device, allowed.precision.compute, *heads_of(model))
        rows = kernels["packed"] if by == "sdpa" else "FlexAttention"
        by = f"sdpa: plain rows by {kernels['plain']}" + (f", packed rows by {rows}" if packed else "")
    peak = torch.cuda.max_memory_allocated(device)
    return Device(torch.cuda.get_device_name(device), allowed.precision.name.removeprefix("torch."), by, peak)


def forget_peak(device: torch.device) -> None:
    """What a card held before is not this run's: processes are used for one after the other."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def try_card(index: int) -> Tried:
    """Name, memory and arithmetic of a card; what fails is said, not raised."""
    device = torch.device("cuda", index)
    properties = torch.cuda.get_device_properties(device)
    parts = [properties.name, f"{properties.total_memory / GIB:.1f} GiB", f"CUDA {torch.version.cuda}"]
    problems: list[tuple[str, str]] = []

    def attempt(what: str, work: Callable[[], str], fix: str) -> None:
        try:
            parts.append(work())
        except Exception as error:  # whatever a driver, a missing kernel or a full card raises
            problems.append((f"{what}: {' '.join(str(error).split())[:160]}", fix))

    driver = "update the NVIDIA driver, or install the torch build for it: https://pytorch.org/get-started"
    attempt("a product", lambda: _product(device), driver)
    attempt("bfloat16", lambda: _bfloat16(device), "use `fidelity: official`, which computes in float16, or float32")
    attempt("a 4-bit product", lambda: _four_bit(device), "pip install -U bitsandbytes; LoRA and full need none")
    attempt("attention", lambda: _attention(device), driver)
    return Tried(", ".join(parts), tuple(problems))


def _product(device: torch.device) -> str:
    square = torch.ones(64, 64, device=device)
    if float((square @ square).sum()) != 64.0**3:
        raise ValueError("64 x 64 ones give a wrong sum")
    return "float32"


def computes_bfloat16(card: torch.device | int) -> bool:
    """Whether a card does so itself, not by emulation."""
    with torch.cuda.device(card):
        return torch.cuda.is_bf16_supported(including_emulation=False)


def _bfloat16(device: torch.device) -> str:
    if not computes_bfloat16(device):
        raise ValueError("this card computes it by emulation only")
    square = torch.ones(64, 64, device=device, dtype=torch.bfloat16)
    if float((square @ square).float().mean()) != 64.0:
        raise ValueError("64 x 64 ones give a wrong product")
    return "bfloat16"


def _four_bit(device: torch.device) -> str:
    import bitsandbytes

    layer = bitsandbytes.nn.Linear4bit(64, 64, bias=False, compute_dtype=torch.float16, quant_type="nf4").to(device)
    if not bool(torch.isfinite(layer(torch.ones(2, 64, device=device, dtype=torch.float16))).all()):
        raise ValueError("the product is not finite")
    return "4-bit"


def _attention(device: torch.device) -> str:
    """What `execution.attention: auto` comes to; a card without FlexAttention is a sound one."""
    with torch.cuda.device(device):
        dtype = torch.bfloat16 if computes_bfloat16(device) else torch.float16
        kernels = attention_kernels(device, dtype, *_HEADS)
        compile_anew()
        problem = why_no_flex(_HEADS, Precision(dtype, device.type), device)
    rows = "FlexAttention" if problem is None else f"{kernels['packed']}, without FlexAttention: {problem}"
    return f"attention by {kernels['plain']} (packed rows: {rows})"


def try_pair(first: int, second: int) -> Tried:
    """Whether two cards can sum over NCCL, as worker groups do."""
    from torch.cuda import nccl

    version = ".".join(map(str, nccl.version()))
    tensors = [torch.ones(1024, device=f"cuda:{i}") for i in (first, second)]
    try:
        nccl.all_reduce(tensors)
        if any(float(tensor.mean()) != 2.0 for tensor in tensors):
            raise RuntimeError("the sum is wrong")
    except RuntimeError as error:
        fix = "NCCL_DEBUG=INFO says why; NCCL_P2P_DISABLE=1 goes by main memory; or use execution.workers: 0"
        return Tried(f"NCCL {version}", ((f"between cards {first} and {second}: {error}", fix),))
    direct = "directly" if torch.cuda.can_device_access_peer(first, second) else "by way of main memory"
    return Tried(f"NCCL {version} sums over cards {first} and {second}, {direct}")
