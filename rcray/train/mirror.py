"""A copy of each run on remote storage, for clusters whose nodes share no disk: any URI Ray's storage takes.

    s3://bucket/prefix, gs://..., file:///mnt/...      URI/runs/RUN_ID/ holds what STORE/runs/RUN_ID/ holds
                                                       URI/cache/reference/ the reference likelihoods, by content

A worker copies its run there at every checkpoint, files first and `status.json` last; a worker on another node, after
a lost spot instance, fetches it before it starts; and the sweep's own process fetches all of them but for checkpoints,
to show and report them. Only what is new or differs is copied: checkpoints and record parts are never changed once they
are there; models (`best/` is written anew, in the same size) and other files are told apart by the hashes that lie
beside them.
"""

import hashlib
import json
import logging
import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, lru_cache
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
_HASHES = ".hashes.json"  # there only: of each file that may be written anew, by its name
_NEVER_CHANGED = ("checkpoints/", "dynamics/")
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
            known = self._hashes(remote)
            hashes = {name: _hash(path) for name, path in local.items() if _may_change(name)}
            for name in sorted(local.keys() - set(_CHANGING)):
                size = local[name].stat().st_size
                if name not in remote or remote[name].size != size or known.get(name) != hashes.get(name):
                    self._send(local[name], f"{self.root}/{name}")
            if hashes != known:
                self._write(f"{self.root}/{_HASHES}", lambda sink: sink.write(json.dumps(hashes).encode()))
            for name in sorted(local.keys() & set(_CHANGING), key=_order):
                self._send(local[name], f"{self.root}/{name}")
            for name in remote.keys() - local.keys() - {_HASHES}:
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

    def pull(self, *, checkpoints: bool = True) -> bool:
        """Fetches the run if the copy is further than what lies here; says whether it did.

        A copy of the same checkpoint may still know more: what was measured after training. Who only looks on does
        without `checkpoints`; they are fetched when the run is to go on here.
        """
        self.run.path.mkdir(parents=True, exist_ok=True)
        with FileLock(self.run.path / ".mirror.lock"), self._explained():  # several workers of one node
            remote = self._listed(self.root)
            if _STATUS not in remote:
                return False
            with self.filesystem.open_input_stream(f"{self.root}/{_STATUS}") as stream:
                there = parse_status(stream.read()).updated
            here = self.run.recover_status().updated
            if there < here:
                return False
            known = self._hashes(remote) if there > here else {}
            wanted = [name for name in sorted(remote, key=_order) if name != _HASHES]
            if not checkpoints:
                wanted = [name for name in wanted if not name.startswith("checkpoints/")]
            fetched = [name for name in wanted if self._is_newer(name, remote[name], there > here, known.get(name))]
            for name in fetched:
                self._fetch(remote[name], self.run.path / name)
            if there > here:
                for path in [path for path in self.run.path.rglob("*") if _kept(path)]:
                    if path.relative_to(self.run.path).as_posix() not in remote:
                        path.unlink()
        if fetched:
            log.info("run %s: fetched from %s", self.run.run_id, self.root)
        return bool(fetched)

    def _is_newer(self, name: str, info: Any, ahead: bool, known: str | None) -> bool:
        """Whether a remote file is to be fetched; `ahead`: the copy is of a later checkpoint than what lies here."""
        target = self.run.path / name
        if not target.exists():
            return True
        if name in _CHANGING and name != _STATUS and info.mtime.timestamp() > target.stat().st_mtime:
            return True
        if not ahead:
            return False
        return name == _STATUS or info.size != target.stat().st_size or (known is not None and known != _hash(target))

    def _hashes(self, remote: dict[str, Any]) -> dict[str, str]:
        """As they were written beside the files; none by an older version, or where they were torn."""
        if _HASHES not in remote:
            return {}
        with self.filesystem.open_input_stream(f"{self.root}/{_HASHES}") as stream:
            try:
                hashes: dict[str, str] = json.loads(stream.read())
            except ValueError:
                return {}
        return hashes

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


def _may_change(name: str) -> bool:
    return name not in _CHANGING and not name.startswith(_NEVER_CHANGED)


def _hash(path: Path) -> str:
    """Of a file's content; taken once for as long as the file stays as it is."""
    stat = path.stat()
    return _hashed(path, stat.st_mtime_ns, stat.st_size, stat.st_ino)


@lru_cache(4096)
def _hashed(path: Path, *_version: int) -> str:
    with path.open("rb") as source:
        return hashlib.file_digest(source, "blake2b").hexdigest()[:32]


def _order(name: str) -> int:
    return _CHANGING.index(name) + 1 if name in _CHANGING else 0


def _kept(path: Path) -> bool:
    """Files of the run itself, and how far it is; not locks or what is being written."""
    return path.is_file() and (path.name == PROGRESS or not any(part.startswith(".") for part in path.parts[-3:]))
