"""The delivery book of an experiment: which tracker knows it, by which ids, and what there is to deliver.

experiments/NAME/tracking.json
  holder    the process that delivered last: another one must ask the tracker how far that got
  cells     every cell ever tracked, with its settings, so that `rcray sync` needs no experiment file
  servers   per tracking URI: experiment id, parent run, run_id -> MLflow run id
"""

import contextlib
import copy
import logging
import os
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from rcray.errors import RcrayError
from rcray.files import recover_json, write_atomic, write_json
from rcray.secrets import redact
from rcray.store import Store
from rcray.sweep.grid import Cell

log = logging.getLogger(__name__)


class DeliveryBusyError(RcrayError):
    """Another process is delivering the same experiment."""


@dataclass
class Server:
    """One tracker's ids."""

    experiment: str = ""
    parent: str = ""
    runs: dict[str, str] = field(default_factory=dict)


class Book:
    """One experiment's book. Whoever delivers holds it; anybody may read it and enter cells meanwhile."""

    def __init__(self, store: Store, name: str):
        self.store = store
        self.name = name
        self.path = store.experiment(name) / "tracking.json"
        self.me = f"{os.getpid()}-{secrets.token_hex(4)}"

    def _read(self) -> dict[str, Any]:
        return recover_json(self.path, {}, "the cells are entered again, their ids asked of the tracker")

    @contextlib.contextmanager
    def _edit(self) -> Iterator[dict[str, Any]]:
        """The content, to be changed; a lock of its own, held for no longer than that takes."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self.path.with_name(".tracking-file.lock")):
            content = self._read()
            before = copy.deepcopy(content)
            yield content
            if content != before:
                write_json(self.path, content)

    @contextlib.contextmanager
    def held(self, patience: float) -> Iterator[bool]:
        """The right to deliver; yields whether this process had it last, and so may trust its memory."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.path.with_name(".delivery.lock"))
        try:
            lock.acquire(timeout=patience)
        except Timeout:
            raise DeliveryBusyError(f"{self.name}: another process is delivering it", fix="wait for it") from None
        try:
            with self._edit() as content:
                mine = content.get("holder") == self.me
                content["holder"] = self.me
            yield mine
        finally:
            lock.release()

    def enter(self, cells: Sequence[Cell], title: str, uri: str | None) -> None:
        """Notes what is to be delivered, and where to (None: as before); called before anything is trained."""
        with self._edit() as content:
            known = {entry["run_id"]: entry for entry in content.get("cells", [])}
            for cell in cells:
                known[cell.run_id] = cell.content()
            content |= {"title": title, "cells": list(known.values())}
            if uri is not None:
                content["uri"] = redact(uri)

    @property
    def title(self) -> str:
        """The experiment's title."""
        return str(self._read().get("title", ""))

    @property
    def uri(self) -> str:
        """Where it was last tracked to, without secrets."""
        return str(self._read().get("uri", ""))

    def cells(self) -> list[Cell]:
        """Every cell that was ever entered, as far as this version understands its settings."""
        cells = []
        for entry in self._read().get("cells", []):
            try:
                cells.append(Cell.from_content(entry))
            except ValueError:
                log.warning("%s: run %s was tracked by another version; left alone", self.name, entry["run_id"])
        return cells

    def server(self, uri: str) -> Server:
        """The ids at a tracker; empty ones for a tracker that never saw the experiment."""
        return Server(**self._read().get("servers", {}).get(redact(uri), {}))

    def save_server(self, uri: str, server: Server) -> None:
        """Keeps the ids."""
        with self._edit() as content:
            content.setdefault("servers", {})[redact(uri)] = copy.deepcopy(vars(server))


def books(store: Store) -> list[Book]:
    """The books of every tracked experiment of a store."""
    paths = sorted((store.root / "experiments").glob("*/tracking.json"))
    return [book for path in paths if (book := Book(store, path.parent.name))._read().get("cells")]


def store_id(store: Store) -> str:
    """Tells this store's runs from another's on a shared server; made once."""
    path: Path = store.root / "store-id"
    with FileLock(store.root / ".store-id.lock"):
        if not path.exists():
            write_atomic(path, secrets.token_hex(8) + "\n")
    return path.read_text().strip()
