"""Running the cells of an experiment on Ray Tune: one trial per unfinished cell, the longest first.

Identity is ours: a finished run is skipped by its run_id, an unfinished one resumes from its own checkpoint, so the
same command continues whatever ended the last one. Tune places trials and retries lost processes; it keeps no state
that matters.
"""

import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rcray.config import RunConfig, run_id
from rcray.config.search import SearchConfig
from rcray.errors import RcrayError
from rcray.files import storage_fault
from rcray.records.ledger import Ledger, read_stopped
from rcray.records.states import State
from rcray.store import RunDir, Store
from rcray.sweep.connection import connected
from rcray.sweep.cost import estimate
from rcray.sweep.grid import Cell
from rcray.sweep.head import HeadWatch
from rcray.sweep.ledger import LiveLedger
from rcray.sweep.losses import given_up, trial_watch, write_given_up
from rcray.sweep.placement import TRIAL_TOKEN, concurrency, demand, knows_memory, possible_nodes
from rcray.sweep.preparation import prepare_shared
from rcray.sweep.search import early_stops, scheduler
from rcray.sweep.storage import RemoteRuns, check_nodes, refusal, shared_mark
from rcray.sweep.transit import Transit, run_id_of, trial_settings
from rcray.sweep.trial import STORAGE, Stage, run_trial
from rcray.train.launch import is_whole

log = logging.getLogger(__name__)

_REFRESH_SECONDS = 1.0
_REFRESH_SHARE = 0.05  # of the time at most: with very many cells the ledger is written less often


@dataclass(frozen=True)
class _Watched:
    """What a sweep tells while it runs, and what is done when it ends by itself."""

    ledger: LiveLedger
    remote: RemoteRuns
    settle: Callable[[], None]


@dataclass(frozen=True)
class SweepOptions:
    """How a sweep is carried out."""

    concurrency: int | None = None  # cells at once; None: as many as fit
    stages: tuple[Stage, ...] = ()
    on_refresh: Callable[[Ledger], None] | None = None  # called about once a second, and at the end
    cluster_file: Path | None = None  # what an autoscaler may bring up
    search: SearchConfig | None = None  # ASHA stops what falls behind; None: every cell is trained to its end
    tried: Collection[str] = ()  # runs that this command has carried out already: their failures stand
    only: Collection[str] | None = None  # runs to carry out, of all that the ledger lists; None: every one


def run_sweep(cells: Sequence[Cell], store: Store, directory: Path, options: SweepOptions) -> Ledger:
    """Runs every unfinished cell; returns the ledger, as it is kept in the experiment's directory.

    A failing cell never stops the others.
    """
    remote = RemoteRuns(cells, store)
    remote.check()
    remote.fetch([cell.run_id for cell in cells])
    todo = unfinished(cells, store, directory, options)
    unready = {cell.run_id for cell in todo}
    incomplete = unready if options.only is None else {cell.run_id for cell in _incomplete(cells, store, options)}
    cached = [cell.run_id for cell in cells if cell.run_id not in incomplete]
    live = LiveLedger(cells, store, directory, cached, remote.follow)
    stop = threading.Event()

    def refresh() -> Ledger:
        ledger = live.refresh()
        if options.on_refresh:
            options.on_refresh(ledger)
        return ledger

    def watch() -> None:
        pause = _REFRESH_SECONDS
        while not stop.wait(pause):
            began = time.monotonic()
            try:
                refresh()
            except (OSError, RcrayError) as error:  # a disk that is full, or away for a moment: the end of the sweep
                log.debug("ledger not written: %s", error)  # meets it too, if it lasts
            pause = max(_REFRESH_SECONDS, (time.monotonic() - began) / _REFRESH_SHARE)

    ledger = refresh()
    if not todo:
        return ledger
    watcher = threading.Thread(target=watch, name="ledger", daemon=True)
    watcher.start()

    def settle() -> None:
        nonlocal ledger
        remote.fetch(unready)
        for key in unready:
            _settle(store.run(key))
        live.end(*unready)
        ledger = refresh()

    try:
        _run_on_tune(todo, store, directory, options, _Watched(live, remote, settle))
    finally:
        stop.set()
        watcher.join()
        settle()
    return ledger


def unfinished(cells: Sequence[Cell], store: Store, directory: Path, options: SweepOptions) -> list[Cell]:
    """The cells a sweep has something to do for."""
    left = {*options.tried, *(read_stopped(directory) if options.search else ())}
    wanted = [cell for cell in cells if options.only is None or cell.run_id in options.only]
    return _incomplete([cell for cell in wanted if cell.run_id not in left], store, options)


