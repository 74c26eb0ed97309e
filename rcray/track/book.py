"""The delivery book of an experiment: which tracker knows it, by which ids, and what there is to deliver.

experiments/NAME/tracking.jsonl: one fact per line, later ones win, and lines are only ever added.
  {"holder": ...}                the process that delivered last: another one must ask the tracker how far that got
  {"title": ...}, {"uri": ...}   the experiment's title; where it was last tracked to, without secrets
  {"cell": {...}}                a cell with its settings, so that `rcray sync` needs no experiment file
  {"server": URI, "experiment": ..., "parent": ...}   a tracker's ids of the experiment and of its sweep's own run
  {"server": URI, "run": RUN_ID, "id": ...}           a tracker's id of a run
"""

import contextlib
import json
import logging
import os
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from rcray.errors import RcrayError
from rcray.files import set_aside, write_atomic
from rcray.secrets import redact
from rcray.store import Store
from rcray.sweep.grid import Cell

log = logging.getLogger(__name__)

_BOOK = "tracking.jsonl"
_LOSS = "the cells are entered again, their ids asked of the tracker"


class DeliveryBusyError(RcrayError):
    """Another process is delivering the same experiment."""


@dataclass
class Server:
    """One tracker's ids."""

    experiment: str = ""
    parent: str = ""
    runs: dict[str, str] = field(default_factory=dict)


@dataclass
class _Content:
    """What the lines of a book come to."""

    facts: dict[str, str] = field(default_factory=dict)  # holder, title, uri
    cells: dict[str, dict[str, Any]] = field(default_factory=dict)
    servers: dict[str, Server] = field(default_factory=dict)

    def apply(self, line: dict[str, Any]) -> None:
        if "cell" in line:
            self.cells[Cell.key_of(line["cell"])] = line["cell"]
        elif "run" in line:
            self.servers.setdefault(line["server"], Server()).runs[line["run"]] = line["id"]
        elif "server" in line:
            before = self.servers.get(line["server"])
            same = before is not None and before.experiment == line["experiment"]
            runs = before.runs if before and same else {}  # another database at the same address knows none of them
            self.servers[line["server"]] = Server(line["experiment"], line["parent"], runs)
        else:
            self.facts.update(line)


class Book:
    """One experiment's book. Whoever delivers holds it; anybody may read it and enter cells meanwhile."""

    def __init__(self, store: Store, name: str):
        self.store = store
        self.name = name
        self.path = store.experiment(name) / _BOOK
        self.me = f"{os.getpid()}-{secrets.token_hex(4)}"
        self._content = _Content()
        self._read_of: tuple[int, int] = (0, 0)  # inode and bytes that the content comes from

    # -- the file

    def _read(self) -> _Content:
        """The content, by what was added since it was read last."""
        try:
            with self.path.open("rb") as file:
                status = os.fstat(file.fileno())
                inode, size = self._read_of
                if status.st_ino != inode or status.st_size < size:
                    self._content, size = _Content(), 0
                file.seek(size)
                whole, newline, unfinished = file.read().rpartition(b"\n")
        except FileNotFoundError:
            self._content, self._read_of = _Content(), (0, 0)
            return self._content
        try:
            for line in whole.splitlines():
                self._content.apply(json.loads(line))
            if not unfinished.startswith(b"{"[: len(unfinished)]):  # else somebody is writing it, or was killed then
                raise ValueError("something that is no line of it")
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            aside = set_aside(self.path, status.st_ino)
            kept = f", kept as {aside.name}" if aside else ""
            log.warning("%s is damaged (%s)%s; %s", self.path, " ".join(str(error).split()), kept, _LOSS)
            self._content, self._read_of = _Content(), (0, 0)
            return self._content
        self._read_of = (status.st_ino, size + len(whole) + len(newline))
        return self._content

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """A lock of its own for writers, held for no longer than a line takes."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self.path.with_name(".tracking-file.lock")):
            yield

    def _add(self, lines: Sequence[dict[str, Any]], *, forced: bool = True) -> None:
        """Adds facts; half a line that a killed process left is cut off first.

        `forced`: onto the disk. What the tracker can be asked for again need not outlive a machine that loses power,
        and forcing it, run by run, would take longer than delivering it.
        """
        if not lines:
            return
        with self._locked():
            self._read()
            with self.path.open("ab") as file:
                file.truncate(self._read_of[1])
                file.write(_rendered(lines))
                file.flush()
                if forced:
                    os.fsync(file.fileno())

    # -- what it holds

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
            mine = self._read().facts.get("holder") == self.me
            if not mine:
                self._add([{"holder": self.me}])
            yield mine
        finally:
            lock.release()

    def enter(self, cells: Sequence[Cell], title: str, uri: str | None) -> None:
        """Notes what is to be delivered, and where to (None: as before); called before anything is trained."""
        known = self._read()
        said = {"title": title} | ({} if uri is None else {"uri": redact(uri)})
        lines: list[dict[str, Any]] = [{key: value} for key, value in said.items() if known.facts.get(key) != value]
        contents = (json.loads(json.dumps(cell.content())) for cell in cells)  # as it will be read: tuples are lists
        self._add(lines + [{"cell": each} for each in contents if known.cells.get(Cell.key_of(each)) != each])

    @property
    def title(self) -> str:
        """The experiment's title."""
        return self._read().facts.get("title", "")

    @property
    def uri(self) -> str:
        """Where it was last tracked to, without secrets."""
        return self._read().facts.get("uri", "")

    @property
    def is_empty(self) -> bool:
        """Whether no cell was ever entered."""
        return not self._read().cells

    def cells(self) -> list[Cell]:
        """Every cell that was ever entered, as far as this version understands its settings."""
        cells = []
        for key, entry in self._read().cells.items():
            try:
                cells.append(Cell.from_content(entry))
            except ValueError:
                log.warning("%s: run %s was tracked by another version; left alone", self.name, key)
        return cells

    def server(self, uri: str) -> Server:
        """The ids at a tracker; empty ones for a tracker that never saw the experiment."""
        known = self._read().servers.get(redact(uri), Server())
        return Server(known.experiment, known.parent, dict(known.runs))

    def save_server(self, uri: str, experiment: str, parent: str) -> None:
        """Keeps a tracker's ids of the experiment and of its sweep's own run."""
        known = self._read().servers.get(redact(uri))
        if known is None or (known.experiment, known.parent) != (experiment, parent):
            self._add([{"server": redact(uri), "experiment": experiment, "parent": parent}])

    def save_run(self, uri: str, run_id: str, key: str) -> None:
        """Keeps a tracker's id of a run."""
        self._add([{"server": redact(uri), "run": run_id, "id": key}], forced=False)


def _rendered(lines: Sequence[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()


def books(store: Store) -> list[Book]:
    """The books of every tracked experiment of a store."""
    paths = sorted((store.root / "experiments").glob(f"*/{_BOOK}"))
    return [book for path in paths if not (book := Book(store, path.parent.name)).is_empty]


def store_id(store: Store) -> str:
    """Tells this store's runs from another's on a shared server; made once."""
    path: Path = store.root / "store-id"
    with FileLock(store.root / ".store-id.lock"):
        if not path.exists():
            write_atomic(path, secrets.token_hex(8) + "\n")
    return path.read_text().strip()
