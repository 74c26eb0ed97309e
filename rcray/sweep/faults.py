"""What ended a cell: memory, the machinery around it, or the cell itself. Only the first two are worth another try."""

import re
from collections.abc import Iterator
from typing import Literal

from rcray.errors import RunLockedError

#: memory: try with less; transient: try again, perhaps on another node; deterministic: it would only fail again.
Fault = Literal["memory", "transient", "deterministic"]

_MEMORY_NAMES = {"OutOfMemoryError", "MemoryError"}
#: By name, so that nothing is imported to read an error. Train's own errors are not among them: Train has already
#: started the group again by itself, and its retries times Tune's would be many.
_TRANSIENT_NAMES = {
    "ActorDiedError",
    "ActorUnavailableError",
    "NodeDiedError",
    "ObjectLostError",
    "OwnerDiedError",
    "RayActorError",
    "WorkerCrashedError",
    "ConnectionError",
    "ConnectTimeout",
    "ReadTimeout",
    "TimeoutError",
}
_MEMORY_TEXT = re.compile(r"low on memory|out of memory|memory monitor|OutOfMemory", re.IGNORECASE)
_STALE_STORAGE = (5, 116)  # EIO, ESTALE: a shared file system that went away for a moment


def classify(error: BaseException) -> Fault:
    """The kind of an error, or of what caused it."""
    chain = list(_chain(error))
    names = {kind.__name__ for link in chain for kind in type(link).__mro__}
    if names & _MEMORY_NAMES or (names & _TRANSIENT_NAMES and _MEMORY_TEXT.search(str(error))):
        return "memory"
    if any(isinstance(link, RunLockedError) for link in chain) or names & _TRANSIENT_NAMES:
        return "transient"
    if any(isinstance(link, OSError) and link.errno in _STALE_STORAGE for link in chain):
        return "transient"
    return "deterministic"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and its causes. What it was raised while handling is no cause."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__
