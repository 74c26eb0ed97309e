"""Where things lie on disk: one class that knows every path under a store.

STORE/
  runs/RUN_ID/            one run, shared by every experiment that contains it
    config.yaml           the resolved configuration
    status.json           running, ok, failed, oom or degenerate; progress; error
    dynamics/*.parquet    one row per optimizer step
    checkpoints/          resumable state
    final/                the trained model and its tokenizer
    best/                 the model that ranked the probe pairs best, where asked for
    evaluation.json       metric rows
    adjusted.json         what was changed so that it could run at all; absent in most runs
    environment.json      versions, packages and git state it was started with, if it was tracked
  cache/                  tiny models, reference likelihoods: by content, shared by every run
  experiments/NAME/       ledger.json, tracking.json, courier.log, tables/, figures/, report.html
  mlflow.db, mlartifacts/ the default tracking store
  store-id                tells this store's runs from another's on a shared tracking server
"""

import contextlib
import errno
import hashlib
import json
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rcray.errors import RcrayError, StoreError

log = logging.getLogger(__name__)

DEFAULT_STORE = Path("rcray-store")
SEAL = "rcray-seal.json"  # in directories that are built here: size and hash of every file

_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def is_plain_name(name: str) -> bool:
    """Whether a name stays in its directory: no slash, no dots in front, nothing a shell or a path would read."""
    return _PLAIN_NAME.fullmatch(name) is not None


def plain_name(name: object, what: str) -> str:
    """The name, if it is one. Ledgers and servers carry names, too, and they are not ours."""
    if not isinstance(name, str) or not is_plain_name(name):
        raise StoreError(f"{what} {str(name)[:80]!r}: not a name of a directory", fix="letters, digits, . _ - only")
    return name


@dataclass(frozen=True)
class RunDir:
    """The files of one run."""

    path: Path

    @property
    def run_id(self) -> str:
        """The directory is named by the run's identity."""
        return self.path.name

    @property
    def config(self) -> Path:
        """The resolved configuration."""
        return self.path / "config.yaml"

    @property
    def status(self) -> Path:
        """Progress and outcome."""
        return self.path / "status.json"

    @property
    def dynamics(self) -> Path:
        """Step records, in parts."""
        return self.path / "dynamics"

    @property
    def checkpoints(self) -> Path:
        """Resumable state."""
        return self.path / "checkpoints"

    @property
    def final(self) -> Path:
        """The trained model."""
        return self.path / "final"

    @property
    def best(self) -> Path:
        """The model that ranked the probe pairs best, where it was to be kept."""
        return self.path / "best"

    @property
    def profile(self) -> Path:
        """Where a step's time went, where asked for."""
        return self.path / "profile"

    @property
    def evaluation(self) -> Path:
        """Metric rows."""
        return self.path / "evaluation.json"

    @property
    def adjusted(self) -> Path:
        """What was changed so that the run could be carried out."""
        return self.path / "adjusted.json"

    def read_status(self) -> dict[str, Any]:
        """The status, or an empty dict for a run that never started; one that is damaged is made again by the run."""
        return recover_json(self.status, {}, "the run goes on from its newest checkpoint, or from the start")

    def read_adjusted(self) -> dict[str, Any]:
        """What was changed; empty for most runs. Nothing else tells it, so a damaged one is not passed over."""
        return read_json(
            self.adjusted, default={}, fix=f"put the file back, or remove {self.path}: the run is done again"
        )


@dataclass(frozen=True)
class Store:
    """A directory of runs, caches and experiments. The path is absolute: workers have other directories."""

    root: Path

    @classmethod
    def at(cls, path: Path | str) -> "Store":
        """The store of a path, as it is or is not."""
        return cls(Path(path).expanduser().resolve())

    @classmethod
    def open(cls, path: Path | str) -> "Store":
        """Makes the directory and proves that it can be written."""
        root = cls.at(path).root
        try:
            root.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=root, prefix=".writable-"):
                pass
        except OSError as error:
            raise StoreError(
                f"store {root}: cannot be written: {error.strerror or error}", fix=_fix_of(error)
            ) from None
        return cls(root)

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """What ends in here because the store takes no more is said as that, whatever was being written."""
        try:
            yield
        except Exception as error:
            if isinstance(error, RcrayError) or not (reason := storage_fault(error)):
                raise
            raise self.refusal(reason) from None

    def refusal(self, reason: str) -> StoreError:
        """The store takes no more."""
        return StoreError(f"store {self.root}: {reason}", fix=FULL_FIX if reason in FULL else WRITABLE_FIX)

    def run(self, run_id: str) -> RunDir:
        """The directory of one run."""
        return RunDir(self.root / "runs" / plain_name(run_id, "run"))

    @property
    def cache(self) -> Path:
        """Content-keyed files shared by every run."""
        return self.root / "cache"

    def experiment(self, name: str) -> Path:
        """The directory of one experiment's ledger and report."""
        return self.root / "experiments" / plain_name(name, "experiment")

    @property
    def default_tracking_uri(self) -> str:
        """An absolute SQLite URI: no server needed."""
        return f"sqlite:///{self.root / 'mlflow.db'}"


