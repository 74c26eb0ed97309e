"""Trained models in MLflow, if asked for: with its transformers flavour, and the best cell in the model registry."""

import logging
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from rcray.errors import ConfigError
from rcray.models.chain import CHAIN
from rcray.store import Store
from rcray.sweep.grid import Cell
from rcray.sweep.search import best_cell
from rcray.track.artifacts import tree, tree_mark
from rcray.track.mlflow import MlflowTracker, errors

FOLDER = "model"
_MARK = "rcray.model"  # a tag: which weights were logged
_NEEDED = ("torch", "transformers", "accelerate")


@dataclass(frozen=True)
class Registered:
    """A version in the model registry."""

    name: str
    version: str
    cell: Cell


def best_to_register(store: Store, cells: Sequence[Cell], metric: str) -> Cell:
    """The finished cell with the highest value of a metric; the first of equals."""
    best = best_cell(cells, store, metric)
    if best is None:
        known = sorted({name for cell in cells for name in store.run(cell.run_id).scores()})
        raise ConfigError(
            f"--best-by {metric!r}: no finished cell has it (known: {', '.join(known) or 'none'})",
            fix="name one of these, or evaluate the cells first",
        )
    return best[0]


def log_model(tracker: MlflowTracker, run: str, cell: Cell, store: Store) -> bool:
    """Logs a finished cell's model as MLflow's `transformers` flavour; False where these weights are there already.

    An adapter is merged into its base first, so that the logged model is complete: MLflow's own way with peft models
    names a base on the hub, or saves an adapted base whose weights it does not find again. The chain beside the model
    says what was merged, and for 4-bit bases by how much the result differs from the model that was evaluated.
    """
    final = store.run(cell.run_id).final
    if not final.is_dir():
        raise ConfigError(f"{cell.label}: has no trained model", fix="finish it first")
    mark = tree_mark(tree([final]))
    with errors():
        if tracker.client.get_run(run).data.tags.get(_MARK) == mark:
            return False
    with tempfile.TemporaryDirectory() as folder:
        _save(cell, store, Path(folder) / FOLDER)
        with errors():
            tracker.client.log_artifacts(run, str(Path(folder) / FOLDER), FOLDER)
            tracker.client.set_tag(run, _MARK, mark)
    return True


def _save(cell: Cell, store: Store, target: Path) -> None:
    import mlflow.transformers
    from mlflow.models import ModelSignature
    from mlflow.types.schema import ColSpec, Schema

    from rcray.models.trained import load_trained, merge_adapter

    logging.getLogger("mlflow.transformers").setLevel(logging.ERROR)  # it would look for a model card on the hub
    source = store.run(cell.run_id).final
    with tempfile.TemporaryDirectory() as folder:
        if cell.config.model.trains_adapters:
            source = merge_adapter(source, Path(folder) / "merged", store.cache).directory
        loaded = load_trained(source, store.cache)
        text = Schema([ColSpec("string")])  # said, not inferred: inferring would run the model
        mlflow.transformers.save_model(
            {"model": loaded.model, "tokenizer": loaded.tokenizer},
            str(target),
            task="text-generation",
            signature=ModelSignature(inputs=text, outputs=text),
            pip_requirements=[f"{name}=={metadata.version(name)}" for name in _NEEDED],
            metadata={"rcray.run_id": cell.run_id, "rcray.label": cell.label},
        )
        shutil.copy(source / CHAIN, target / CHAIN)


def register_model(tracker: MlflowTracker, run: str, cell: Cell, name: str) -> Registered:
    """Makes a logged model a version of a registered one; the version it already has where it has one."""
    client = tracker.client
    source = f"runs:/{run}/{FOLDER}"
    with errors():
        if not client.search_registered_models(f"name = '{name}'"):
            client.create_registered_model(name)
        versions = client.search_model_versions(f"name = '{name}'")
        version = next((v for v in versions if v.run_id == run and v.source == source), None)
        if version is None:
            tags = {"rcray.run_id": cell.run_id, "rcray.label": cell.label}
            version = client.create_model_version(name, source, run, tags=tags)
        client.set_registered_model_alias(name, "best", version.version)
    return Registered(name, str(version.version), cell)