def _incomplete(cells: Sequence[Cell], store: Store, options: SweepOptions) -> list[Cell]:
    return [cell for cell in cells if not _is_complete(store, cell, options)]


def _settle(run: RunDir) -> None:
    """A run that Ctrl-C stopped is not running any more; its checkpoint waits for the next command."""
    record = run.recover_status()
    if record.status is State.RUNNING:
        run.write_status(replace(record, status=State.PENDING))


def _is_complete(store: Store, cell: Cell, options: SweepOptions) -> bool:
    """Finished with all its stages; a degenerate run is an outcome too, and would only become degenerate again."""
    run = store.run(cell.run_id)
    if run.recover_status().status is State.DEGENERATE:
        return True
    return is_whole(run) and all(_is_done(stage, cell.config, store) for stage in options.stages)


def _is_done(stage: Stage, config: RunConfig, store: Store) -> bool:
    """A stage that knows says so itself (`stage.is_done(config, store)`); for another, any evaluation will do."""
    knows = getattr(stage, "is_done", None)
    return bool(knows(config, store)) if knows else store.run(run_id(config)).evaluation.exists()


def _run_on_tune(
    cells: Sequence[Cell], store: Store, directory: Path, options: SweepOptions, watched: _Watched
) -> None:
    for name, value in {
        "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",  # the record is ours
        "RAY_AIR_NEW_OUTPUT": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",  # a trial's last report says that it is finished, and no score
    }.items():
        os.environ.setdefault(name, value)
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # what ends a cell, or a full disk, is said by us
    with connected(needs_dashboard=any(cell.config.execution.workers for cell in cells)) as connection:
        connection.keep_logs = _tune(cells, store, directory, options, watched)


def _tune(cells: Sequence[Cell], store: Store, directory: Path, options: SweepOptions, watched: _Watched) -> bool:
    """Returns whether a cell was lost with its processes."""
    from ray import tune

    name = f"sweep-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"

    def forget() -> None:  # Tune's own state: nothing is read from it
        shutil.rmtree(store.root / "ray" / name, ignore_errors=True)

    def lost() -> None:
        forget()
        watched.settle()

    with shared_mark(store) as mark:
        try:
            nodes = possible_nodes(options.cluster_file)
            at_once = concurrency(cells, nodes, options.concurrency)
            if any(cell.config.execution.storage is None for cell in cells):
                check_nodes(store, mark)
            prepare_shared(cells, store, nodes)
            ordered = sorted(cells, key=lambda cell: estimate(cell.config).weight, reverse=True)
            asha = options.search if options.search and options.search.method == "asha" else None
            trial = tune.with_parameters(
                run_trial, store=store, stages=options.stages, mark=mark, scored=asha is not None
            )
            watch = trial_watch(watched.ledger, watched.remote)
            tuner = tune.Tuner(
                tune.with_resources(trial, partial(trial_resources, with_memory=knows_memory(nodes))),  # type: ignore[arg-type]
                param_space={name: tune.grid_search(values) for name, values in trial_settings(ordered).items()},
                tune_config=tune.TuneConfig(
                    max_concurrent_trials=at_once,
                    reuse_actors=asha is None,
                    scheduler=scheduler(asha, cells) if asha else None,
                ),
                run_config=tune.RunConfig(
                    name=name,
                    storage_path=str(store.root / "ray"),
                    verbose=0,
                    failure_config=tune.FailureConfig(max_failures=-1),  # counted by us, lost nodes apart
                    callbacks=[watch, *([early_stops(directory)] if asha else [])],
                ),
            )
            with HeadWatch(lost):
                results = tuner.fit()
            return _record_lost(results, store) or watch.given_up
        finally:
            forget()


def _record_lost(results: Any, store: Store) -> bool:
    """A cell whose last process could not even write down that it is given up: it gets its status here.

    Returns whether there was one: Ray's logs may say why.
    """
    any_lost = False
    for result in results:
        if reason := (result.metrics or {}).get(STORAGE) or (result.error and storage_fault(result.error)):
            raise refusal(store, reason)
        if result.error is None:
            continue
        outcome = given_up("its process was lost again and again", result.error)
        any_lost |= write_given_up(store.run(run_id_of(result.config)), outcome)
    return any_lost


def trial_resources(params: dict[str, Any], *, with_memory: bool) -> dict[str, float]:
    """What Tune reserves for a trial: all of it, memory too, for a cell in its own process.

    A worker group reserves for itself, so its trial holds only a token: a whole CPU for it would starve the group.
    """
    config = Transit.read(params).cell.config
    if config.execution.workers:
        return {"memory": TRIAL_TOKEN}
    return dict(demand(config, with_memory=with_memory).bundle)
