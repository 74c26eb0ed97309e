"""The worker function: the same code inside a trial's own process and in a Ray Train worker group.

Its Ray touch points are numbered (1) to (4). Persistence is ours: Ray's report only carries progress.
"""

import logging
import math
import os
import platform
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import ray.train
import ray.train.torch
import torch
import torch.distributed as dist
from filelock import FileLock, Timeout
from torch import Tensor

from rcray.calibration import Calibrator, pathway_of, score_parameters
from rcray.calibration.incentives import OneWorker, Reduce
from rcray.config import RunConfig
from rcray.data.batch import Batch, Schedule, collate
from rcray.data.encoded import EncodedPairs
from rcray.data.pairs import check_pairs
from rcray.data.prepare import prepare_data
from rcray.errors import DegenerateRunError, RcrayError, RunLockedError
from rcray.models.likelihood import side_logps
from rcray.models.load import LoadedModel, load_model
from rcray.models.reference import reference_logps
from rcray.models.trained import save_trained
from rcray.objectives import build_objective
from rcray.secrets import redact
from rcray.store import RunDir, Store, publish_directory, write_json
from rcray.train.checkpoint import Progress, restore_newest, save_checkpoint
from rcray.train.dynamics import Recorder
from rcray.train.step import StepState, optimizer_step

log = logging.getLogger(__name__)

LOCK_WAIT_SECONDS = 90  # a killed driver's workers live on for up to a minute


@dataclass(frozen=True)
class Job:
    """One run as it travels to a worker."""

    config: RunConfig
    store: Store
    run_id: str
    attempt: str  # names one launch: a deterministic failure is not tried again within it
    on_step: Callable[[dict[str, Any]], None] | None = None  # only inside the calling process

    @property
    def inside(self) -> bool:
        """Whether the loop runs in the launching process, not in a worker group."""
        return self.config.execution.workers == 0

    @property
    def run(self) -> RunDir:
        """The run's directory."""
        return self.store.run(self.run_id)


class ProcessGroup:
    """Reductions over the workers of a torch process group."""

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over workers."""
        total = tensor.contiguous()
        dist.all_reduce(total)
        return total

    def gather(self, values: Tensor) -> Tensor:
        """All workers' values, [workers, ...]."""
        rows = [torch.empty_like(values) for _ in range(dist.get_world_size())]
        dist.all_gather(rows, values.contiguous())
        return torch.stack(rows)


def worker_loop(settings: dict[str, Any]) -> dict[str, Any]:
    """Trains one run to its end, from its newest checkpoint if it has one."""
    job: Job = settings["job"]
    rank, workers = _place(job)
    before = job.run.read_status()
    if before.get("attempt") == job.attempt and before.get("status") in ("failed", "oom", "degenerate"):
        return before  # Ray retried what cannot succeed
    lock = FileLock(job.run.path / ".lock")
    if rank == 0:
        job.run.path.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=LOCK_WAIT_SECONDS)
        except Timeout:
            raise RunLockedError(
                f"run {job.run_id}: another process is training it", fix="wait for it, or end that process"
            ) from None
    try:
        training = prepare(job, rank, workers)
        training.start()
        return training.run()
    except Exception as error:
        if not lost_a_peer(error):  # else the run did nothing wrong: Ray starts the group again
            record_failure(job.run, error, **_identity(job))
        raise
    finally:
        lock.release()


def _place(job: Job) -> tuple[int, int]:
    """(1) Who am I: rank and number of workers. Alone by construction inside a process, where Tune forbids asking."""
    if job.inside:
        return 0, 1
    context = ray.train.get_context()
    return context.get_world_rank(), context.get_world_size()


