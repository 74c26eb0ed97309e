"""Sessions: which commands are training cells of an experiment now. Whoever delivers the experiment follows them.

experiments/NAME/.session-ID.json   what the command trains; it stays until its own follower has read it
experiments/NAME/.session-ID.lock   held by its process: however that ends, the lock ends with it
"""

import json
import platform
import re
import secrets
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from rcray.files import write_json
from rcray.records.parsing import parser

_FILE = re.compile(r"\.session-([0-9a-f]+)\.json")


@dataclass(frozen=True)
class Session:
    """A command that trains."""

    cells: tuple[str, ...]  # run ids
    new: tuple[str, ...] = ()  # those of them that were not finished before: it records its environment for them
    is_sweep: bool = False  # a parent run, and cells that are evaluated after their training
    is_training: bool = True  # False: all cells are done, and the report is being built
    environment: str = ""  # which Python it runs on; a follower on another one records nothing for it

    @property
    def is_of_this_environment(self) -> bool:
        """Whether this process has the command's machine and packages."""
        return self.environment == this_environment()


_parse = parser(Session)


def this_environment() -> str:
    """The machine, and the packages on it."""
    return f"{platform.node()}:{sys.prefix}"


class OpenSession:
    """A session of this process, from when it is opened until it is closed."""

    def __init__(self, experiment: Path, session: Session):
        self.id = secrets.token_hex(8)
        self.session = session  # as its file has it
        self._path = experiment / f".session-{self.id}.json"
        self._lock = FileLock(_lock(self._path))

    def open(self) -> None:
        """From now on it is under way."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        for old in _dead(self._path.parent):
            _remove(old)
        self._lock.acquire()  # before the file is there: one without a holder is taken for dead
        self.update(self.session)

    def update(self, session: Session) -> None:
        """Writes its file anew."""
        self.session = session
        write_json(self._path, asdict(session))

    def close(self) -> None:
        """From now on it is over; its file stays for its follower."""
        self._lock.release()


def remove_session(experiment: Path, key: str) -> None:
    """Forgets a session that is over; nobody asks for it any more."""
    _remove(experiment / f".session-{key}.json")


def read_session(experiment: Path, key: str) -> Session | None:
    """A session that is under way or over; None where its file is gone or damaged."""
    try:
        return _parse(json.loads((experiment / f".session-{key}.json").read_text()))
    except (OSError, ValueError):  # damaged: nothing that could be followed
        return None


def live_sessions(experiment: Path) -> dict[str, Session]:
    """The sessions under way, by id."""
    live = {key: read_session(experiment, key) for key, path in _files(experiment).items() if _is_held(_lock(path))}
    return {key: session for key, session in live.items() if session is not None}


def _files(experiment: Path) -> dict[str, Path]:
    named = {path: _FILE.fullmatch(path.name) for path in sorted(experiment.glob(".session-*.json"))}
    return {name[1]: path for path, name in named.items() if name}


def _dead(experiment: Path) -> list[Path]:
    """What killed processes left."""
    return [path for path in _files(experiment).values() if not _is_held(_lock(path))]


def _lock(path: Path) -> Path:
    return path.with_suffix(".lock")


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    _lock(path).unlink(missing_ok=True)


def _is_held(lock: Path) -> bool:
    try:
        with FileLock(lock, timeout=0):
            return False
    except Timeout:
        return True
