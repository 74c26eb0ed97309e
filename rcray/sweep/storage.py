"""Does every node see what the others write? Asked of the nodes there are at the start, and again by every trial.

A node that joins later, without the mount, would train into a directory of its own that nobody ever reads.
"""

import logging
import os
import time
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from rcray.config import RunConfig
from rcray.errors import StorageUnavailableError, StoreError
from rcray.store import RunDir, Store
from rcray.sweep.grid import Cell
from rcray.train.mirror import Mirror

log = logging.getLogger(__name__)

_ANSWER_SECONDS = 60.0
_SETTLING_SECONDS = 5.0  # until a network file system shows everywhere what is new
_FETCH_SECONDS = 10.0  # between two looks at the copies of what is being trained
_FETCHES = 16  # at once
_NOT_SHARED = "not the same directory on node"


@contextmanager
def shared_mark(store: Store) -> Iterator[Path]:
    """A file in the store for the time of a sweep: a node that does not see it has another directory there."""
    mark = store.root / f".seen-by-every-node-{os.getpid()}"
    mark.write_text("")
    try:
        yield mark
    finally:
        mark.unlink(missing_ok=True)


def sees(mark: Path, patience: float = _SETTLING_SECONDS) -> bool:
    """Whether the mark is to be seen from here."""
    deadline = time.monotonic() + patience
    while not mark.exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def check_nodes(store: Store, mark: Path) -> None:
    """Refuses a store that is not the same directory on every node there is."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = [node for node in ray.nodes() if node["Alive"]]
    if len(nodes) < 2:
        return
    look = ray.remote(sees)
    looks = {}
    for node in nodes:
        there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        looks[look.options(num_cpus=0, max_retries=0, scheduling_strategy=there).remote(mark)] = node
    done, waiting = ray.wait(list(looks), num_returns=len(looks), timeout=_ANSWER_SECONDS)
    if waiting:
        log.warning("%d nodes did not answer whether they see the store", len(waiting))
    if blind := [looks[ref]["NodeManagerAddress"] for ref in done if not ray.get(ref)]:
        raise refusal(store, f"{_NOT_SHARED} {', '.join(sorted(set(blind)))}")


def mirror_here(config: RunConfig, run: RunDir, mark: Path) -> Mirror | None:
    """The run's copy on remote storage, where it has one, for a trial on this node.

    Raises:
        StorageUnavailableError: the trial would work in vain: no store that others see, or no access to the remote one.
    """
    mirror = Mirror.of(config, run)
    if mirror is not None:
        mirror.probe()
    elif not sees(mark):
        import ray

        raise StorageUnavailableError(f"{_NOT_SHARED} {ray.util.get_node_ip_address()}")
    return mirror


def refusal(store: Store, reason: str) -> StoreError:
    """The error a sweep ends with where a trial found such a fault, or a disk that takes no more."""
    if reason.startswith(_NOT_SHARED):
        return StoreError(
            f"store {store.root}: {reason}",
            fix="give a --store on storage that every node mounts, such as NFS or EFS, or set execution.storage",
        )
    if reason.startswith("execution.storage"):
        return StoreError(reason, fix="give every node access to it; the same command continues")
    return store.refusal(reason)


class RemoteRuns:
    """Runs with `execution.storage`, as the machine of the sweep sees them: fetched, unless they are written here."""

    def __init__(self, cells: Sequence[Cell], store: Store):
        storage = {cell.run_id: cell.config.execution.storage for cell in cells}
        self._mirrors = {key: Mirror(uri, store.run(key)) for key, uri in storage.items() if uri}
        self._written_here: set[str] = set()
        self._looked = 0.0

    def check(self) -> None:
        """Refuses storage that cannot be used from here; raises StorageUnavailableError."""
        for mirror in {mirror.uri: mirror for mirror in self._mirrors.values()}.values():
            mirror.probe()

    def is_written_here(self, run_id: str) -> None:
        """A trial said that it sees the same store: there is nothing to fetch, and what is there changes."""
        self._written_here.add(run_id)

    def fetch(self, run_ids: Collection[str]) -> None:
        """Brings these runs, as far as their copies are, without checkpoints: those go to who trains on."""
        mirrors = [self._mirrors[key] for key in run_ids if key in self._mirrors and key not in self._written_here]
        if mirrors:
            with ThreadPoolExecutor(_FETCHES) as pool:
                list(pool.map(_pulled, mirrors))

    def follow(self, running: Collection[str], ended: Collection[str]) -> None:
        """The same while they are trained: what has ended at once, what runs now and then."""
        due = time.monotonic() - self._looked > _FETCH_SECONDS
        if due:
            self._looked = time.monotonic()
        self.fetch({*ended, *running} if due else ended)


def _pulled(mirror: Mirror) -> None:
    try:
        mirror.pull(checkpoints=False)
    except StorageUnavailableError as error:  # the next look, or the next command, brings it
        log.warning("run %s: %s", mirror.run.run_id, error.message)
