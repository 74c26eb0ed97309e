"""`rcray sync`: delivers to MLflow what the store has and MLflow has not, at any time after any trouble."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rcray.config.benchmarks import PREFERENCE_ACCURACY
from rcray.errors import ConfigError, RcrayError, did_you_mean
from rcray.records.ledger import LEDGER, Ledger, read_stopped
from rcray.secrets import MASK
from rcray.store import Store
from rcray.sweep.grid import Cell
from rcray.sweep.ledger import build_ledger
from rcray.track.address import Address, tracking_address, why_unreachable
from rcray.track.book import Book, books
from rcray.track.delivery import Delivery, DeliveryPlan, Tally
from rcray.track.tracker import TrackerState

_BUSY_SECONDS = 60.0  # for another process that delivers the same experiment


@dataclass(frozen=True)
class Synced:
    """One experiment, delivered."""

    name: str
    address: Address
    cells: tuple[Cell, ...]
    delivery: Delivery

    @property
    def sent(self) -> Tally:
        """What the tracker did not have."""
        return self.delivery.sent

    @property
    def problems(self) -> tuple[str, ...]:
        """Cells that could not be delivered, and why."""
        return tuple(self.delivery.problems.values())


@dataclass(frozen=True)
class Models:
    """Which trained models go to MLflow too: none, unless asked for."""

    log: Literal["none", "best", "all"] = "none"
    register: str | None = None  # name in the model registry for the best cell
    best_by: str = PREFERENCE_ACCURACY

    def __post_init__(self) -> None:
        if self.register and self.log == "none":
            raise ConfigError("--register: only a logged model can be registered", fix="add --log-models best")


def sync_models(synced: Synced, store: Store, models: Models) -> list[str]:
    """Logs and registers what was asked for; returns what to say about it."""
    if models.log == "none":
        return []
    from rcray.track.mlflow import MlflowTracker
    from rcray.track.registry import best_to_register, log_model, register_model

    tracker = MlflowTracker(synced.address, store.root / "mlartifacts")
    runs = Book(store, synced.name).server(synced.address.uri).runs
    best = best_to_register(store, synced.cells, models.best_by)
    done = [cell for cell in synced.cells if store.run(cell.run_id).final.is_dir()]
    said = []
    for cell in done if models.log == "all" else [best]:
        if cell.run_id not in runs:
            raise RcrayError(
                f"{cell.label}: its model has no run in MLflow to go to: "
                f"{synced.delivery.problems.get(cell.run_id, 'it was not delivered')}",
                fix="mend what keeps the run from being delivered, then sync again",
            )
        new = log_model(tracker, runs[cell.run_id], cell, store)
        said.append(f"{cell.label}: model {'logged' if new else 'was logged already'}")
    if models.register:
        version = register_model(tracker, runs[best.run_id], best, models.register)
        said.append(f"{best.label}: best by {models.best_by}, registered as {version.name} version {version.version}")
    return said


def tracked_experiments(store: Store, names: Sequence[str]) -> list[Book]:
    """The books of the named experiments, or of all that were ever tracked."""
    tracked = {book.name: book for book in books(store)}
    for name in names:
        if name not in tracked:
            raise ConfigError(
                f"{name!r}: not a tracked experiment of {store.root}{did_you_mean(name, tracked)}",
                fix="name one of them, or give the experiment's file (NAME.yaml) to track it now",
            )
    return [tracked[name] for name in names] if names else list(tracked.values())


def address_for(book: Book, option: str | None, store: Store) -> Address:
    """The address asked for; else where the experiment was tracked last."""
    if option:
        return tracking_address(option)
    recorded = book.uri or store.default_tracking_uri
    if MASK in recorded:
        raise ConfigError(
            f"{book.name}: was tracked to {recorded}, and passwords are not kept",
            fix="give --tracking-uri or MLFLOW_TRACKING_URI",
        )
    return tracking_address(recorded)


def sync(book: Book, store: Store, address: Address) -> Synced:
    """Delivers every started run of an experiment, and its report; raises if the tracker is away."""
    if reason := why_unreachable(address):
        raise RcrayError(f"MLflow at {address.shown} does not answer: {reason}", fix="sync again when it does")
    cells = tuple(cell for cell in book.cells() if store.run(cell.run_id).status.exists())
    if not cells:
        raise RcrayError(f"{book.name}: nothing was trained yet", fix="run `rcray sweep` or `rcray train` first")
    swept = (book.path.parent / LEDGER).exists()
    delivery = delivery_to(address, store, DeliveryPlan(book.name, book.title, cells, parent=swept))
    deliver_all(delivery, cells, lambda: False)
    return Synced(book.name, address, cells, delivery)


def delivery_to(address: Address, store: Store, plan: DeliveryPlan) -> Delivery:
    """A delivery to MLflow, which is imported when it is opened."""

    def open_tracker() -> Any:
        from rcray.track.mlflow import MlflowTracker

        return MlflowTracker(address, store.root / "mlartifacts")

    def draw(cell: Cell) -> Mapping[str, bytes]:
        from rcray.aggregate.figures.dynamics import draw_run

        plot = draw_run(store.run(cell.run_id), cell)
        return {} if plot is None else plot.files

    return Delivery(plan, store, open_tracker, address.uri, draw)


def deliver_all(delivery: Delivery, cells: Sequence[Cell], stop: Callable[[], bool]) -> None:
    """The last pass: whatever is left, and the parent run with what the sweep came to."""
    directory = delivery.store.experiment(delivery.plan.name)
    delivery.deliver(final=True, patience=_BUSY_SECONDS, stop=stop)
    ledger = build_ledger(cells, delivery.store, stopped=read_stopped(directory))
    delivery.finish(sweep_state(ledger), report_paths(directory), ledger.summary(), patience=_BUSY_SECONDS)


def sweep_state(ledger: Ledger) -> TrackerState:
    """What a sweep is at its end: interrupted while cells are left, failed if one has no result."""
    if ledger.interrupted:
        return "KILLED"
    return "FINISHED" if ledger.complete else "FAILED"


def report_paths(directory: Path) -> list[Path]:
    """What a sweep's own run gets as artifacts."""
    return [directory / part for part in (LEDGER, "report.html", "explore.html", "tables", "figures")]
