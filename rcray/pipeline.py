"""A whole sweep, composed: cells, training and evaluation on Ray, delivery to MLflow, tables, figures, report."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rcray.aggregate.report import Report, build_report
from rcray.config import Experiment
from rcray.courier import Courier, Delivered, Order
from rcray.records.ledger import Ledger
from rcray.records.states import State
from rcray.records.status import RunStatus
from rcray.store import Store
from rcray.sweep.grid import Cell
from rcray.track.tracker import State as TrackerState

if TYPE_CHECKING:
    from rcray.track.delivery import Delivery


@dataclass(frozen=True)
class Outcome:
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
) -> Outcome:
    """Runs what is unfinished, evaluates it, tracks it and writes the report. `tracking_uri=None` tracks nowhere."""
    # Imported here: the command line answers `plan` and `--help` without ray or torch.
    from rcray.evaluate.command import check_settings
    from rcray.evaluate.stage import EvaluationStage
    from rcray.sweep.runner import SweepOptions, run_sweep
    from rcray.sweep.search import best_of_search

    evaluation = EvaluationStage(experiment.evaluation)
    if not all(evaluation.is_done(cell.config, store) for cell in cells):
        check_settings(experiment.evaluation)
    options = SweepOptions(concurrency, (evaluation,), on_refresh, cluster_file, experiment.search)
    with store.explained():
        courier = None if tracking_uri is None else open_courier(experiment, cells, store, tracking_uri, parent=True)
        with courier or nullcontext():
            ledger = run_sweep(cells, store, store.experiment(experiment.name), options)
            if courier:
                courier.hurry()
            report = build_report(store, experiment, cells, figures=figures)
            if courier:
                courier.finish(sweep_state(ledger), parent_paths(store, experiment.name), ledger.summary())
    best = best_of_search(experiment, cells, store)
    return Outcome(ledger, report, tracking_uri, courier.outcome if courier else None, best)


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
    from rcray.train.launch import launch

    with store.explained():
        courier = None if tracking_uri is None else open_courier(experiment, [cell], store, tracking_uri, parent=False)
        with courier or nullcontext():
            status = launch(cell.config, store, on_step=on_step, profile=profile)
    return TrainOutcome(status, courier.outcome if courier else None)


def sweep_state(ledger: Ledger) -> TrackerState:
    """What a sweep is at its end: interrupted while cells are left, failed if one has no result."""
    if ledger.interrupted:
        return "KILLED"
    return "FINISHED" if ledger.complete else "FAILED"


def parent_paths(store: Store, name: str) -> list[Path]:
    """What a sweep's own run gets as artifacts."""
    folder = store.experiment(name)
    return [folder / part for part in ("ledger.json", "report.html", "tables", "figures")]


def open_courier(experiment: Experiment, cells: Sequence[Cell], store: Store, uri: str, *, parent: bool) -> Courier:
    """Enters the cells into the experiment's delivery book, and makes the courier that will deliver them."""
    from rcray.track.book import Book

    Book(store, experiment.name).enter(cells, experiment.title, uri)
    kept = (State.OK, State.DEGENERATE)
    fresh = [cell.run_id for cell in cells if store.run(cell.run_id).read_status().status not in kept]
    order = Order(
        str(store.root), uri, experiment.name, experiment.title, cells, parent, fresh, awaits_evaluation=parent
    )
    return Courier(order, store.experiment(experiment.name) / "courier.log")


def delivery_of(order: Order, store: Store, *, live: bool) -> "Delivery":
    """The delivery an order asks for, to MLflow."""
    from rcray.track.address import Address
    from rcray.track.delivery import Delivery, Plan

    address = Address(order.uri)

    def open_tracker() -> Any:
        from rcray.track.mlflow import MlflowTracker

        return MlflowTracker(address, store.root / "mlartifacts")

    plan = Plan(
        order.name, order.title, order.cells, order.parent, frozenset(order.started_here), order.awaits_evaluation, live
    )
    return Delivery(plan, store, open_tracker, address.uri, lambda cell: draw_run(store, cell))


def draw_run(store: Store, cell: Cell) -> Mapping[str, bytes]:
    """The four-panel dynamics figure of one run, as PNG and SVG; empty for a run without records."""
    from rcray.aggregate.figures.dynamics import run_figure

    plot = run_figure(store.run(cell.run_id), cell.config)
    return {} if plot is None else plot.files
