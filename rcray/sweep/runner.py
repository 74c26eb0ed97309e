"""Running the cells of an experiment on Ray Tune: one trial per unfinished cell.

Identity is ours: a finished run is skipped by its run_id, an unfinished one resumes from its own checkpoint, so the
same command continues whatever ended the last one. Tune places trials and retries lost processes; it keeps no state
that matters.
"""

import logging
import os
import shutil
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rcray.config import RunConfig, run_id
from rcray.errors import ConfigError
from rcray.store import RunDir, Store, write_atomic, write_json
from rcray.sweep.grid import Cell
from rcray.sweep.ledger import Ledger
from rcray.sweep.references import build_references, shared_references
from rcray.train.launch import is_finished, launch

log = logging.getLogger(__name__)

#: A stage after training, in the cell's own process: `stage(config, store)`.
Stage = Callable[[RunConfig, Store], Any]

PROCESS_RETRIES = 2  # lost trial processes or nodes; errors of the run itself are not retried
_REFRESH_SECONDS = 1.0
_REPORT_SECONDS = 1.0


@dataclass(frozen=True)
class SweepOptions:
    """How a sweep is carried out."""

    concurrency: int | None = None  # cells at once; None: as many as fit
    stages: tuple[Stage, ...] = ()
    on_refresh: Callable[[Ledger], None] | None = None  # called about once a second, and at the end


def run_sweep(cells: Sequence[Cell], store: Store, ledger: Ledger, options: SweepOptions) -> Ledger:
    """Runs every unfinished cell; returns the ledger. A failing cell never stops the others."""
    finished = [cell.run_id for cell in cells if _is_complete(store, cell, options)]
    todo = [cell for cell in cells if cell.run_id not in finished]
    running = [cell.run_id for cell in todo]
    stop = threading.Event()

    def refresh(active: Sequence[str]) -> None:
        ledger.refresh(store, running=active, cached=finished)
        ledger.save()
        if options.on_refresh:
            options.on_refresh(ledger)

    def watch() -> None:
        while not stop.wait(_REFRESH_SECONDS):
            refresh([key for key in running if store.run(key).path.exists()])

    refresh([])
    if not todo:
        return ledger
    watcher = threading.Thread(target=watch, name="ledger", daemon=True)
    watcher.start()
    try:
        _run_on_tune(todo, store, options)
    finally:
        stop.set()
        watcher.join()
        for cell in todo:
            _settle(store.run(cell.run_id))
        refresh([])
    return ledger


def _settle(run: RunDir) -> None:
    """A run that Ctrl-C stopped is not running any more; its checkpoint waits for the next command."""
    status = run.read_status()
    if status.get("status") == "running":
        write_json(run.status, {**status, "status": "pending"})


def _is_complete(store: Store, cell: Cell, options: SweepOptions) -> bool:
    """Finished with all its stages; a degenerate run is an outcome too, and would only become degenerate again."""
    run = store.run(cell.run_id)
    if run.read_status().get("status") == "degenerate":
        return True
    return is_finished(run) and all(_is_done(stage, cell.config, store) for stage in options.stages)


def _is_done(stage: Stage, config: RunConfig, store: Store) -> bool:
    """A stage that knows says so itself (`stage.is_done(config, store)`); for another, any evaluation will do."""
    knows = getattr(stage, "is_done", None)
    return bool(knows(config, store)) if knows else store.run(run_id(config)).evaluation.exists()


