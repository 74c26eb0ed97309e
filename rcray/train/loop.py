"""The worker function: the same code inside a trial's own process and in a Ray Train worker group.

Its Ray touch points are numbered (1) to (4). Persistence is ours: Ray's report only carries progress.
"""

import logging
import os
import platform
import shutil
import time
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from filelock import FileLock, Timeout

from rcray.calibration import pathway_of
from rcray.calibration.update import Drift
from rcray.config import RunConfig
from rcray.data.encoded import EncodedPairs
from rcray.data.pairs import check_pairs
from rcray.data.prepare import prepare_data
from rcray.data.schedule import LookSchedule, Schedule
from rcray.errors import DegenerateRunError, RunLockedError
from rcray.extras import explained_imports
from rcray.files import publish_directory
from rcray.models.capabilities import use_precision
from rcray.models.cards import device_record, forget_peak
from rcray.models.device import asked_device
from rcray.models.load import LoadedModel, load_model
from rcray.models.precision import Precision
from rcray.models.trained import save_trained
from rcray.records.live import LiveRows
from rcray.records.progress import PREPARATION, TRAINING, report, reporting
from rcray.records.states import UNSUCCESSFUL, State
from rcray.records.status import RunStatus, Standing, Writer
from rcray.store import RunDir, Store
from rcray.train.ahead import Ahead
from rcray.train.checkpoint import CheckpointWriter, Progress, Resumable, Snapshot, restore_newest
from rcray.train.dynamics import Recorder, sound_until
from rcray.train.failure import is_blameless, record_failure, record_progress
from rcray.train.fresh import FreshPairs
from rcray.train.mirror import Mirror
from rcray.train.probe import NOT_PROBED, Probe
from rcray.train.profile import StepProfile
from rcray.train.record import row_of
from rcray.train.setup import step_state
from rcray.train.step import StepState, optimizer_step

with explained_imports():
    import ray.train
    import ray.train.torch

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
    profile: bool = False  # watch some steps of rank 0 and write where their time goes

    @property
    def inside(self) -> bool:
        """Whether the loop runs in the launching process, not in a worker group."""
        return self.config.execution.workers == 0

    @property
    def run(self) -> RunDir:
        """The run's directory."""
        return self.store.run(self.run_id)

    @cached_property
    def mirror(self) -> Mirror | None:
        """Its copy on remote storage, where one is kept."""
        return Mirror.of(self.config, self.run)


def worker_loop(settings: dict[str, Any]) -> RunStatus:
    """Trains one run to its end, from its newest checkpoint if it has one."""
    job: Job = settings["job"]
    rank, workers = _place(job)
    before = job.run.recover_status()
    if before.attempt == job.attempt and before.status in UNSUCCESSFUL:
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
        if job.mirror:
            job.mirror.pull()
            job.mirror.pull_caches()
        with reporting(job.run.path if rank == 0 else None):
            report(PREPARATION, 0, 1)
            training = prepare(job, rank, workers)
            if rank == 0 and job.mirror:
                job.mirror.push_caches()
            with closing(training.writer):  # before anything is said of how the run ended
                training.start()
                return training.run()
    except Exception as error:
        if not is_blameless(error):  # else Ray starts it again, in another process
            record_failure(job.run, error, job.attempt, job.config)
            if rank == 0 and job.mirror:
                job.mirror.push()
        raise
    finally:
        if rank == 0:
            LiveRows(job.run.path).clear()
        lock.release()


def _place(job: Job) -> tuple[int, int]:
    """(1) Who am I: rank and number of workers. Alone by construction inside a process, where Tune forbids asking."""
    if job.inside:
        return 0, 1
    context = ray.train.get_context()
    return context.get_world_rank(), context.get_world_size()


