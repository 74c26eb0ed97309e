"""A copy of each run on remote storage, for clusters whose nodes share no disk: any URI Ray's storage takes.

    s3://bucket/prefix, gs://..., file:///mnt/...      URI/runs/RUN_ID/ holds what STORE/runs/RUN_ID/ holds

A worker copies its run there at every checkpoint, files first and `status.json` last; a worker on another node, after
a lost spot instance, fetches it before it starts. Only what is new or has another size is copied: checkpoints and
record parts are never changed once they are there.
"""

import json
import logging
from pathlib import Path

import pyarrow.fs as pafs
from filelock import FileLock

from rcray.errors import StoreError
from rcray.files import write_atomic
from rcray.records.status import parse_status
from rcray.store import RunDir

log = logging.getLogger(__name__)

#: Always copied: the only files that change in place.
_CHANGING = ("status.json", "evaluation.json", "config.yaml")


class Mirror:
    """One run's directory on remote storage."""

    def __init__(self, uri: str, run: RunDir):
        try:
            self.filesystem, root = pafs.FileSystem.from_uri(uri)
        except (ValueError, OSError) as error:
            raise StoreError(
                f"execution.storage: {uri!r} cannot be used: {error}", fix="give a URI such as s3://bucket/prefix"
            ) from None
        self.run, self.root = run, f"{root.rstrip('/')}/runs/{run.run_id}"

    def push(self) -> None:
        """Makes the remote copy like the local directory; what was removed here is removed there."""
        local = {path.relative_to(self.run.path).as_posix(): path for path in self.run.path.rglob("*") if _kept(path)}
        remote = self._remote()
        for name, path in sorted(local.items(), key=lambda item: item[0] in _CHANGING):
            if name in _CHANGING or remote.get(name) != path.stat().st_size:
                self._send(path, name)
        for name in remote.keys() - local.keys():
            self.filesystem.delete_file(f"{self.root}/{name}")

    def pull(self) -> bool:
        """Fetches the run if the copy is further than what lies here; says whether it did."""
        self.run.path.mkdir(parents=True, exist_ok=True)
        with FileLock(self.run.path / ".mirror.lock"):  # several workers of one node
            remote = self._remote()
            if "status.json" not in remote or not self._is_ahead():
                return False
            for name in sorted(remote, key=lambda name: name in _CHANGING):
                target = self.run.path / name
                if name in _CHANGING or not target.exists() or target.stat().st_size != remote[name]:
                    with self.filesystem.open_input_stream(f"{self.root}/{name}") as stream:
                        write_atomic(target, stream.read())
            for path in [path for path in self.run.path.rglob("*") if _kept(path)]:
                if path.relative_to(self.run.path).as_posix() not in remote:
                    path.unlink()
        log.info("run %s: fetched from %s", self.run.run_id, self.root)
        return True

    def _is_ahead(self) -> bool:
        with self.filesystem.open_input_stream(f"{self.root}/status.json") as stream:
            there = parse_status(json.loads(stream.read()))
        return there.updated > self.run.read_status().updated

    def _remote(self) -> dict[str, int]:
        selector = pafs.FileSelector(self.root, recursive=True, allow_not_found=True)
        found = self.filesystem.get_file_info(selector)
        return {info.path.split(self.root, 1)[1].lstrip("/"): info.size for info in found if info.is_file}

    def _send(self, path: Path, name: str) -> None:
        target = f"{self.root}/{name}"
        self.filesystem.create_dir(target.rpartition("/")[0], recursive=True)
        with path.open("rb") as source, self.filesystem.open_output_stream(target) as sink:
            while block := source.read(2**22):
                sink.write(block)


def _kept(path: Path) -> bool:
    """Files of the run itself, not locks or what is being written."""
    return path.is_file() and not any(part.startswith(".") for part in path.parts[-3:])
