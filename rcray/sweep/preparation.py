"""Before the cells: large data is encoded once, and large references are computed by as many Ray tasks as fit.

Otherwise the first cell would encode while the others hold their GPUs and wait. The reference tasks divide the shards
among themselves through the store (see `rcray.models.reference`), so none of them is special and a lost one is made
good by the others. What is small is left to the first cell that needs it.
"""

import logging
import math
from collections.abc import Sequence
from typing import Any

from rcray.config import RunConfig, run_id
from rcray.faults import ended_by_device_faults
from rcray.store import Store
from rcray.sweep.cost import inputs_key
from rcray.sweep.grid import Cell
from rcray.sweep.placement import NodeKind
from rcray.train.mirror import Mirror

log = logging.getLogger(__name__)

LARGE = 2048  # pairs; below it the first cell that needs them is quick enough


def prepare_shared(cells: Sequence[Cell], store: Store, nodes: Sequence[NodeKind]) -> None:
    """All stages that cells share: encoded data first, on a CPU, then the references that read it."""
    if data := shared_data(cells):
        encode_data(data, store)
    if references := shared_references(cells):
        build_references(references, store, nodes)


def _is_large(config: RunConfig) -> bool:
    pairs = config.data.train_pairs
    return pairs is None or pairs > LARGE


def shared_data(cells: Sequence[Cell]) -> list[RunConfig]:
    """One config per distinct (model, data) whose encoding is worth a stage of its own."""
    inputs: dict[str, RunConfig] = {}
    for cell in cells:
        if _is_large(cell.config):
            inputs.setdefault(inputs_key(cell.config), cell.config)
    return list(inputs.values())


def encode_data(configs: Sequence[RunConfig], store: Store) -> None:
    """Encodes each dataset in a task of its own; they need one CPU each and no GPU."""
    import ray

    task = ray.remote(encode).options(num_cpus=1, max_retries=2)
    waiting = {task.remote(config.model_dump(mode="json"), store): config for config in configs}
    for reference, config in waiting.items():
        _get([reference], f"data of {config.data.name} for {config.model.name}")


def encode(settings: dict[str, Any], store: Store) -> int:
    """One task: encodes both splits into the cache; returns the number of training pairs."""
    from rcray.data.prepare import prepare_data
    from rcray.models.load import checked_origin, tokenizer_of

    config = RunConfig.model_validate(settings)
    tokenizer = tokenizer_of(checked_origin(config.model, store.cache))
    return len(prepare_data(config.data, tokenizer, store.cache).train.pairs)


def shared_references(cells: Sequence[Cell]) -> list[RunConfig]:
    """One config per distinct (model, data) whose reference is worth a stage of its own."""
    return shared_data([cell for cell in cells if cell.config.caches_reference])


def build_references(configs: Sequence[RunConfig], store: Store, nodes: Sequence[NodeKind]) -> None:
    """Computes each reference by as many tasks as help, spread over the nodes, never two on one GPU."""
    import ray

    for config in configs:
        needs = reference_resources(config)
        task = ray.remote(_reference_task).options(
            num_cpus=needs["CPU"], num_gpus=needs.get("GPU", 0), scheduling_strategy="SPREAD", max_retries=2
        )
        settings = config.model_dump(mode="json")
        running = [task.remote(settings, store) for _ in range(reference_tasks(config, nodes))]
        _get(running, f"reference of {config.model.name} on {config.data.name}")


def reference_resources(config: RunConfig) -> dict[str, float]:
    """What one task reserves: a whole GPU, where cells have a share of one, because it fills it."""
    execution = config.execution
    gpus = math.ceil(execution.gpus_per_worker)
    return {"CPU": execution.cpus_per_worker, **({"GPU": float(gpus)} if gpus else {})}


def reference_tasks(config: RunConfig, nodes: Sequence[NodeKind]) -> int:
    """How many tasks: one per node, or per GPU where they compute on GPUs, and each with a good number of pairs.

    More on one node would load the same weights again to share the same cores. Where nodes share no disk one task does
    it all: the others could not see which shards it has done.
    """
    if config.execution.storage:
        return 1
    needs, pairs = reference_resources(config), config.data.train_pairs
    places = sum(
        node.count * (held if "GPU" in needs else min(held, 1)) for node in nodes if (held := node.holds(needs))
    )
    return max(1, min(places, places if pairs is None else -(-pairs // LARGE)))


def _get(references: list[Any], what: str) -> None:
    import ray

    try:
        ray.get(references)
    except Exception as error:  # the cells meet the same error, and record it as theirs
        log.warning("%s: %s", what, " ".join(str(error).split())[-400:])


def _reference_task(settings: dict[str, Any], store: Store) -> int:
    config = RunConfig.model_validate(settings)
    mirror = Mirror.of(config, store.run(run_id(config)))
    with ended_by_device_faults():
        if mirror:
            mirror.pull_caches()
        pairs = compute_reference(settings, store)
        if mirror:
            mirror.push_caches()
    return pairs


def compute_reference(settings: dict[str, Any], store: Store) -> int:
    """One task: takes shards until none is left; returns the number of pairs."""
    from rcray.data.prepare import prepare_data
    from rcray.models.attention import read_with_attention
    from rcray.models.capabilities import use_precision
    from rcray.models.device import asked_device
    from rcray.models.load import load_model
    from rcray.models.precision import Precision
    from rcray.models.reference import reference_logps

    config = RunConfig.model_validate(settings)
    device = asked_device(config.execution.gpus_per_worker)
    loaded = load_model(config.model, store.cache, seed=config.train.seed, device=device)
    use_precision(loaded.model, Precision.of(config, device))
    read_with_attention(loaded.model, device, config.execution)
    data = prepare_data(config.data, loaded.tokenizer, store.cache).train
    return len(reference_logps(loaded, data, store.cache, device).sum_w)