def _device(job: Job) -> torch.device:
    """(2) On what: the GPU Ray gave this worker, or the CPU; a GPU that was asked for and is not there is refused."""
    asked = asked_device(job.config.execution.gpus_per_worker)
    return asked if job.inside or asked.type == "cpu" else ray.train.torch.get_device()


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
    probe: Probe
    recorder: Recorder
    progress: Progress
    fresh: FreshPairs | None = None  # None: no looks are taken
    profile: StepProfile | None = None
    standing: list[float] = field(default_factory=list)  # share ranked and margin, when last probed

    @cached_property
    def writer(self) -> CheckpointWriter:
        """Of checkpoints: beside the training where that is on a GPU."""
        return CheckpointWriter(beside=self.state.policy.device.type == "cuda")

    def run(self) -> RunStatus:
        """The loop itself: probe, step, record, checkpoint."""
        config, schedule, progress = self.job.config, self.schedule, self.progress
        self.state.policy.model.train()
        clock = time.perf_counter()
        ahead = Ahead(self.state.policy, self.data.pairs, schedule, self.rank, self.workers)
        for step in range(progress.step, schedule.total_steps):
            probed = self._probe(at_start=step == 0) if step % config.train.probe_every == 0 else NOT_PROBED
            batches = ahead.at(step)
            try:
                with self.profile.step() if self.profile else nullcontext():
                    fresh = self.fresh.at(step) if self.fresh else None
                    row = row_of(optimizer_step(self.state, batches, step + 1, fresh))
            except DegenerateRunError:
                self.recorder.flush()  # the way to the collapse; a resumed run would rewind it
                raise
            tokens = ahead.tokens(step)
            progress.step = step + 1
            progress.tokens += tokens
            progress.count(row)
            last = progress.step == schedule.total_steps
            if last:
                probed = self._probe()
            epoch = step // schedule.steps_per_epoch
            row = {**row, **probed, "step": progress.step, "epoch": epoch, "tokens": tokens}
            if self.rank == 0:
                self.recorder.add(row)
            report(TRAINING, progress.step, schedule.total_steps)
            if self.job.on_step and self.rank == 0:
                self.job.on_step({**row, "total_steps": schedule.total_steps})
            if last or progress.step % config.execution.checkpoint_every == 0:
                progress.seconds += time.perf_counter() - clock
                clock = time.perf_counter()
                self._save(last)
        if schedule.total_steps == 0:  # the start model, kept as any other so that it is evaluated as any other
            self._save(last=True)
        if self.profile:
            self.profile.close()
        return self.job.run.recover_status()

    def start(self) -> None:
        """Goes back to the newest sound checkpoint whose records are sound too, and forgets every record after it."""
        run, update = self.job.run, self.state.update
        recorded = sound_until(run.dynamics)
        self.progress = restore_newest(run.checkpoints, Resumable.of(self.state), upto=recorded) or Progress()
        if self.state.calibrator is not None:
            self.state.calibrator.load_state_dict(self.progress.calibrator)
        if update.scaling is not None:
            update.scaling.restore(self.progress.loss_scale)
        self.state.drift = Drift(*self.progress.drift)
        if self.state.looks is not None:
            self.state.looks.restore(self.progress.look)
        if self.rank == 0:
            self.recorder.rewind(self.progress.step)
            self.job.run.write_status(self._status(State.RUNNING))
        self._meet()

    def _probe(self, *, at_start: bool = False) -> dict[str, Any]:
        """What the fixed probe pairs show, and the pathway taken since the last look at them."""
        measured = self.probe.measure(at_start=at_start)
        z = [measured["probe_z_w"], measured["probe_z_l"]]
        self.standing = [measured["probe_ranked"], z[0] - z[1]]
        before, self.progress.last_probe = self.progress.last_probe, z
        self.progress.first_probe = self.progress.first_probe or z
        realised = pathway_of(z[0] - before[0], z[1] - before[1]) if before else ""
        return {**measured, "pathway_realised": realised}

    def _save(self, last: bool) -> None:
        """Records first, then the checkpoint that vouches for them; at the end the model in place of checkpoints."""
        run, state, execution = self.job.run, self.state, self.job.config.execution
        update = state.update
        gathered = Snapshot.gather(state.policy.model, update.optimizer)
        weights = gathered.weights if gathered else None
        better = execution.keep_best and self._is_best(probed=last)
        self.progress.look = state.looks.state() if state.looks else {}
        self.writer.wait()
        if self.rank == 0:
            self.progress.calibrator = state.calibrator.state_dict() if state.calibrator else None
            self.progress.loss_scale = update.scaling.state() if update.scaling else []
            self.progress.drift = [state.drift.w, state.drift.l, state.drift.weight]
            self.recorder.flush()
            if better:
                publish_model(self.loaded, run.best, weights)
            if last:
                publish_model(self.loaded, run.final, weights)
                run.write_status(self._status(State.OK))
                shutil.rmtree(run.checkpoints, ignore_errors=True)
                self._push()
            else:
                status, keep = self._status(State.RUNNING), execution.keep_checkpoints
                what = run.checkpoints, Resumable.of(state), self.progress, keep, gathered
                self.writer.save(*what, then=lambda: self._push(status))
        self._meet()
        if not self.job.inside:  # (4) progress for Ray, at checkpoints only: every rank, equally often
            ray.train.report({"step": self.progress.step, "total_steps": self.schedule.total_steps})

    def _push(self, status: RunStatus | None = None) -> None:
        """Writes the status, unless the attempt has ended meanwhile, and makes the remote copy like what is here."""
        if status is not None:
            record_progress(self.job.run, status)
        if mirror := self.job.mirror:
            mirror.push()

    def _is_best(self, *, probed: bool) -> bool:
        """Whether the model as it stands ranks more probe pairs rightly than any kept before; then by margin."""
        if not probed:
            kept = self.progress.last_probe  # a look between the probes does not move the recorded pathway
            self._probe()
            self.progress.last_probe = kept
        better = self.standing > (self.progress.best or [-1.0, 0.0])
        if better:
            self.progress.best = self.standing
        return better

    def _winner_drift(self) -> float | None:
        """How far the probe's winners are from where they began, per token; None before the second look."""
        first, last = self.progress.first_probe, self.progress.last_probe
        if not first or not last:
            return None
        tokens = float(self.probe.data.lengths[:, 1].mean())  # of the chosen answers
        return (last[0] - first[0]) / (1.0 if self.state.policy.likelihood == "mean" else tokens)

    def _meet(self) -> None:
        """(3) Ray Train made the process group; nobody runs ahead of what rank 0 is writing."""
        if self.workers > 1:
            dist.barrier()

    def _status(self, state: State) -> RunStatus:
        progress, policy = self.progress, self.state.policy
        return RunStatus(
            run_id=self.job.run_id,
            label=self.job.config.label,
            fidelity=self.job.config.fidelity,
            attempt=self.job.attempt,
            status=state,
            step=progress.step,
            total_steps=self.schedule.total_steps,
            seconds=round(progress.seconds, 3),
            tokens=progress.tokens,
            in_band=progress.in_band_steps / progress.step if progress.step else None,
            looks_iii=progress.looks_iii / progress.looks if progress.looks else None,
            winner_drift=self._winner_drift(),
            best=Standing(*progress.best) if progress.best else None,
            data=self.data.report.summary(),
            data_fingerprint=self.data.fingerprint(),
            writer=Writer(platform.node(), os.getpid()),
            device=device_record(policy.model, policy.device, packed=policy.packed_forwards > 0),
            updated=time.time(),
        )


