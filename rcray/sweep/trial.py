"""One cell inside its Tune trial: train, try once more with less memory, then the stages after training.

A cell that runs out of memory is tried once more with half the micro-batch: the same pairs per update, in smaller
portions. The run keeps its id, because what was asked for is still the same cell; what differs is written down beside
it (adjusted.json), shown in the ledger, and used again when the run is resumed. Where statistics are taken per
micro-batch, the smaller portion is also a smaller window, so such a run is marked and not silently equal.
"""

import gc
import math
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rcray.config import RunConfig
from rcray.errors import StorageUnavailableError
from rcray.faults import classify, ended_by_device_faults, is_broken_card
from rcray.files import storage_fault, write_atomic
from rcray.records.states import UNSUCCESSFUL, State
from rcray.records.status import Adjustment, RunStatus, write_adjustment
from rcray.secrets import redact
from rcray.store import RunDir, Store
from rcray.sweep.grid import Cell
from rcray.sweep.losses import BROKEN_CARD, NODE, SHARES_STORE, write_given_up
from rcray.sweep.storage import mirror_here, sees
from rcray.sweep.transit import GivenUp, Transit
from rcray.train.launch import launch
from rcray.train.mirror import Mirror, pushed

#: A stage after training, in the cell's own process: `stage(config, store)`.
Stage = Callable[[RunConfig, Store], Any]

_REPORT_SECONDS = 1.0
SCORE = "probe_margin"
STORAGE = "storage_fault"  # in a trial's last report: why the store took no more


def run_trial(
    params: dict[str, Any], store: Store, stages: tuple[Stage, ...], mark: Path, scored: bool = False
) -> None:
    """One cell. What is wrong with the cell ends up in its status; what is wrong around it is raised, for Tune.

    `mark` is a file that every node must see; `scored` reports the margin at every probe, for a scheduler that
    compares trials.
    """
    import ray
    from ray import tune

    told = Transit.read(params)
    cell, run = told.cell, store.run(told.cell.run_id)
    try:
        mirror = mirror_here(cell.config, run, mark)
    except StorageUnavailableError as error:
        tune.report({"finished": True, STORAGE: error.message})
        return
    tune.report({NODE: ray.get_runtime_context().get_node_id(), SHARES_STORE: mirror is None or sees(mark, 0.0)})

    def say(error: Exception) -> None:
        if is_broken_card(error):
            tune.report({BROKEN_CARD: " ".join(str(error).split())})

    try:
        with ended_by_device_faults(say), pushed(mirror):
            _carry_out(cell, run, store, stages, scored, told.given_up)
    except Exception as error:
        if not (reason := storage_fault(error)):
            raise
        tune.report({"finished": True, STORAGE: reason})  # nothing can be written down, and another try would meet it
        return
    tune.report({"finished": True})


def _carry_out(
    cell: Cell, run: RunDir, store: Store, stages: tuple[Stage, ...], scored: bool, given_up: GivenUp | None
) -> None:
    from rcray.train.failure import record_failure, text_of

    if given_up:
        if mirror := Mirror.of(cell.config, run):
            mirror.pull()
        write_given_up(run, given_up)
        return
    try:
        outcome = train_cell(cell.config, run, store, scored).status
        _free_memory()  # a process goes on to other stages and cells: what was trained lies in cycles until then
        if outcome is State.OK:
            for stage in stages:
                stage(cell.config, store)
    except Exception as error:
        if storage_fault(error):
            raise
        write_atomic(run.path / "error.log", redact(traceback.format_exc()))
        if classify(error) in ("device", "transient"):  # no failure of the run; if it is given up, that was why
            run.write_status(
                replace(run.recover_status(), run_id=run.run_id, error=text_of(error), updated=time.time())
            )
            raise
        record_failure(run, error)
    _free_memory()


def train_cell(config: RunConfig, run: RunDir, store: Store, scored: bool = False) -> RunStatus:
    """Trains to an outcome and returns the status; raises what is no outcome of the run."""
    used = run.read_adjusted().used
    if used:
        config = with_micro_batch(config, used)
    record = _attempt(config, run, store, scored)
    smaller = None if used else smaller_micro_batch(config)
    if record.status is not State.OOM or smaller is None:
        return record
    write_adjustment(run.adjusted, adjustment(config, smaller))
    _free_memory()
    return _attempt(with_micro_batch(config, smaller), run, store, scored)


def _attempt(config: RunConfig, run: RunDir, store: Store, scored: bool) -> RunStatus:
    before = run.recover_status()
    callbacks = None
    if config.execution.workers:
        from ray.tune.integration.ray_train import TuneReportCallback

        callbacks = [TuneReportCallback()]
    on_step = _score_reporter() if scored else _reporter()
    try:
        return launch(config, store, key=run.run_id, on_step=on_step, callbacks=callbacks)
    except Exception:
        record = run.recover_status()
        if record.status in UNSUCCESSFUL and record.attempt != before.attempt:
            write_atomic(run.path / "error.log", redact(traceback.format_exc()))
            return record  # the loop has already said what it was
        raise


def _reporter() -> Callable[[dict[str, Any]], None]:
    """Progress for Tune, about once a second: its own bookkeeping costs more than a small step."""
    from ray import tune

    last = 0.0

    def report(row: dict[str, Any]) -> None:
        nonlocal last
        if time.monotonic() - last > _REPORT_SECONDS:
            last = time.monotonic()
            tune.report({"step": row["step"], "total_steps": row["total_steps"]})

    return report


def _score_reporter() -> Callable[[dict[str, Any]], None]:
    """Step and held-out margin at every probe: what ASHA compares. The report does not return once it has decided."""
    from ray import tune

    def report(row: dict[str, Any]) -> None:
        margin = row["probe_z_w"] - row["probe_z_l"]
        if math.isfinite(margin):
            tune.report({"step": row["step"], SCORE: margin})

    return report


def smaller_micro_batch(config: RunConfig) -> int | None:
    """The largest micro-batch of at most half the size that divides the batch and the workers' shares; None: none.

    Where tokens are counted instead, half as many: down to one row of the longest, which goes alone in any case.
    """
    train, workers = config.train, max(1, config.execution.workers)
    if train.micro_batch_tokens is not None:
        half = train.micro_batch_tokens // 2
        return half if half >= config.data.max_length else None
    sizes = range(workers, train.micro_batch_size // 2 + 1, workers)
    return max((size for size in sizes if train.batch_size % size == 0), default=None)


def _portion(config: RunConfig) -> str:
    """The setting that says how much a micro-batch is."""
    return "micro_batch_size" if config.train.micro_batch_tokens is None else "micro_batch_tokens"


def with_micro_batch(config: RunConfig, size: int) -> RunConfig:
    """The same run in smaller portions."""
    return config.model_copy(update={"train": config.train.model_copy(update={_portion(config): size})})


def adjustment(config: RunConfig, used: int) -> Adjustment:
    """What is written down about a run in smaller portions than asked for."""
    field = _portion(config)
    asked, unit = getattr(config.train, field), "" if field == "micro_batch_size" else " tokens"
    note = f"micro-batch {asked} -> {used}{unit} after running out of memory"
    if config.calibration.granularity == "microbatch":
        note += "; statistics per micro-batch are over smaller windows than asked for"
    return Adjustment(f"train.{field}", asked, used, note, time.time())


def _free_memory() -> None:
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
