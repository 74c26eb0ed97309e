"""A copy of each run on remote storage, for clusters whose nodes share no disk: any URI Ray's storage takes.

    s3://bucket/prefix, gs://..., file:///mnt/...      URI/runs/RUN_ID/ holds what STORE/runs/RUN_ID/ holds
                                                       URI/cache/reference/ the reference likelihoods, by content

A worker copies its run there at every checkpoint, files first and `status.json` last; a worker on another node, after
a lost spot instance, fetches it before it starts; and the sweep's own process fetches all of them, to show and report
them. Only what is new or has another size is copied: checkpoints and record parts are never changed once they are
there.
"""

import logging
import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from filelock import FileLock

from rcray.config import RunConfig
from rcray.errors import StorageUnavailableError
from rcray.extras import explained_imports
from rcray.files import write_atomic
from rcray.records.progress import FILE as PROGRESS
from rcray.records.status import parse_status
from rcray.store import RunDir, Store

with explained_imports():
    import pyarrow.fs as pafs

log = logging.getLogger(__name__)

#: The only files that change in place; the status vouches for the others.
_STATUS = "status.json"
_CHANGING = (PROGRESS, "config.yaml", "evaluation.json", _STATUS)
_BLOCK = 2**22
_FIX = "give a URI such as s3://bucket/prefix, and every node the right to read and write there"


class Mirror:
    """One run's directory on remote storage."""

    def __init__(self, uri: str, run: RunDir):
        self.uri, self.run = uri, run
        with self._explained():
            self.filesystem, place = _open(uri)
        self.root = f"{place}/runs/{run.run_id}"
        self.shared = f"{place}/cache/reference"
        self.cache = Store(run.path.parents[1]).cache / "reference"

    @classmethod
    def of(cls, config: RunConfig, run: RunDir) -> "Mirror | None":
        """The copy that a run's settings ask for; None: no copy is kept."""
        return cls(config.execution.storage, run) if config.execution.storage else None

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            reason = " ".join(str(error).split())[:300]
            raise StorageUnavailableError(
                f"execution.storage: {self.uri!r} cannot be used: {reason}", fix=_FIX
            ) from None

    def probe(self) -> None:
        """Proves that this machine can write, read and delete there."""
        name, content = f"{self.root}/.probe-{uuid.uuid4().hex}", b"rcray"
        with self._explained():
            self._write(name, lambda sink: sink.write(content))
            with self.filesystem.open_input_stream(name) as stream:
                if stream.read() != content:
                    raise OSError("what was written there is not what is read")
            self.filesystem.delete_file(name)

    def push(self) -> None:
        """Makes the remote copy like the local directory; what was removed here is removed there."""
        local = {path.relative_to(self.run.path).as_posix(): path for path in self.run.path.rglob("*") if _kept(path)}
        with self._explained():
            remote = self._listed(self.root)
            for name in sorted(local, key=_order):
                if name in _CHANGING or name not in remote or remote[name].size != local[name].stat().st_size:
                    self._send(local[name], f"{self.root}/{name}")
            for name in remote.keys() - local.keys():
                self.filesystem.delete_file(f"{self.root}/{name}")

    def push_caches(self) -> None:
        """Copies the reference likelihoods computed here, for every other node."""
        with self._explained():
            known = self._listed(self.shared)
            for path in self.cache.glob("*.parquet"):
                if path.name not in known:
                    self._send(path, f"{self.shared}/{path.name}")

    def pull_caches(self) -> None:
        """Fetches the reference likelihoods that other nodes computed."""
        with self._explained():
            for name, info in self._listed(self.shared).items():
                if not (self.cache / name).exists():
                    self._fetch(info, self.cache / name)

    def pull(self) -> bool:
        """Fetches the run if the copy is further than what lies here; says whether it did.

        A copy of the same checkpoint may still know more: what was measured after training.
        """
        self.run.path.mkdir(parents=True, exist_ok=True)
        with FileLock(self.run.path / ".mirror.lock"), self._explained():  # several workers of one node
            remote = self._listed(self.root)
            if _STATUS not in remote:
                return False
            with self.filesystem.open_input_stream(f"{self.root}/{_STATUS}") as stream:
                there = parse_status(stream.read()).updated
            here = self.run.read_status().updated
            if there < here:
                return False
            fetched = [name for name in sorted(remote, key=_order) if self._is_newer(name, remote[name], there > here)]
            for name in fetched:
                self._fetch(remote[name], self.run.path / name)
            if there > here:
                for path in [path for path in self.run.path.rglob("*") if _kept(path)]:
                    if path.relative_to(self.run.path).as_posix() not in remote:
                        path.unlink()
        if fetched:
            log.info("run %s: fetched from %s", self.run.run_id, self.root)
        return bool(fetched)

    def _is_newer(self, name: str, info: Any, ahead: bool) -> bool:
        """Whether a remote file is to be fetched; `ahead`: the copy is of a later checkpoint than what lies here."""
        target = self.run.path / name
        if not target.exists():
            return True
        if name in _CHANGING and name != _STATUS and info.mtime.timestamp() > target.stat().st_mtime:
            return True
        return ahead and (name == _STATUS or info.size != target.stat().st_size)

    def _listed(self, root: str) -> dict[str, Any]:
        """The files below a place, by their path there."""
        selector = pafs.FileSelector(root, recursive=True, allow_not_found=True)
        infos = self.filesystem.get_file_info(selector)
        return {info.path.split(root, 1)[1].lstrip("/"): info for info in infos if info.is_file}

    def _fetch(self, info: Any, target: Path) -> None:
        with self.filesystem.open_input_stream(info.path) as stream:
            write_atomic(target, iter(lambda: stream.read(_BLOCK), b""))
        os.utime(target, (time.time(), info.mtime.timestamp()))  # of that clock: what is newer there is told by it

    def _send(self, path: Path, target: str) -> None:
        with path.open("rb") as source:
            self._write(target, lambda sink: [sink.write(block) for block in iter(lambda: source.read(_BLOCK), b"")])

    def _write(self, target: str, fill: Callable[[Any], Any]) -> None:
        if self.filesystem.type_name == "local":  # an object store has no directories, and may not let us make any
            self.filesystem.create_dir(target.rpartition("/")[0], recursive=True)
        with self.filesystem.open_output_stream(target) as sink:
            fill(sink)


@contextmanager
def pushed(mirror: Mirror | None) -> Iterator[None]:
    """What is done to a run in here is on remote storage afterwards, however it ends; None: there is none."""
    try:
        yield
    finally:
        if mirror is not None:
            mirror.push()


@cache
def _open(uri: str) -> tuple[pafs.FileSystem, str]:
    """The file system of a URI, opened once, and the place on it."""
    filesystem, place = pafs.FileSystem.from_uri(uri)
    return filesystem, place.rstrip("/")


def _order(name: str) -> int:
    return _CHANGING.index(name) + 1 if name in _CHANGING else 0


def _kept(path: Path) -> bool:
    """Files of the run itself, and how far it is; not locks or what is being written."""
    return path.is_file() and (path.name == PROGRESS or not any(part.startswith(".") for part in path.parts[-3:]))
