"""What ended a cell: memory, a GPU that answers no more, the machinery around it, or the cell itself.

Told by names and messages, so that nothing is imported to read an error: CUDA, its libraries, NCCL and Triton have
words of their own for the same few things. Only the first three kinds are worth another try.
"""

import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Literal

from rcray.errors import RunLockedError, StorageUnavailableError

log = logging.getLogger(__name__)

#: memory: try with less; device: nothing works any more in a process that met it, so try in another, best on another
#: node; transient: try again; deterministic: it would only fail again.
Fault = Literal["memory", "device", "transient", "deterministic"]

_MEMORY_NAMES = {"OutOfMemoryError", "MemoryError"}
#: Train's own errors are not among them: Train has already started the group again by itself, and its retries times
#: Tune's would be many.
_TRANSIENT_NAMES = {
    "ActorDiedError",
    "ActorUnavailableError",
    "NodeDiedError",
    "ObjectLostError",
    "OwnerDiedError",
    "RayActorError",
    "WorkerCrashedError",
    "ConnectionError",
    "ConnectTimeout",
    "ReadTimeout",
    "TimeoutError",
}
_KILLED_FOR_MEMORY = re.compile(r"low on memory|out of memory|memory monitor|OutOfMemory", re.IGNORECASE)

#: How an error of the CUDA or HIP runtime begins, by who reports it: torch, the driver, Triton, NCCL.
_RUNTIME = r"(?:(?:CUDA|HIP)(?: driver)? error: |Triton Error \[(?:CUDA|HIP)\]: |Cuda failure (?:\d+ )?')"
_MEMORY = re.compile(
    rf"{_RUNTIME}out of memory"
    r"|(?:CUDA|HIP|XPU|MPS backend) out of memory"
    r"|CU[A-Z]+_(?:STATUS_)?ALLOC_FAILED|CUDNN_STATUS_INTERNAL_ERROR_(?:DEVICE|HOST)_ALLOCATION_FAILED"
    r"|CUBLAS_STATUS_NOT_INITIALIZED when calling `?cublasCreate"  # no room for its workspace
    r"|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|cuda runtime error \(2\)"
    r"|NVML_SUCCESS == r INTERNAL ASSERT FAILED"  # the allocator, about to say how little is left
    r"|No available memory for the cache blocks"  # vLLM
    r"|DefaultCPUAllocator: (?:can't|not enough)|Cannot allocate memory"
)
_DEVICE = re.compile(
    rf"{_RUNTIME}(?:"
    r"an illegal memory access|an illegal instruction|misaligned address|invalid program counter|hardware stack error"
    r"|unspecified launch failure|the launch timed out|device-side assert|operation not supported on global/shared"
    r"|uncorrectable|Invalid access of peer GPU memory|unknown error|driver shutting down|system not yet initialized"
    r"|(?:all )?CUDA-capable device(?:s|\(s\))? (?:is/)?are busy|no CUDA-capable device)"
    r"|CU(?:BLAS|DNN)_STATUS_(?:EXECUTION_FAILED|INTERNAL_ERROR|MAPPING_ERROR)"
    r"|No CUDA GPUs are available|GPU is lost|fallen off the bus"
)
#: Those of them that no program can bring about: the GPU itself, its links or its driver.
_CARD = re.compile(
    r"uncorrectable|error: unknown error|'unknown error'|driver shutting down|system not yet initialized"
    r"|CUDA-capable device|No CUDA GPUs are available|GPU is lost|fallen off the bus"
)
_NO_MEMORY = 12  # ENOMEM
_STALE_STORAGE = {5, 116}  # EIO, ESTALE: a shared file system that went away for a moment
_EXIT_DEVICE = 74
#: How long a process whose GPU failed soon after it began keeps that GPU to itself before it ends.
HOLD_SECONDS = "RCRAY_GPU_HOLD_SECONDS"
_HOLD_SECONDS = 180.0
_SOON_SECONDS = 120.0


def classify(error: BaseException) -> Fault:
    """The kind of an error, or of what caused it."""
    chain = list(_chain(error))
    names = {kind.__name__ for link in chain for kind in type(link).__mro__}
    texts = [str(link) for link in chain]
    numbers = {link.errno for link in chain if isinstance(link, OSError)}
    if names & _MEMORY_NAMES or _NO_MEMORY in numbers or any(map(_MEMORY.search, texts)):
        return "memory"
    if names & _TRANSIENT_NAMES and _KILLED_FOR_MEMORY.search(texts[0]):
        return "memory"
    if any(map(_DEVICE.search, texts)):
        return "device"
    if names & _TRANSIENT_NAMES or numbers & _STALE_STORAGE:
        return "transient"
    if any(isinstance(link, RunLockedError | StorageUnavailableError) for link in chain):
        return "transient"
    return "deterministic"


def is_broken_card(error: BaseException) -> bool:
    """Whether the GPU itself is at fault: whatever the cell does, it has no part in it."""
    return classify(error) == "device" and any(_CARD.search(str(link)) for link in _chain(error))


@contextmanager
def ended_by_device_faults(say: Callable[[Exception], None] = lambda error: None) -> Iterator[None]:
    """For a process that is given other work afterwards: a fault of its GPU ends it, without clean-up.

    Every later call on that GPU would fail the same way, whoever makes it, and clean-up itself may wait for ever. A
    GPU that fails under whoever comes would always be the free one, and take one cell after the other: where it failed
    soon, the process keeps it for a while, so that sound ones are free before it. `say` is called with the error first.
    """
    began = time.monotonic()
    try:
        yield
    except Exception as error:
        if classify(error) != "device":
            raise
        hold = float(os.environ.get(HOLD_SECONDS, _HOLD_SECONDS))
        soon = time.monotonic() - began < _SOON_SECONDS
        log.error("this process ends%s, nothing works on its GPU: %s", f" in {hold:g} s" if soon else "", error)
        with suppress(Exception):
            say(error)
        if soon:
            time.sleep(hold)
        os._exit(_EXIT_DEVICE)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and its causes. What it was raised while handling is no cause."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__
