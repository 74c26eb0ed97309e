"""Lost processes and nodes: how often a cell may lose them, and where it is tried next.

A cell is given up after three lost processes. A lost node, such as a spot instance that was taken away, is none of
them: which of the two it was is decided by whether the node is there when the next process is lost, because the
processes of a node often die before it does. A process that was lost on a node that is still there may have met a GPU
that is broken, so its cell goes to another node, where there is one that holds it.

A GPU that says of itself that it is broken is charged to no cell, however often one meets it: on a machine with other
GPUs cells wait for those. Where nothing works but for processes that it takes, the sweep ends and says so.
"""

import logging
import time
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from rcray.errors import RcrayError
from rcray.faults import classify
from rcray.records.states import UNSUCCESSFUL, State
from rcray.store import RunDir
from rcray.sweep.ledger import LiveLedger
from rcray.sweep.placement import NodeKind
from rcray.sweep.storage import RemoteRuns
from rcray.sweep.transit import GivenUp, giving_up, run_id_of

log = logging.getLogger(__name__)

PROCESSES = 3
NODES = 20  # of one cell: it is the cell that ends them
#: In a trial's first report: its node, and whether it sees the store of the sweep.
NODE, SHARES_STORE = "node", "shares_store"
#: In its last one: what a broken GPU says of itself.
BROKEN_CARD = "broken_card"
_SHOWN = 400  # characters of what Ray says
_NODE_LABEL = "ray.io/node-id"


class Losses:
    """The losses of one cell: on which node each of them was; empty for one that never came to say so."""

    def __init__(self) -> None:
        self.nodes: list[str] = []
        self.broken_cards: list[str] = []  # where they are: charged to nobody

    def verdict(self, alive: Collection[str]) -> str:
        """Why the cell is given up; empty while it is not."""
        processes = sum(not node or node in alive for node in self.nodes)
        nodes = len(self.nodes) - processes
        if processes >= PROCESSES:
            return f"its process was lost {processes} times"
        return f"its node was lost {nodes} times" if nodes >= NODES else ""

    def avoided(self, alive: Collection[str]) -> set[str]:
        """Nodes that are there and on which a process of it was lost."""
        return {*self.nodes, *self.broken_cards} & set(alive)


class CardWatch:
    """Whether anything works beside the broken GPUs; without that they would be tried for ever."""

    def __init__(self) -> None:
        self._working: set[str] = set()
        self._in_a_row: list[str] = []

    def works(self, cell: str) -> None:
        """It has made steps in the process it is in."""
        self._working.add(cell)
        self._in_a_row.clear()

    def ends(self, cell: str) -> None:
        """That process is there no more."""
        self._working.discard(cell)

    def meets(self, cell: str) -> int:
        """A broken GPU took a process of it: how many in a row by now, while nothing else worked."""
        if not self._working - {cell}:
            self._in_a_row.append(cell)
        return len(self._in_a_row)


def trial_watch(ledger: LiveLedger, remote: RemoteRuns) -> Any:
    """A Tune callback: tells the ledger what runs, counts losses, and gives up what lost too much."""
    from ray.tune import Callback

    class TrialWatch(Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.losses: dict[str, Losses] = {}
            self._node: dict[str, str] = {}
            self._broken: dict[str, str] = {}  # what the GPU of a cell's process said
            self._cards = CardWatch()
            self._refusal: RcrayError | None = None
            self.given_up = False

        def __reduce__(self) -> tuple[Any, ...]:
            return Callback, ()  # Tune writes its settings down, nothing is read from them; a lock cannot be written

        def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            ledger.start(run_id_of(trial.config))

        def on_trial_result(
            self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
        ) -> None:
            key = run_id_of(trial.config)
            if NODE in result:
                self._node[key] = result[NODE]
                if result[SHARES_STORE]:
                    remote.is_written_here(key)
            if "step" in result:
                self._cards.works(key)
            if BROKEN_CARD in result:
                self._broken[key] = result[BROKEN_CARD]
                self._cards.ends(key)

        def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            self._end(trial)

        def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            self._end(trial)

        def _end(self, trial: Any) -> None:
            key = run_id_of(trial.config)
            ledger.end(key)
            self._cards.ends(key)

        def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
            if self._refusal:  # here Tune lets it through, and ends what runs
                raise self._refusal

        def on_trial_recover(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            key = run_id_of(trial.config)
            self._end(trial)
            nodes = _alive()
            losses = self.losses.setdefault(key, Losses())
            node = self._node.pop(key, "")
            if (broken := self._broken.pop(key, "")) and node in nodes:
                losses.broken_cards.append(node)
                log.warning("a GPU of node %s is broken, run %s goes on elsewhere: %s", _address(node), key, broken)
                if not _move(trial, losses.avoided(nodes), nodes) and self._cards.meets(key) >= PROCESSES:
                    self._refusal = broken_card(_address(node), broken)
                return
            losses.nodes.append(node)
            if reason := losses.verdict(nodes):
                trial.config = giving_up(trial.config, given_up(reason, trial.get_pickled_error()))
                trial.max_failures = 0  # if even that process is lost, that is all
                self.given_up = True
            else:
                _move(trial, losses.avoided(nodes), nodes)

    return TrialWatch()


def given_up(lost: str, error: BaseException | None) -> GivenUp:
    """The outcome of a cell whose processes were lost, the last with this error."""
    memory = error is not None and classify(error) == "memory"
    return GivenUp(State.OOM if memory else State.FAILED, lost, " ".join(str(error or "").split())[:_SHOWN])


def write_given_up(run: RunDir, outcome: GivenUp) -> bool:
    """The status of a cell that is given up; False where its run has failed by itself.

    A cell whose stages were lost is trained all the same: its next launch finds that (`restore_trained`).
    """
    record = run.recover_status()
    if record.status in UNSUCCESSFUL:
        return False
    text = outcome.text(record.error)
    run.write_status(replace(record, run_id=run.run_id, status=outcome.state, error=text, updated=time.time()))
    return True


def _alive() -> dict[str, dict[str, float]]:
    """The resources of the nodes that are there, by their ids."""
    import ray

    return {node["NodeID"]: node["Resources"] for node in ray.nodes() if node["Alive"]}


def _address(node: str) -> str:
    import ray

    return next((str(each["NodeManagerAddress"]) for each in ray.nodes() if each["NodeID"] == node), node)


def broken_card(address: str, said: str) -> RcrayError:
    """What a sweep ends with where a broken GPU takes every process, and nothing else works."""
    return RcrayError(
        f"node {address}: a broken GPU took {PROCESSES} processes in a row: {said[:_SHOWN]}",
        fix="take it out (CUDA_VISIBLE_DEVICES, see deploy/README.md); no cell failed, the same command continues",
    )


def _move(trial: Any, avoided: Collection[str], nodes: dict[str, dict[str, float]]) -> bool:
    """Keeps the next try off the nodes avoided, if another one that is there can hold it; says whether one can."""
    from ray.tune import PlacementGroupFactory

    bundles = trial.placement_group_factory.bundles
    others = [NodeKind(node, offered, 1) for node, offered in nodes.items() if node not in avoided]
    if not avoided or not any(all(kind.holds(bundle) for bundle in bundles) for kind in others):
        return False
    selector = {_NODE_LABEL: f"!in({','.join(sorted(avoided))})"}
    trial.update_resources(PlacementGroupFactory(bundles, bundle_label_selector=[selector] * len(bundles)))
    return True
