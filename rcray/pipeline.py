"""A whole sweep, composed: cells, training and evaluation on Ray, delivery to MLflow, tables, figures, report."""

from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rcray.aggregate.report import Report, build_report
from rcray.config import Experiment
from rcray.follower import Delivered, Follower
from rcray.records.ledger import Ledger
from rcray.records.states import SETTLED
from rcray.records.status import RunStatus
from rcray.store import Store
from rcray.sweep.grid import Cell
from rcray.sweep.needs import require_extras
from rcray.track.book import Book
from rcray.track.sessions import Session, this_environment


@dataclass(frozen=True)
class SweepOutcome:
    """What a sweep left behind."""

    ledger: Ledger
    report: Report
    tracking_uri: str | None
    delivered: Delivered | None
    best: str = ""  # of a search


def sweep(
    experiment: Experiment,
    cells: Sequence[Cell],
    store: Store,
    *,
    tracking_uri: str | None,
    concurrency: int | None = None,
    on_refresh: Callable[[Ledger], None] | None = None,
    cluster_file: Path | None = None,
    figures: bool = True,
    command: Sequence[str] = (),
    tried: Collection[str] = (),
    chosen: Sequence[Cell] | None = None,
) -> SweepOutcome:
    """Runs what is unfinished, evaluates it, tracks it and writes the report. `tracking_uri=None` tracks nowhere.

    `command` is what was asked for, up to the choice of cells, for the page that offers to run some of them again;
    `tried` are runs that it has carried out already, however they ended. Of `chosen` cells, where they are given, no
    others are run; ledger and report are of all `cells`, those that were left alone as the store has them.
    """
    wanted = cells if chosen is None else chosen
    require_extras(experiment, wanted, tracked=tracking_uri is not None, measured=True)
    # Imported here: the command line answers `plan` and `--help` without ray or torch.
    from rcray.evaluate.command import check_settings
    from rcray.evaluate.stage import EvaluationStage
    from rcray.sweep.placement import check_before_start
    from rcray.sweep.runner import SweepOptions, run_sweep, unfinished
    from rcray.sweep.search import best_of_search

    evaluation = EvaluationStage(experiment.evaluation)
    only = None if chosen is None else frozenset(cell.run_id for cell in chosen)
    options = SweepOptions(concurrency, (evaluation,), on_refresh, cluster_file, experiment.search, tried, only)
    directory = store.experiment(experiment.name)
    with store.explained():
        if todo := unfinished(cells, store, directory, options):
            check_before_start(todo, cluster_file)  # first: what follows imports torch, which takes seconds
    if not all(evaluation.is_done(cell.config, store) for cell in wanted):
        check_settings(experiment.evaluation)
    with store.explained():
        follower = (
            None if tracking_uri is None else open_follower(experiment, wanted, store, tracking_uri, is_sweep=True)
        )
        with follower or nullcontext():
            ledger = run_sweep(cells, store, directory, options)
            if follower:
                follower.end_training()
            report = build_report(store, experiment, cells, figures=figures, command=command)
    best = best_of_search(experiment, cells, store)
    return SweepOutcome(ledger, report, tracking_uri, follower.outcome if follower else None, best)


@dataclass(frozen=True)
class TrainOutcome:
    """What a single run left behind."""

    status: RunStatus
    delivered: Delivered | None


def train(
    experiment: Experiment,
    cell: Cell,
    store: Store,
    *,
    tracking_uri: str | None,
    on_step: Callable[[dict[str, Any]], None] | None = None,
    profile: bool = False,
) -> TrainOutcome:
    """Trains one cell in this process or as a worker group, tracked in its experiment; raises what ended it."""
    require_extras(experiment, [cell], tracked=tracking_uri is not None, measured=False)
    from rcray.train.launch import launch

    with store.explained():
        follower = None if tracking_uri is None else open_follower(experiment, [cell], store, tracking_uri)
        with follower or nullcontext():
            status = launch(cell.config, store, on_step=on_step, profile=profile)
    return TrainOutcome(status, follower.outcome if follower else None)


def open_follower(
    experiment: Experiment, cells: Sequence[Cell], store: Store, uri: str, *, is_sweep: bool = False
) -> Follower:
    """Enters the cells into the experiment's delivery book, and makes the follower that will deliver them."""
    book = Book(store, experiment.name)
    book.enter(cells, experiment.title, uri)
    new = tuple(cell.run_id for cell in cells if store.run(cell.run_id).recover_status().status not in SETTLED)
    ids = tuple(cell.run_id for cell in cells)
    return Follower(book, uri, Session(ids, new, is_sweep, environment=this_environment()))
