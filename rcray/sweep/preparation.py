"""Before the cells: large data is encoded once, and large references are computed by as many Ray tasks as fit.

Otherwise the first cell would encode while the others hold their GPUs and wait. The reference tasks divide the shards
among themselves through the store (see `rcray.models.reference`), so none of them is special and a lost one is made
good by the others. What is small is left to the first cell that needs it.
"""

import logging
from collections.abc import Sequence
from typing import Any

from rcray.config import RunConfig, content_key
from rcray.store import Store
from rcray.sweep.grid import Cell

log = logging.getLogger(__name__)

LARGE = 2048  # pairs; below it the first cell that needs them is quick enough


def prepare_shared(cells: Sequence[Cell], store: Store, places: int) -> None:
    """All stages that cells share: encoded data first, on a CPU, then the references that read it."""
    if data := shared_data(cells):
        encode_data(data, store)
    if references := shared_references(cells):
        build_references(references, store, places)


def _is_large(config: RunConfig) -> bool:
    pairs = config.data.train_pairs
    return pairs is None or pairs > LARGE


def shared_data(cells: Sequence[Cell]) -> list[RunConfig]:
    """One config per distinct (model, data) whose encoding is worth a stage of its own."""
    inputs: dict[str, RunConfig] = {}
    for cell in cells:
        if _is_large(cell.config):
            inputs.setdefault(_inputs_key(cell.config), cell.config)
    return list(inputs.values())


def _inputs_key(config: RunConfig) -> str:
    return content_key([config.model.model_dump(mode="json"), config.data.model_dump(mode="json")])


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
    inputs: dict[str, RunConfig] = {}
    for cell in cells:
        config = cell.config
        if _is_large(config) and config.needs_reference and not config.objective.traits.token_level:
            inputs.setdefault(_inputs_key(config), config)
    return list(inputs.values())


def build_references(configs: Sequence[RunConfig], store: Store, places: int) -> None:
    """Computes each reference with up to `places` tasks, each with the resources of one worker."""
    import ray

    for config in configs:
        pairs = config.data.train_pairs
        tasks = places if pairs is None else min(places, -(-pairs // LARGE))
        execution = config.execution
        task = ray.remote(compute_reference).options(
            num_cpus=execution.cpus_per_worker, num_gpus=execution.gpus_per_worker, max_retries=2
        )
        running = [task.remote(config.model_dump(mode="json"), store) for _ in range(tasks)]
        _get(running, f"reference of {config.model.name} on {config.data.name}")


def _get(references: list[Any], what: str) -> None:
    import ray

    try:
        ray.get(references)
    except Exception as error:  # the cells meet the same error, and record it as theirs
        log.warning("%s: %s", what, " ".join(str(error).split())[-400:])


def compute_reference(settings: dict[str, Any], store: Store) -> int:
    """One task: takes shards until none is left; returns the number of pairs."""
    from rcray.data.prepare import prepare_data
    from rcray.models.capabilities import use_precision
    from rcray.models.device import asked_device
    from rcray.models.load import load_model
    from rcray.models.precision import Precision
    from rcray.models.reference import reference_logps

    config = RunConfig.model_validate(settings)
    device = asked_device(config.execution.gpus_per_worker)
    loaded = load_model(config.model, store.cache, seed=config.train.seed, device=device)
    use_precision(loaded.model, Precision.of(config, device))
    data = prepare_data(config.data, loaded.tokenizer, store.cache).train
    return len(reference_logps(loaded, data, store.cache, device).sum_w)