def prepare(job: Job, rank: int, workers: int) -> Training:
    """Model, data, reference and optimizer of a run, before its first step."""
    config, device = job.config, _device(job)
    forget_peak(device)
    torch.manual_seed(config.train.seed)
    if device.type == "cpu":
        torch.set_num_threads(max(1, int(config.execution.cpus_per_worker)))
    check_pairs(config.data)  # before any weights are read
    precision = Precision.going_on(config, device, job.run.recover_status())
    to_shard = config.execution.parallel == "fsdp"
    loaded = load_model(config.model, job.store.cache, seed=config.train.seed, device=device, to_shard=to_shard)
    use_precision(loaded.model, precision)
    prepared = prepare_data(config.data, loaded.tokenizer, job.store.cache)
    data, held_out = prepared.train, prepared.held_out
    prompts = data.prompts if config.calibration.look_every else None
    schedule = Schedule.of(config, len(data.pairs), data.lengths, data.behind, prompts)
    state = step_state(config, job.store, loaded, data, schedule, device, workers, rank)
    probe = Probe.of(config, state.policy, held_out, loaded.tokenizer)
    fresh = None
    if state.looks is not None:
        plan = LookSchedule(schedule, config.calibration.look_every, config.calibration.look_pairs, workers)
        portion = max(1, config.train.micro_batch_size // workers)
        steers = config.calibration.steers_by_update
        fresh = FreshPairs.of(state.policy, data.pairs, plan, portion, rank=rank, workers=workers, steers=steers)
    watch = StepProfile(job.run.profile, device) if job.profile and rank == 0 else None
    recorder = Recorder(job.run.dynamics, LiveRows(job.run.path) if rank == 0 else None)
    return Training(job, rank, workers, loaded, data, schedule, state, probe, recorder, Progress(), fresh, watch)


def publish_model(loaded: LoadedModel, target: Path, weights: dict[str, torch.Tensor] | None = None) -> None:
    """Saves what was trained, tokenizer and adapter chain as one directory, whole or not at all."""
    publish_directory(target, lambda directory: save_trained(loaded, directory, weights))
