"""Why a training ended before its time: written down, unless the fault was not the run's own."""

import time
from dataclasses import replace

import torch.distributed as dist

from rcray.config import RunConfig
from rcray.errors import DegenerateRunError, RcrayError
from rcray.faults import classify
from rcray.files import storage_fault
from rcray.records.states import UNSUCCESSFUL, State
from rcray.records.status import RunStatus
from rcray.secrets import redact
from rcray.store import RunDir


def is_blameless(error: BaseException) -> bool:
    """Whether what ended a run was around it: a peer, its GPU, the network or a disk. It is tried again as it is."""
    kind = classify(error)
    return kind in ("device", "transient") or (kind != "memory" and lost_a_peer(error)) or bool(storage_fault(error))


def lost_a_peer(error: BaseException) -> bool:
    """Whether a collective failed because another worker went away."""
    if isinstance(error, dist.DistBackendError | dist.DistNetworkError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in ("gloo", "NCCL", "by peer"))


def record_failure(run: RunDir, error: BaseException, attempt: str = "", config: RunConfig | None = None) -> None:
    """Writes down why a run ended; the kind of error decides its state. The first record of an attempt stays.

    `attempt` names the launch it happened in, of a run with this config; nothing for what came after training.
    """
    record = run.recover_status()
    if record.status in UNSUCCESSFUL and record.attempt == attempt:
        return
    state = State.FAILED
    if isinstance(error, DegenerateRunError):
        state = State.DEGENERATE
    elif classify(error) == "memory":
        state = State.OOM
    record = replace(record, run_id=run.run_id, status=state, error=text_of(error), updated=time.time())
    if config is not None:
        record = replace(record, label=config.label, fidelity=config.fidelity, attempt=attempt)
    run.write_status(record)


def record_progress(run: RunDir, status: RunStatus) -> None:
    """Writes how far an attempt is, unless it has ended meanwhile, by another worker's word, or another has begun."""
    before = run.recover_status()
    if before.attempt in ("", status.attempt) and before.status not in UNSUCCESSFUL:
        run.write_status(status)


def text_of(error: BaseException) -> str:
    """An error as a status says it, without secrets."""
    return redact(error.message if isinstance(error, RcrayError) else f"{type(error).__name__}: {error}")
