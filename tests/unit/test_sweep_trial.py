"""Errors told apart, losses counted, a cell in smaller portions, and a process that lets go of the cell before."""

import errno
import gc
import json
from dataclasses import asdict, replace

import pytest
import torch

from rcray.config import RunConfig, run_id
from rcray.errors import ConfigError, RunLockedError, StorageUnavailableError
from rcray.faults import classify
from rcray.records.states import State
from rcray.sweep import storage
from rcray.sweep.grid import Cell
from rcray.sweep.losses import NODES, PROCESSES, Losses, given_up, write_given_up
from rcray.sweep.transit import GivenUp, Transit, giving_up, run_id_of, trial_settings
from rcray.sweep.trial import STORAGE, _carry_out, adjustment, run_trial, smaller_micro_batch, with_micro_batch
from rcray.train import mirror
from rcray.train.failure import is_blameless, record_failure
from tests.small_runs import small_config


class ActorDiedError(Exception):
    """By the name of Ray's."""


def caused(error, cause):
    error.__cause__ = cause
    return error


KERNEL = """
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions."""
NCCL = """NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3699, {}, NCCL version 2.27.3
{}"""
UNHANDLED = "unhandled cuda error (run with NCCL_DEBUG=INFO for details)"
LAST = "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure {}"

#: What CUDA and those above it say, and what it is. A GPU gives these as RuntimeErrors of one kind or another.
MEMORY = [
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 44.39 GiB of which 1.2 GiB is free.",
    "CUDA error: out of memory" + KERNEL,
    "CUDA driver error: out of memory",
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
    "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "cuDNN Frontend error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `cusolverDnCreate(handle)`",
    "cuFFT error: CUFFT_ALLOC_FAILED",
    "Triton Error [CUDA]: out of memory",
    'NVML_SUCCESS == r INTERNAL ASSERT FAILED at "../c10/cuda/CUDACachingAllocator.cpp":830, please report a bug.',
    NCCL.format(UNHANDLED, LAST.format("2 'out of memory'")),
    "HIP out of memory. Tried to allocate 64.00 MiB.",
    "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate "
    "4398046511104 bytes. Error code 12 (Cannot allocate memory)",
    "unable to mmap 8589934592 bytes from file <model.safetensors>: Cannot allocate memory (12)",
]
DEVICE = [
    "CUDA error: an illegal memory access was encountered" + KERNEL,
    "CUDA error: uncorrectable ECC error encountered" + KERNEL,
    "CUDA error: uncorrectable NVLink error detected during the execution",
    "CUDA error: unspecified launch failure" + KERNEL,
    "CUDA error: device-side assert triggered" + KERNEL,
    "CUDA error: misaligned address" + KERNEL,
    "CUDA error: an illegal instruction was encountered",
    "CUDA error: the launch timed out and was terminated",
    "CUDA error: unknown error" + KERNEL,
    "CUDA error: CUDA-capable device(s) is/are busy or unavailable",
    "CUDA error: all CUDA-capable devices are busy or unavailable",
    "CUDA error: no CUDA-capable device is detected",
    "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx(handle, opa, opb, m, n, k)`",
    "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR",
    "Triton Error [CUDA]: an illegal memory access was encountered",
    NCCL.format(UNHANDLED, LAST.format("700 'an illegal memory access was encountered'")),
    NCCL.format(UNHANDLED, LAST.format("999 'unknown error'")),
    "No CUDA GPUs are available",
    "Unable to determine the device handle for GPU0000:3B:00.0: GPU is lost.  Reboot the system to recover this GPU",
]
THE_CELL_ITSELF = [
    "CUDA error: no kernel image is available for execution on the device" + KERNEL,
    "CUDA error: invalid device ordinal",
    "CUDA error: invalid configuration argument",
    "CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling `cublasGemmEx(handle)`",
    "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
    "out of resource: shared memory, Required: 147456, Hardware limit: 101376. Reducing block sizes may help.",
    "The NVIDIA driver on your system is too old (found version 11040).",
    "out of memory, says a user's own code",
]