def _device(job: Job) -> torch.device:
    """(2) On what: the GPU Ray gave this worker, or the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    return torch.device("cuda") if job.inside else ray.train.torch.get_device()


def lost_a_peer(error: BaseException) -> bool:
    """Whether a collective failed because another worker went away."""
    if isinstance(error, dist.DistBackendError | dist.DistNetworkError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in ("gloo", "NCCL", "by peer"))


def record_failure(run: RunDir, error: BaseException, **identity: Any) -> None:
    """Writes down why a run ended; the kind of error decides its status. The first record of an attempt stays."""
    found = run.read_status()
    if found.get("status") in ("failed", "oom", "degenerate") and found.get("attempt") == identity.get("attempt"):
        return
    status = "failed"
    if isinstance(error, DegenerateRunError):
        status = "degenerate"
    elif isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        status = "oom"
    message = error.message if isinstance(error, RcrayError) else f"{type(error).__name__}: {error}"
    write_json(run.status, {**found, **identity, "status": status, "error": redact(message)})


def _identity(job: Job) -> dict[str, Any]:
    return {
        "run_id": job.run_id,
        "label": job.config.label,
        "fidelity": job.config.fidelity,
        "attempt": job.attempt,
    }


@dataclass
class Training:
    """One run under way on one worker."""

    job: Job
    rank: int
    workers: int
    loaded: LoadedModel
    data: EncodedPairs
    schedule: Schedule
    state: StepState
    probe: Batch
    recorder: Recorder
    progress: Progress

    def run(self) -> dict[str, Any]:
        """The loop itself: probe, step, record, checkpoint."""
        config, schedule, progress = self.job.config, self.schedule, self.progress
        self.state.model.train()
        clock = time.perf_counter()
        for step in range(progress.step, schedule.total_steps):
            probed = self._probe() if step % config.train.probe_every == 0 else NOT_PROBED
            batches = [
                collate(self.data.pairs, index).to(self.probe.index.device)
                for index in schedule.micro_batches(step, self.rank, self.workers)
            ]
            row = optimizer_step(self.state, batches, self.workers, step + 1)
            tokens = int(self.state.reduce.sum(torch.tensor(sum(batch.tokens for batch in batches))))
            progress.step = step + 1
            progress.tokens += tokens
            progress.in_band_steps += row["in_band"]
            last = progress.step == schedule.total_steps
            if last:
                probed = self._probe()
            epoch = step // schedule.steps_per_epoch
            row = {**row, **probed, "step": progress.step, "epoch": epoch, "tokens": tokens}
            self.recorder.add(row)
            if self.job.on_step and self.rank == 0:
                self.job.on_step({**row, "total_steps": schedule.total_steps})
            if last or progress.step % config.execution.checkpoint_every == 0:
                progress.seconds += time.perf_counter() - clock
                clock = time.perf_counter()
                self._save(last)
        return self.job.run.read_status()

    def start(self) -> None:
        """Goes back to the newest sound checkpoint, and forgets every record after it."""
        self.progress = (
            restore_newest(self.job.run.checkpoints, self.state.model, self.state.optimizer, self.state.scheduler)
            or Progress()
        )
        if self.state.calibrator is not None:
            self.state.calibrator.load_state_dict(self.progress.calibrator)
        if self.rank == 0:
            self.recorder.rewind(self.progress.step)
            self._write_status("running")
        self._meet()

    def _probe(self) -> dict[str, Any]:
        """Likelihoods of the fixed probe pairs, and the pathway taken since the last look."""
        mean = self.state.likelihood == "mean"
        with torch.no_grad():
            sides = [side_logps(self.state.model, side) for side in (self.probe.chosen, self.probe.rejected)]
            z = [(s.sums / s.lengths if mean else s.sums).mean().item() for s in sides]
        before, self.progress.last_probe = self.progress.last_probe, z
        realised = pathway_of(z[0] - before[0], z[1] - before[1]) if before else ""
        return {"probe_z_w": z[0], "probe_z_l": z[1], "pathway_realised": realised}

    def _save(self, last: bool) -> None:
        """Records first, then the checkpoint that vouches for them; at the end the model in place of checkpoints."""
        run = self.job.run
        if self.rank == 0:
            self.progress.calibrator = self.state.calibrator.state_dict() if self.state.calibrator else None
            self.recorder.flush()
            if last:
                publish_model(self.loaded, run.final)
                self._write_status("ok")
                shutil.rmtree(run.checkpoints, ignore_errors=True)
            else:
                keep = self.job.config.execution.keep_checkpoints
                state = self.state
                save_checkpoint(run.checkpoints, state.model, state.optimizer, state.scheduler, self.progress, keep)
                self._write_status("running")
        self._meet()
        if not self.job.inside:  # (4) progress for Ray, at checkpoints only: every rank, equally often
            ray.train.report({"step": self.progress.step, "total_steps": self.schedule.total_steps})

    def _meet(self) -> None:
        """(3) Ray Train made the process group; nobody runs ahead of what rank 0 is writing."""
        if self.workers > 1:
            dist.barrier()

    def _write_status(self, status: str) -> None:
        progress = self.progress
        content = {
            **_identity(self.job),
            "status": status,
            "error": "",
            "step": progress.step,
            "total_steps": self.schedule.total_steps,
            "seconds": round(progress.seconds, 3),
            "tokens": progress.tokens,
            "in_band": progress.in_band_steps / progress.step if progress.step else None,
            "data": self.data.report.summary(),
            "data_fingerprint": self.data.fingerprint(),
            "writer": {"host": platform.node(), "pid": os.getpid()},
            "updated": time.time(),
        }
        write_json(self.job.run.status, content)


NOT_PROBED = {"probe_z_w": float("nan"), "probe_z_l": float("nan"), "pathway_realised": ""}


def prepare(job: Job, rank: int, workers: int) -> Training:
    """Model, data, reference and optimizer of a run, before its first step."""
    config, device = job.config, _device(job)
    torch.manual_seed(config.train.seed)
    if device.type == "cpu":
        torch.set_num_threads(max(1, int(config.execution.cpus_per_worker)))
    check_pairs(config.data)  # before any weights are read
    loaded = load_model(config.model, job.store.cache, seed=config.train.seed, device=device)
    prepared = prepare_data(config.data, loaded.tokenizer, job.store.cache)
    data, held_out = prepared.train, prepared.held_out
    probe = collate(held_out.pairs, range(min(config.train.probe_pairs, len(held_out.pairs))))
    schedule = Schedule.of(config, len(data.pairs), data.lengths)
    state = _step_state(job, loaded, data, schedule, device, workers)
    return Training(
        job, rank, workers, loaded, data, schedule, state, probe.to(device), Recorder(job.run.dynamics), Progress()
    )


def _step_state(
    job: Job, loaded: LoadedModel, data: EncodedPairs, schedule: Schedule, device: torch.device, workers: int
) -> StepState:
    config = job.config
    reduce: Reduce = ProcessGroup() if workers > 1 else OneWorker()
    objective = build_objective(config.objective)
    reference = live = None
    if config.needs_reference:
        if objective.params.traits.token_level:  # sums are not enough: keep the frozen model itself
            live = loaded.model if config.model.trains_adapters else _frozen_copy(config, job.store, device)
        else:
            reference = reference_logps(loaded, data, job.store.cache, device)
    calibration, train = config.calibration, config.train
    trained = [p for p in loaded.model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=train.learning_rate, weight_decay=train.weight_decay)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, learning_rate_factor(train.schedule, train.warmup_steps, schedule.total_steps)
    )
    return StepState(
        model=loaded.model,
        objective=objective,
        likelihood=config.likelihood,
        calibrator=Calibrator(calibration.ema_beta, clip=calibration.clip) if calibration.enabled else None,
        per_micro_batch=calibration.granularity == "microbatch",
        score_parameters=score_parameters(loaded.model, calibration.scores),
        optimizer=optimizer,
        scheduler=scheduler,
        clip_norm=train.clip_norm,
        batch_size=train.batch_size,
        reduce=reduce,
        reference=reference,
        live_reference=live,
    )


def _frozen_copy(config: RunConfig, store: Store, device: torch.device) -> Any:
    return load_model(config.model, store.cache, device=device).model.eval().requires_grad_(False)


def learning_rate_factor(schedule: Literal["constant", "cosine"], warmup: int, total: int) -> Callable[[int], float]:
    """The multiplier of the learning rate at each step: linear warm-up, then constant or cosine to zero."""

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        if schedule == "constant":
            return 1.0
        return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))

    return factor


def publish_model(loaded: LoadedModel, target: Path) -> None:
    """Saves what was trained, tokenizer and adapter chain as one directory, whole or not at all."""
    publish_directory(target, lambda directory: save_trained(loaded, directory))