def write_atomic(path: Path, content: str | bytes) -> None:
    """Writes a whole file or nothing: a reader never sees half of it, a kill never leaves half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def publish_directory(target: Path, build: Callable[[Path], None]) -> None:
    """Fills a directory beside its place and moves it there, whole or not at all; an old one is moved aside first."""
    temporary = Path(tempfile.mkdtemp(dir=target.parent, prefix=".building-"))
    try:
        build(temporary)
        os.chmod(temporary, 0o755)  # mkdtemp's is private, and a store is shared
        if target.exists():  # whoever has it open or mapped keeps the old files
            aside = Path(tempfile.mkdtemp(dir=target.parent, prefix=".old-"))
            os.replace(target, aside / target.name)
            shutil.rmtree(aside, ignore_errors=True)
        os.replace(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def measured(path: Path) -> dict[str, Any]:
    """Size and SHA-256 of a file, as manifests name them."""
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def seal(directory: Path) -> None:
    """Writes down what a built directory holds, so that damage shows."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    write_json(directory / SEAL, {str(path.relative_to(directory)): measured(path) for path in files})


def broken_seal(directory: Path) -> str:
    """What is damaged in a sealed directory; empty where all is sound, or where nobody sealed it."""
    if not (directory / SEAL).exists():
        return ""
    try:
        for name, expected in dict(read_json(directory / SEAL)).items():
            if not (directory / name).is_file() or measured(directory / name) != expected:
                return f"{name} has changed"
    except (StoreError, TypeError, ValueError, OSError):
        return f"{SEAL} cannot be read"
    return ""


def write_json(path: Path, content: Any) -> None:
    """Writes JSON atomically."""
    write_atomic(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path, default: Any = None, fix: str = "delete the file; it is written again") -> Any:
    """Reads JSON; `default` where there is no file, an error that names the file where it is damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return default
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise StoreError(f"{path}: damaged JSON: {error}", fix=fix) from None
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror or error}", fix="give another --store") from None


def recover_json(path: Path, default: Any, then: str) -> Any:
    """Reads JSON that can be made again from what else lies in the store.

    A damaged file is set aside under another name, which is said once, and `default` stands for it from then on.

    Args:
        path: the file.
        default: where there is none; its type is the type that is expected.
        then: what is done about the loss, for the warning.
    """
    inode = path.stat().st_ino if path.is_file() else None
    try:
        found = read_json(path, default)
    except StoreError as error:
        if not isinstance(error.__context__, ValueError):  # it cannot be read, which is not damage
            raise
        problem = " ".join(str(error.__context__).split())
    else:
        kind = type(default)
        if isinstance(found, kind):
            return found
        problem = f"a {type(found).__name__}, not a {kind.__name__}"
    aside = set_aside(path, inode)
    log.warning("%s is damaged (%s)%s; %s", path, problem, f", kept as {aside.name}" if aside else "", then)
    return default


def set_aside(path: Path, inode: int | None = None) -> Path | None:
    """Renames a damaged file to NAME.damaged-N; None where it cannot be, or is another file by now."""
    number = 1
    while (aside := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    try:
        if inode is not None and path.stat().st_ino != inode:  # written again by somebody else since
            return None
        os.replace(path, aside)
    except OSError:
        return None
    return aside


FULL = ("No space left on device", "Disk quota exceeded")
FULL_FIX = "free space there; the same command continues"
WRITABLE_FIX = "make it writable, or give another --store"
_STORAGE_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
#: Libraries that write by themselves say it in words of their own.
_STORAGE_WORDS = {
    "No space left on device": FULL[0],
    "StorageFull": FULL[0],
    "PytorchStreamWriter failed writing": FULL[0],
    ". unexpected pos ": FULL[0],  # torch.save: the file did not grow by what was written
    "database or disk is full": FULL[0],
    "Disk quota exceeded": FULL[1],
    "Read-only file system": "Read-only file system",
}


def storage_fault(error: BaseException) -> str:
    """Why the disk took no more, if that is what ended something; empty for any other error."""
    link: BaseException | None = error
    seen: set[int] = set()
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        if isinstance(link, OSError) and link.errno in _STORAGE_ERRNOS:
            return os.strerror(link.errno)
        text = str(link)
        for word, reason in _STORAGE_WORDS.items():
            if word in text:
                return reason
        link = link.__cause__ or link.__context__
    return ""


def _fix_of(error: OSError) -> str:
    return FULL_FIX if error.errno in (errno.ENOSPC, errno.EDQUOT) else WRITABLE_FIX