@pytest.mark.parametrize(
    ("message", "kind"),
    [(message, kind) for kind, some in {"memory": MEMORY, "device": DEVICE, "deterministic": THE_CELL_ITSELF}.items()
     for message in some],
)  # fmt: skip
def test_what_cuda_says(message, kind, store):
    error = caused(RuntimeError("training failed"), torch.AcceleratorError(message))
    assert classify(error) == kind
    assert is_blameless(error) == (kind == "device"), "what the run did not do is not written down as its failure"
    run = store.run("a")
    record_failure(run, error)
    assert run.read_status().status is (State.OOM if kind == "memory" else State.FAILED)


def test_a_collective_without_its_peer_is_no_failure_of_the_run():
    text = NCCL.format("remote process exited or there was a network error", "ncclRemoteError: A call failed")
    assert is_blameless(torch.distributed.DistBackendError(text))
    full = torch.distributed.DistBackendError(MEMORY[10])
    assert not is_blameless(full) and classify(full) == "memory"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), "memory"),
        (MemoryError(), "memory"),
        (caused(RuntimeError("training failed"), torch.OutOfMemoryError()), "memory"),
        (ActorDiedError("killed because the node was running low on memory"), "memory"),
        (ActorDiedError("the node has died"), "transient"),
        (ConnectionResetError("by peer"), "transient"),
        (TimeoutError(), "transient"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "memory"),
        (StorageUnavailableError("execution.storage: 's3://b' cannot be used"), "transient"),
        (RunLockedError("another process is training it"), "transient"),
        (OSError(116, "Stale file handle"), "transient"),
        (OSError(28, "No space left on device"), "deterministic"),
        (ConfigError("no"), "deterministic"),
        (ZeroDivisionError(), "deterministic"),
    ],
)
def test_errors_are_told_apart(error, kind):
    assert classify(error) == kind


def test_lost_nodes_are_not_counted_as_lost_processes():
    losses = Losses()
    losses.nodes += ["spot-1", "spot-2", "there", "spot-3", "there"]
    assert losses.verdict({"there"}) == ""
    assert losses.verdict({"there", "spot-3"}) == "its process was lost 3 times", "that node was not lost"
    assert losses.avoided({"there", "else"}) == {"there"}
    losses.nodes += [""]  # never came to say where it was
    assert losses.verdict({"there"}) == f"its process was lost {PROCESSES} times"


def test_a_node_without_the_store_is_named_and_nobody_blamed(store, monkeypatch):
    monkeypatch.setattr(storage, "sees", lambda mark: mark.exists())  # without waiting for a network file system
    config = small_config()
    run = store.run(run_id(config))
    with storage.shared_mark(store) as mark:
        assert storage.mirror_here(config, run, mark) is None
    with pytest.raises(StorageUnavailableError, match="not the same directory on node ") as raised:
        storage.mirror_here(config, run, mark)
    fault = raised.value.message
    error = storage.refusal(store, fault)
    assert error.message == f"store {store.root}: {fault}" and "execution.storage" in str(error.fix)
    assert storage.refusal(store, "No space left on device").fix == "free space there; the same command continues"


def test_storage_that_a_node_cannot_open_is_not_the_cells_fault(store, monkeypatch):
    """An S3 client without credentials or region fails as it is made, before anything is read or written."""
    from ray import tune

    def refused(uri):
        raise OSError("no region for bucket 'b'")

    said = []
    monkeypatch.setattr(tune, "report", said.append)
    monkeypatch.setattr(mirror, "_open", refused)
    config = small_config(execution={"storage": "s3://b/sweeps"})
    cell = Cell(run_id(config), config, ())
    run_trial({name: value for name, (value,) in trial_settings([cell]).items()}, store, (), store.root / "mark")
    (last,) = said
    assert last["finished"] and "no region for bucket 'b'" in last[STORAGE]
    assert storage.refusal(store, last[STORAGE]).fix == "give every node access to it; the same command continues"
    assert store.run(cell.run_id).recover_status().status is State.PENDING


def test_a_cell_that_takes_its_nodes_down_is_given_up():
    losses = Losses()
    losses.nodes += [f"spot-{i}" for i in range(NODES)]
    assert losses.verdict({"there"}) == f"its node was lost {NODES} times"


