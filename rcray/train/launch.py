"""Launching a run on Ray Train: inside this process, or as a group of workers. One loop, two ways."""

import logging
import os
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rcray.config import RunConfig, run_id
from rcray.config.load import to_yaml
from rcray.files import write_atomic
from rcray.records.states import State
from rcray.records.status import RunStatus
from rcray.store import RunDir, Store
from rcray.train.mirror import Mirror

# Ray reads these when it is imported. The controller polls its workers this often: at the default of 2 s every
# report of a small run would wait that long.
os.environ.setdefault("RAY_TRAIN_HEALTH_CHECK_INTERVAL_S", "0.2")
os.environ.setdefault("RAY_TRAIN_ENABLE_PRINT_PATCH", "0")  # else every print of a worker shows twice
os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # the profiler's own notices

log = logging.getLogger(__name__)

WORKER_RETRIES = 2  # of a group, by Ray, which counts all losses alike; deterministic errors end a run at once
NODE_RETRIES = 20  # times that these are given anew, because a node was lost meanwhile
NODE_LOSS_SECONDS = 30.0  # until a node that is gone is known to be: its processes are missed first


def is_finished(run: RunDir) -> bool:
    """Whether a run has its final model and says so."""
    return run.recover_status().status is State.OK and run.final.is_dir()


def is_trained(run: RunDir) -> bool:
    """Whether a run was trained to its end and has its model, even where something after training has failed."""
    record = run.recover_status()
    failed_later = record.status in (State.FAILED, State.OOM) and record.step == record.total_steps
    return (record.status is State.OK or failed_later) and run.final.is_dir()


def restore_trained(run: RunDir) -> None:
    """Takes back what a stage after training said of such a run: that stage is all there is to do again."""
    record = run.recover_status()
    if is_trained(run) and (record.status is not State.OK or record.error):
        run.write_status(replace(record, status=State.OK, error="", updated=time.time()))


def is_whole(run: RunDir) -> bool:
    """Whether a run is finished and the records of all its steps are sound; else it is trained (again)."""
    if not is_finished(run):
        return False
    from rcray.train.dynamics import sound_until

    if sound_until(run.dynamics) >= run.recover_status().step:
        return True
    log.warning("run %s: its step records are damaged; it is trained again", run.run_id)
    return False


def launch(
    config: RunConfig,
    store: Store,
    *,
    key: str | None = None,
    on_step: Callable[[dict[str, Any]], None] | None = None,
    callbacks: list[Any] | None = None,
    profile: bool = False,
) -> RunStatus:
    """Trains one run, or finds it finished; returns its status. Raises what ended it.

    `key` names the run where it is not the config's own: a cell carried out in smaller portions than it asked for.
    `on_step` is called after every step of a run inside this process; `callbacks` are Ray Train's, for worker groups;
    `profile` watches some steps and writes where their time goes into the run's directory.
    """
    key = key or run_id(config)
    run = store.run(key)
    mirror = Mirror.of(config, run)
    if mirror and not is_finished(run):
        mirror.pull()
    restore_trained(run)
    if is_whole(run):
        return run.recover_status()
    write_atomic(run.config, to_yaml(config))

    from ray.train import FailureConfig, ScalingConfig
    from ray.train import RunConfig as TrainRunConfig
    from ray.train.torch import TorchTrainer

    from rcray.train.loop import Job, worker_loop
    from rcray.train.loopback import GroupConfig

    logging.getLogger("ray.train").setLevel(logging.WARNING)  # its notices would tear the progress line
    execution = config.execution
    job = Job(config, store, key, uuid.uuid4().hex, profile=profile)
    if job.inside:
        job = replace(job, on_step=on_step)
    on_gpu = execution.gpus_per_worker > 0
    resources = {"CPU": execution.cpus_per_worker}
    if on_gpu:
        resources["GPU"] = execution.gpus_per_worker

    def train(number: int) -> None:
        again = f"-{number}" if number else ""
        TorchTrainer(
            worker_loop,  # type: ignore[arg-type]  # returns rank 0's status
            train_loop_config={"job": job},
            # Inside this process there is no group to set up, and asked for its device Ray would start a cluster.
            torch_config=GroupConfig(backend="nccl" if on_gpu and not job.inside else "gloo"),
            scaling_config=ScalingConfig(
                num_workers=execution.workers, use_gpu=on_gpu, resources_per_worker=None if job.inside else resources
            ),
            run_config=TrainRunConfig(
                name=f"{key}-{job.attempt[:8]}{again}",  # a name of its own: resuming is ours, not Ray's
                storage_path=str(store.root / "ray"),
                failure_config=FailureConfig(max_failures=0 if job.inside else WORKER_RETRIES),
                callbacks=callbacks,
            ),
        ).fit()

    if job.inside:
        train(0)
    else:
        outlive_nodes(train)
    if mirror:  # the workers may have written on another node
        mirror.pull()
    return run.recover_status()


def outlive_nodes(train: Callable[[int], None]) -> None:
    """Trains with a group of workers, and again where it was lost for good while a node was lost.

    Ray counts the loss of a node, such as a spot instance that was taken away, like that of a process. `train` is told
    how often it was called before.
    """
    from ray.train import WorkerGroupError

    for number in range(NODE_RETRIES + 1):
        before = _nodes()
        try:
            return train(number)
        except WorkerGroupError:
            if number == NODE_RETRIES or not _lost_one_of(before):
                raise
            log.warning("a node was lost, and the group of workers with it; it goes on from its checkpoint")


def _nodes() -> set[str]:
    """Those that are there."""
    import ray

    return {node["NodeID"] for node in ray.nodes() if node["Alive"]} if ray.is_initialized() else set()


def _lost_one_of(nodes: set[str]) -> bool:
    """Whether one is gone, or is found to be within a moment."""
    until = time.monotonic() + NODE_LOSS_SECONDS
    while nodes <= _nodes():
        if len(nodes) < 2 or time.monotonic() > until:
            return False
        time.sleep(1.0)
    return True