def _run_on_tune(cells: Sequence[Cell], store: Store, options: SweepOptions) -> None:
    for name, value in {
        "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # the record is ours
        "RAY_AIR_NEW_OUTPUT": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }.items():
        os.environ.setdefault(name, value)
    import ray
    from ray import tune

    started_here = not ray.is_initialized()
    if started_here:
        connect(needs_dashboard=any(cell.config.execution.workers for cell in cells))
    name = f"sweep-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    try:
        at_once = concurrency(cells, ray.cluster_resources(), options.concurrency)
        if references := shared_references(cells):
            build_references(references, store, at_once)
        trial = tune.with_parameters(run_trial, store=store, stages=options.stages)
        tuner = tune.Tuner(
            tune.with_resources(trial, trial_resources),  # type: ignore[arg-type]  # a dict will do
            param_space={"cell": tune.grid_search([_spec(cell) for cell in cells])},
            tune_config=tune.TuneConfig(max_concurrent_trials=at_once, reuse_actors=True),
            run_config=tune.RunConfig(
                name=name,
                storage_path=str(store.root / "ray"),
                verbose=0,
                failure_config=tune.FailureConfig(max_failures=PROCESS_RETRIES),
            ),
        )
        tuner.fit()
    finally:
        if started_here:
            ray.shutdown()
        shutil.rmtree(store.root / "ray" / name, ignore_errors=True)  # Tune's own state: nothing is read from it


def connect(*, needs_dashboard: bool) -> None:
    """Joins the cluster this process belongs to, or starts a private one on this machine's loopback."""
    import ray

    if os.environ.get("RAY_ADDRESS"):  # set inside `ray job submit`
        ray.init(log_to_driver=False, logging_level=logging.ERROR)
        return
    # address="local": never join a stranger's cluster by a stale file. Worker groups need the dashboard's state
    # service to free their resources; small cells do without its processes.
    ray.init(
        address="local",
        include_dashboard=needs_dashboard,
        dashboard_host="127.0.0.1",
        log_to_driver=False,
        logging_level=logging.ERROR,
    )


def _spec(cell: Cell) -> dict[str, Any]:
    return {"run_id": cell.run_id, "config": cell.config.model_dump(mode="json")}


def demand(config: RunConfig) -> dict[str, float]:
    """CPUs and GPUs a cell occupies while it trains."""
    execution = config.execution
    workers = max(1, execution.workers)
    wanted = {"CPU": execution.cpus_per_worker * workers, "GPU": execution.gpus_per_worker * workers}
    return {name: amount for name, amount in wanted.items() if amount}


def trial_resources(params: dict[str, Any]) -> dict[str, float]:
    """What Tune reserves for a trial: all of it for a cell in its own process.

    A worker group reserves for itself, so its trial holds only a token: a whole CPU for it would starve the group.
    """
    config = RunConfig.model_validate(params["cell"]["config"])
    return {"memory": 2**20} if config.execution.workers else demand(config)


def concurrency(cells: Sequence[Cell], available: dict[str, float], wanted: int | None) -> int:
    """How many cells may run at once without waiting for each other's workers; refuses what can never be placed."""
    fits = []
    for cell in cells:
        for name, amount in demand(cell.config).items():
            if amount > available.get(name, 0):
                raise ConfigError(
                    f"{cell.label}: needs {amount:g} {name}, the cluster has {available.get(name, 0):g}",
                    fix="lower execution.workers or execution.*_per_worker, or use a larger cluster",
                )
            fits.append(int(available[name] // amount))
    most = max(1, min(fits))
    return most if wanted is None else max(1, min(wanted, most))


def run_trial(params: dict[str, Any], store: Store, stages: tuple[Stage, ...]) -> None:
    """One cell: train, then its stages. Errors end up in the run's status, not in Tune's."""
    from ray import tune
    from ray.tune.integration.ray_train import TuneReportCallback

    config = RunConfig.model_validate(params["cell"]["config"])
    run = store.run(params["cell"]["run_id"])
    last = [0.0]

    def report(row: dict[str, Any]) -> None:
        if time.monotonic() - last[0] > _REPORT_SECONDS:
            last[0] = time.monotonic()
            tune.report({"step": row["step"], "total_steps": row["total_steps"]})

    try:
        callbacks = [TuneReportCallback()] if config.execution.workers else None
        launch(config, store, on_step=report, callbacks=callbacks)
        for stage in stages:
            stage(config, store)
    except Exception as error:
        from rcray.train.loop import record_failure

        write_atomic(run.path / "error.log", traceback.format_exc())
        record_failure(run, error)
    tune.report({"finished": True})
