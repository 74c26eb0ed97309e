"""`rcray sync`: delivers to MLflow what the store has and MLflow has not, at any time after any trouble."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rcray.courier import Order
from rcray.errors import ConfigError, RcrayError, did_you_mean
from rcray.pipeline import delivery_of, parent_paths, sweep_state
from rcray.records.ledger import LEDGER, read_stopped
from rcray.secrets import MASK
from rcray.store import Store
from rcray.sweep.grid import Cell
from rcray.sweep.ledger import build_ledger
from rcray.track.address import Address, knock, tracking_address
from rcray.track.book import Book, books
from rcray.track.delivery import Delivery, Tally

_PATIENCE_SECONDS = 60.0  # for another process that delivers the same experiment


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
    best_by: str = "preference/accuracy"

    def __post_init__(self) -> None:
        if self.register and self.log == "none":
            raise ConfigError("--register: only a logged model can be registered", fix="add --log-models best")


def sync_models(synced: Synced, store: Store, models: Models) -> list[str]:
    """Logs and registers what was asked for; returns what to say about it."""
    if models.log == "none":
        return []
    from rcray.track.mlflow import MlflowTracker
    from rcray.track.registry import best_cell, log_model, register

    tracker = MlflowTracker(synced.address, store.root / "mlartifacts")
    runs = Book(store, synced.name).server(synced.address.uri).runs
    best = best_cell(store, synced.cells, models.best_by)
    done = [cell for cell in synced.cells if store.run(cell.run_id).final.is_dir()]
    said = []
    for cell in done if models.log == "all" else [best]:
        new = log_model(tracker, runs[cell.run_id], cell, store)
        said.append(f"{cell.label}: model {'logged' if new else 'was logged already'}")
    if models.register:
        made = register(tracker, runs[best.run_id], best, models.register)
        said.append(f"{best.label}: best by {models.best_by}, registered as {made.name} version {made.version}")
    return said


def tracked_experiments(store: Store, names: Sequence[str]) -> list[Book]:
    """The books of the named experiments, or of all that were ever tracked."""
    found = {book.name: book for book in books(store)}
    for name in names:
        if name not in found:
            raise ConfigError(
                f"{name!r}: not a tracked experiment of {store.root}{did_you_mean(name, found)}",
                fix="name one of them, or give the experiment's file (NAME.yaml) to track it now",
            )
    return [found[name] for name in names] if names else list(found.values())


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
    if reason := knock(address):
        raise RcrayError(f"MLflow at {address.shown} does not answer: {reason}", fix="sync again when it does")
    cells = tuple(cell for cell in book.cells() if store.run(cell.run_id).status.exists())
    if not cells:
        raise RcrayError(f"{book.name}: nothing was trained yet", fix="run `rcray sweep` or `rcray train` first")
    directory = store.experiment(book.name)
    ledger = build_ledger(cells, store, stopped=read_stopped(directory))
    swept = (directory / LEDGER).exists()
    order = Order(str(store.root), address.uri, book.name, book.title, cells, parent=swept)
    delivery = delivery_of(order, store, live=False)
    delivery.deliver(final=True, patience=_PATIENCE_SECONDS)
    delivery.finish(sweep_state(ledger), parent_paths(store, book.name), ledger.summary())
    return Synced(book.name, address, cells, delivery)