def test_what_a_last_process_is_told_reaches_it_typed():
    order = given_up("its node was lost 20 times", ActorDiedError("killed:\n low on memory"))
    config = small_config()
    cell = Cell(run_id(config), config, (("train.seed", 3),))
    ((name, (value,)),) = trial_settings([cell]).items()
    settings = json.loads(json.dumps({name: value}))
    assert Transit.read(settings) == Transit(cell) and run_id_of(settings) == cell.run_id
    last = json.loads(json.dumps(giving_up(settings, order)))
    assert Transit.read(last) == Transit(cell, GivenUp(State.OOM, order.lost, "killed: low on memory"))
    with pytest.raises(ValueError, match="state: "):
        Transit.read({**last, "given_up": {**asdict(order), "state": "gone"}})


def test_a_given_up_cell_says_what_it_met_last_and_keeps_an_outcome(store):
    run = store.run("abc")
    order = given_up("its process was lost 3 times", None)
    run.write_status(replace(run.read_status(), error="CUDA error"))
    assert write_given_up(run, order)
    record = run.read_status()
    assert (record.run_id, record.status, record.error) == ("abc", "failed", f"{order.lost}: CUDA error")
    run.write_status(replace(record, status=State.OOM, error="its own"))
    assert not write_given_up(run, order) and run.read_status().error == "its own"


@pytest.mark.parametrize(
    ("batch", "micro", "workers", "expected"),
    [(32, 8, 0, 4), (32, 1, 0, None), (12, 6, 0, 3), (9, 9, 0, 3), (32, 8, 4, 4), (32, 4, 4, None), (32, 2, 0, 1)],
)
def test_half_the_micro_batch(batch, micro, workers, expected):
    config = RunConfig.model_validate(
        {"train": {"batch_size": batch, "micro_batch_size": micro}, "execution": {"workers": workers}}
    )
    smaller_size = smaller_micro_batch(config)
    assert smaller_size == expected
    if smaller_size:
        smaller = RunConfig.model_validate(with_micro_batch(config, smaller_size).model_dump())
        assert smaller.train.batch_size == batch, "the same pairs per update"


@pytest.mark.parametrize(("tokens", "expected"), [(8192, 4096), (2049, 1024), (2000, None)])
def test_half_the_budget_of_tokens(tokens, expected):
    """Where tokens are counted, the number of pairs decides nothing."""
    config = RunConfig.model_validate({"train": {"micro_batch_tokens": tokens}, "data": {"max_length": 1024}})
    assert smaller_micro_batch(config) == expected
    if expected:
        smaller = RunConfig.model_validate(with_micro_batch(config, expected).model_dump())
        assert smaller.train.micro_batch_tokens == expected
        assert smaller.train.micro_batch_size == config.train.micro_batch_size
        told = adjustment(config, expected)
        assert (told.field, told.asked, told.used) == ("train.micro_batch_tokens", tokens, expected)
        assert told.note.startswith(f"micro-batch {tokens} -> {expected} tokens")


@pytest.mark.parametrize(("granularity", "smaller_windows"), [("microbatch", True), ("step", False)])
def test_a_smaller_window_is_told(granularity, smaller_windows):
    config = RunConfig.model_validate({"calibration": {"granularity": granularity}})
    note = adjustment(config, 4).note
    assert note.startswith("micro-batch 8 -> 4")
    assert ("smaller windows" in note) == smaller_windows


def test_a_process_lets_go_of_what_it_trained(store, monkeypatch):
    """Ray's processes go from cell to cell; models of finished ones would add up until Python happens to tidy up."""
    from ray import tune

    from rcray.train.loop import Training

    def trainings():
        return sum(type(thing) is Training for thing in gc.get_objects())

    config = small_config(data={"train_pairs": 8, "eval_pairs": 4})
    seen = []
    monkeypatch.setattr(tune, "report", lambda *_: None)
    gc.collect()
    gc.disable()
    try:
        cell = Cell(run_id(config), config, ())
        _carry_out(cell, store.run(cell.run_id), store, (lambda *_: seen.append(trainings()),), False, None)
    finally:
        gc.enable()
    assert store.run(cell.run_id).read_status().status == "ok"
    assert (seen, trainings()) == ([0], 0), "neither while it is evaluated nor after"
