"""Before the cells: large references are computed by as many Ray tasks as fit, once for all cells that share them.

The tasks divide the shards among themselves through the store (see `rcray.models.reference`), so none of them is
special and a lost one is made good by the others. A small reference is left to the first cell that needs it.
"""

import logging
from collections.abc import Sequence
from typing import Any

from rcray.config import RunConfig, content_key
from rcray.models.reference import SHARD
from rcray.store import Store
from rcray.sweep.grid import Cell

log = logging.getLogger(__name__)


def shared_references(cells: Sequence[Cell]) -> list[RunConfig]:
    """One config per distinct (model, data) whose reference is worth a stage of its own."""
    found: dict[str, RunConfig] = {}
    for cell in cells:
        config = cell.config
        pairs = config.data.train_pairs
        small = pairs is not None and pairs <= SHARD
        if small or not config.needs_reference or config.objective.traits.token_level:
            continue
        key = content_key([config.model.model_dump(mode="json"), config.data.model_dump(mode="json")])
        found.setdefault(key, config)
    return list(found.values())


def build_references(configs: Sequence[RunConfig], store: Store, places: int) -> None:
    """Computes each reference with up to `places` tasks, each with the resources of one worker."""
    import ray

    for config in configs:
        pairs = config.data.train_pairs
        tasks = places if pairs is None else min(places, -(-pairs // SHARD))
        execution = config.execution
        task = ray.remote(compute_reference).options(
            num_cpus=execution.cpus_per_worker, num_gpus=execution.gpus_per_worker, max_retries=2
        )
        try:
            ray.get([task.remote(config.model_dump(mode="json"), store) for _ in range(tasks)])
        except Exception as error:  # the cells meet the same error, and record it as theirs
            log.warning("reference of %s on %s: %s", config.model.name, config.data.name, error)


def compute_reference(settings: dict[str, Any], store: Store) -> int:
    """One task: takes shards until none is left; returns the number of pairs."""
    import torch

    from rcray.data.prepare import prepare_data
    from rcray.models.load import load_model
    from rcray.models.reference import reference_logps

    config = RunConfig.model_validate(settings)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loaded = load_model(config.model, store.cache, seed=config.train.seed, device=device)
    data = prepare_data(config.data, loaded.tokenizer, store.cache).train
    return len(reference_logps(loaded, data, store.cache, device).sum_w)
