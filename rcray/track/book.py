"""The delivery book of an experiment: which tracker knows it, by which ids, and what there is to deliver.

experiments/NAME/tracking.json
  holder    the process that delivered last: another one must ask the tracker how far that got
  cells     every cell ever tracked, with its settings, so that `rcray sync` needs no experiment file
  servers   per tracking URI: experiment id, parent run, run_id -> MLflow run id
"""

import contextlib
import os
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from rcray.config import RunConfig
from rcray.errors import RcrayError
from rcray.secrets import redact
from rcray.store import Store, read_json, write_atomic, write_json
from rcray.sweep.grid import Cell


class DeliveryBusyError(RcrayError):
    """Another process is delivering the same experiment."""


@dataclass
class Server:
    """One tracker's ids."""

    experiment: str = ""
    parent: str = ""
    runs: dict[str, str] = field(default_factory=dict)


class Book:
    """Reads and writes one experiment's book, under a lock."""

    def __init__(self, store: Store, name: str):
        self.store = store
        self.name = name
        self.path = store.experiment(name) / "tracking.json"
        self.me = f"{os.getpid()}-{secrets.token_hex(4)}"

    def _read(self) -> dict[str, Any]:
        return read_json(self.path, default={})

    @contextlib.contextmanager
    def held(self, patience: float) -> Iterator[bool]:
        """Holds the book; yields whether this process was the last to hold it, and so may trust its memory."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.path.with_name(".tracking.lock"))
        try:
            lock.acquire(timeout=patience)
        except Timeout:
            raise DeliveryBusyError(f"{self.name}: another process is delivering it", fix="wait for it") from None
        try:
            content = self._read()
            mine = content.get("holder") == self.me
            if not mine:
                write_json(self.path, {**content, "holder": self.me})
            yield mine
        finally:
            lock.release()

    def enter(self, cells: Sequence[Cell], title: str, uri: str | None) -> None:
        """Notes what is to be delivered, and where to (None: as before); called before anything is trained."""
        with self.held(patience=30):
            content = self._read()
            known = {entry["run_id"]: entry for entry in content.get("cells", [])}
            for cell in cells:
                config = cell.config.model_dump(mode="json")
                known[cell.run_id] = {"run_id": cell.run_id, "varied": list(cell.varied), "config": config}
            where = content.get("uri", "") if uri is None else redact(uri)
            write_json(self.path, {**content, "title": title, "uri": where, "cells": list(known.values())})

    @property
    def title(self) -> str:
        """The experiment's title."""
        return str(self._read().get("title", ""))

    @property
    def uri(self) -> str:
        """Where it was last tracked to, without secrets."""
        return str(self._read().get("uri", ""))

    def cells(self) -> list[Cell]:
        """Every cell that was ever entered."""
        return [
            Cell(
                entry["run_id"],
                RunConfig.model_validate(entry["config"]),
                tuple((path, value) for path, value in entry["varied"]),
            )
            for entry in self._read().get("cells", [])
        ]

    def server(self, uri: str) -> Server:
        """The ids at a tracker; empty ones for a tracker that never saw the experiment."""
        return Server(**self._read().get("servers", {}).get(redact(uri), {}))

    def save_server(self, uri: str, server: Server) -> None:
        """Keeps the ids."""
        content = self._read()
        servers = {**content.get("servers", {}), redact(uri): vars(server)}
        write_json(self.path, {**content, "servers": servers})


def books(store: Store) -> list[Book]:
    """The books of every tracked experiment of a store."""
    found = sorted((store.root / "experiments").glob("*/tracking.json"))
    return [Book(store, path.parent.name) for path in found if read_json(path, default={}).get("cells")]


def store_id(store: Store) -> str:
    """Tells this store's runs from another's on a shared server; made once."""
    path: Path = store.root / "store-id"
    with FileLock(store.root / ".store-id.lock"):
        if not path.exists():
            write_atomic(path, secrets.token_hex(8) + "\n")
    return path.read_text().strip()
