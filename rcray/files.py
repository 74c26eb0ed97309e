"""Files written whole or not at all, directories with seals, JSON that survives damage, and disks that take no more."""

import errno
import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock

from rcray.errors import StoreError

log = logging.getLogger(__name__)

SEAL = "rcray-seal.json"  # in directories that are built here: size and hash of every file


def write_atomic(path: Path, content: str | bytes | Iterator[bytes]) -> None:
    """Writes a whole file or nothing: a reader never sees half of it, a kill never leaves half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = content.encode() if isinstance(content, str) else content
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines([whole] if isinstance(whole, bytes) else whole)
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


def build_once(target: Path, build: Callable[[Path], None]) -> Path:
    """A cached directory; built on first use, by one process."""
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{target}.lock"):
            if not target.is_dir():
                log.info("building %s (once; cached in %s)", target.name, target)
                publish_directory(target, build)
    return target


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


def write_parquet(path: Path, table: Any, **options: Any) -> None:
    """Writes a table of pyarrow atomically, with checksums by which damage shows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **{"write_page_checksum": True, **options})
    write_atomic(path, sink.getvalue().to_pybytes())


def read_json(
    path: Path,
    default: Any = None,
    fix: str = "delete the file; it is written again",
    parse: Callable[[Any], Any] = lambda content: content,
) -> Any:
    """Reads JSON; `default` where there is no file, an error that names the file where it is damaged.

    Args:
        path: the file.
        default: where there is none.
        fix: what to do about damage, for the error.
        parse: makes a record of the content, or raises ValueError.
    """
    try:
        return parse(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return default
    except ValueError as error:  # of JSON, of UTF-8, or of the record
        raise StoreError(f"{path}: damaged JSON: {error}", fix=fix) from None
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror or error}", fix="give another --store") from None


def damaged(path: Path, error: Exception, fix: str) -> StoreError:
    """What to raise of a file whose content is not what was written."""
    return StoreError(f"{path}: damaged: {error}", fix=fix)


def recover_json(path: Path, default: Any, then: str, parse: Callable[[Any], Any] | None = None) -> Any:
    """Reads JSON that can be made again from what else lies in the store.

    A damaged file is set aside under another name, which is said once, and `default` stands for it from then on.

    Args:
        path: the file.
        default: where there is none.
        then: what is done about the loss, for the warning.
        parse: makes a record of the content, or raises ValueError; else the content must be of the default's type.
    """
    inode = path.stat().st_ino if path.is_file() else None
    try:
        return read_json(path, default, parse=parse or _of_type(type(default)))
    except StoreError as error:
        if not isinstance(error.__context__, ValueError):  # it cannot be read, which is not damage
            raise
        problem = " ".join(str(error.__context__).split())
    aside = set_aside(path, inode)
    log.warning("%s is damaged (%s)%s; %s", path, problem, f", kept as {aside.name}" if aside else "", then)
    return default


def _of_type(kind: type) -> Callable[[Any], Any]:
    def check(content: Any) -> Any:
        if not isinstance(content, kind):
            raise ValueError(f"a {type(content).__name__}, not a {kind.__name__}")
        return content

    return check


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


def fix_of(error: OSError) -> str:
    """What to do about a disk that refused."""
    return FULL_FIX if error.errno in (errno.ENOSPC, errno.EDQUOT) else WRITABLE_FIX
