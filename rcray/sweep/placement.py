"""Can every cell ever be placed, and how many at once? Decided before anything starts.

Ray waits for ever for what no node can hold, so each cell's bundles are held against the nodes there are and the nodes
an autoscaler may still bring up. A bundle lies on one node: two GPUs on two nodes are no two-GPU bundle.
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rcray.config import RunConfig
from rcray.config.load import read_yaml, shown
from rcray.errors import ConfigError
from rcray.sweep.cost import GIB, estimate
from rcray.sweep.grid import Cell

MEMORY_STEP = 256 * 2**20  # reservations are rounded up to this: equal ones let Tune reuse a process
BOOTSTRAP_FILE = Path("~/ray_bootstrap_config.yaml")  # written by `ray up` on the head
TRIAL_TOKEN = float(2**20)  # bytes; a group's own trial reserves a token, else it would starve its workers


@dataclass(frozen=True)
class NodeKind:
    """Nodes of one sort: what each offers, and how many there are or may be."""

    name: str
    resources: Mapping[str, float]
    count: int

    def holds(self, bundle: Mapping[str, float]) -> int:
        """How many such bundles one node takes."""
        fits = [_ratio(self.resources.get(name, 0.0), amount) for name, amount in bundle.items() if amount]
        return min(fits) if fits else 0


def _ratio(offered: float, wanted: float) -> int:
    return math.floor(offered / wanted + 1e-9)  # 0.1 goes ten times into 1


@dataclass(frozen=True)
class Demand:
    """What a cell occupies: so many equal bundles, each on one node."""

    bundle: Mapping[str, float]
    bundles: int

    @property
    def text(self) -> str:
        """For people, as in `2 x (4 CPU, 1 GPU, 16.0 GB)`."""
        parts = [f"{amount:g} {name}" for name, amount in self.bundle.items() if name != "memory"]
        if "memory" in self.bundle:
            parts.append(f"{self.bundle['memory'] / GIB:.1f} GiB")
        inner = ", ".join(parts)
        return inner if self.bundles == 1 else f"{self.bundles} x ({inner})"


def demand(config: RunConfig, *, with_memory: bool = True) -> Demand:
    """The bundles of a cell: one for its process, or one for each worker of its group."""
    execution = config.execution
    workers = max(1, execution.workers)
    bundle = {"CPU": execution.cpus_per_worker, "GPU": execution.gpus_per_worker}
    if with_memory:
        bundle["memory"] = math.ceil(estimate(config).host_bytes / workers / MEMORY_STEP) * MEMORY_STEP
    return Demand({name: float(amount) for name, amount in bundle.items() if amount}, workers)


def places(wanted: Demand, nodes: Sequence[NodeKind]) -> int:
    """How many of these cells fit at once on an empty cluster."""
    return sum(node.holds(wanted.bundle) * node.count for node in nodes) // wanted.bundles


def check_placement(cells: Sequence[Cell], nodes: Sequence[NodeKind]) -> None:
    """Refuses a grid with a cell that would wait for ever, and says what it lacks."""
    for cell in cells:
        wanted = demand(cell.config, with_memory=knows_memory(nodes))
        if not places(wanted, nodes):
            raise ConfigError(
                f"{cell.label}: needs {wanted.text}, and no place for it can exist: {_shortage(wanted, nodes)}",
                fix="lower execution.workers or execution.*_per_worker, or use larger or more nodes",
            )


def _shortage(wanted: Demand, nodes: Sequence[NodeKind]) -> str:
    for name, amount in wanted.bundle.items():
        most = max((node.resources.get(name, 0.0) for node in nodes), default=0.0)
        if most < amount:
            shown = [f"{value / GIB:.1f} GiB" if name == "memory" else f"{value:g}" for value in (most, amount)]
            return f"the largest node has {shown[0]} {name}, one bundle needs {shown[1]}"
    held = sum(node.holds(wanted.bundle) * node.count for node in nodes)
    return f"all nodes together hold {held} of its {wanted.bundles} bundles"


def knows_memory(nodes: Sequence[NodeKind]) -> bool:
    """Whether every kind of node says how much memory it has; a request for it could else never be met."""
    return all("memory" in node.resources for node in nodes)


def concurrency(cells: Sequence[Cell], nodes: Sequence[NodeKind], wanted: int | None) -> int:
    """How many cells may run at once; refuses what can never be placed.

    A cell in its own process is held back by Ray itself, which reserves all it needs. A worker group reserves for
    itself after its trial has started, so there the count must be right: trials too many would sit in memory waiting.
    """
    check_placement(cells, nodes)
    with_memory = knows_memory(nodes)
    fits = [places(demand(cell.config, with_memory=with_memory), nodes) for cell in cells]
    grouped = any(cell.config.execution.workers for cell in cells)
    most = max(1, min(fits) if grouped else max(fits))
    return most if wanted is None else max(1, min(wanted, most))


def check_before_start(cells: Sequence[Cell], cluster_file: Path | None) -> None:
    """The same before Ray is started or joined, as far as that is known: starting it takes many seconds."""
    import ray

    if cluster_file is not None:
        check_placement(cells, read_cluster_file(cluster_file))
    elif not os.environ.get("RAY_ADDRESS") and not ray.is_initialized():
        check_placement(cells, [this_machine()])


def this_machine() -> NodeKind:
    """What a private Ray will offer here, by its own count."""
    from ray._private.resource_and_label_spec import ResourceAndLabelSpec

    offered = ResourceAndLabelSpec().resolve(is_head=True).to_resource_dict()
    return NodeKind("this machine", {name: offered[name] for name in ("CPU", "GPU", "memory") if name in offered}, 1)


def present_nodes() -> list[NodeKind]:
    """The nodes of the cluster this process is joined to."""
    import ray

    alive = [node for node in ray.nodes() if node["Alive"]]
    return [NodeKind(node["NodeManagerAddress"], node["Resources"], 1) for node in alive]


def possible_nodes(cluster_file: Path | None) -> list[NodeKind]:
    """The nodes there can be: those of the cluster's file where it autoscales, else those present.

    Ray does not tell what its autoscaler may bring up, so the file does: the one given, or the one that `ray up`
    leaves on the head node.
    """
    left_by_ray_up = BOOTSTRAP_FILE.expanduser()
    if cluster_file is None and os.environ.get("RAY_ADDRESS") and left_by_ray_up.is_file():
        cluster_file = left_by_ray_up
    return present_nodes() if cluster_file is None else read_cluster_file(cluster_file)


def read_cluster_file(path: Path) -> list[NodeKind]:
    """The node types of a Ray cluster launcher's file: what each offers, and how many there may be."""
    content = read_yaml(path)
    kinds = content.get("available_node_types")
    if not isinstance(kinds, Mapping) or not kinds:
        raise ConfigError(
            f"{path}: has no available_node_types, so nothing can be said of what fits",
            fix="give the file of the Ray cluster launcher, with `resources` for every node type",
        )
    head, limit = content.get("head_node_type"), int(_number(path, "max_workers", content.get("max_workers", 2)))
    return [_node_kind(path, name, kind, limit, is_head=name == head) for name, kind in kinds.items()]


def _node_kind(path: Path, name: str, kind: Any, limit: int, *, is_head: bool) -> NodeKind:
    resources = kind.get("resources") if isinstance(kind, Mapping) else None
    if not isinstance(resources, Mapping) or not resources:
        raise ConfigError(
            f"{path}: available_node_types.{name}: no resources, so the autoscaler cannot know when to start one",
            fix="add resources, such as {CPU: 8, GPU: 1}",
        )
    place = f"available_node_types.{name}"
    most = _number(path, f"{place}.max_workers", kind.get("max_workers", 0 if is_head else limit))
    offered = {str(key): _number(path, f"{place}.resources.{key}", value) for key, value in resources.items()}
    return NodeKind(str(name), offered, min(limit, int(most)) + is_head)


def _number(path: Path, field: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ConfigError(f"{path}: {field}: {shown(value)} is not a number of 0 or more", fix="correct it")
    return float(value)
