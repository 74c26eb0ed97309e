"""Checkpoints: whole or absent, verified before use, the newest sound one wins.

    checkpoints/step-00000050/
      model.safetensors   weights: all of them, or the adapters where only those are trained
      optimizer.pt        optimizer, scheduler and random state (tensors and numbers only)
      state.json          step, calibration averages, last probe, seconds so far
      manifest.json       size and SHA-256 of each file, written last

The data cursor is the step: the order of pairs is a function of the seed.
"""

import copy
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from rcray.errors import CheckpointError
from rcray.extras import explained_imports
from rcray.files import measured, read_json, write_json
from rcray.train.sharded import copy_into, has_shards, load_optimizer, whole, whole_weights
from rcray.train.step import StepState

with explained_imports():
    from safetensors.torch import load_file, load_model, save_file, save_model

log = logging.getLogger(__name__)

_FILES = {"model.safetensors", "optimizer.pt", "state.json"}


@dataclass
class Progress:
    """Everything a resumed run must know beside weights and optimizer."""

    step: int = 0
    calibrator: dict[str, Any] | None = None
    loss_scale: list[float] = field(default_factory=list)  # scale and sound steps, where float16 is computed in
    drift: list[float] = field(default_factory=list)  # of fresh pairs: both means and their weight
    first_probe: list[float] = field(default_factory=list)  # z_w, z_l
    last_probe: list[float] = field(default_factory=list)
    seconds: float = 0.0
    tokens: int = 0
    in_band_steps: int = 0
    looks: int = 0  # that predicted a move
    looks_iii: int = 0  # those that predicted pathway iii
    best: list[float] = field(default_factory=list)  # accuracy and margin on the probe of the best model kept so far
    #: Weights and scores of the last look, kept beside the optimizer; of a sharded model, every worker's.
    look: dict[str, torch.Tensor] = field(default_factory=dict)

    def count(self, row: Mapping[str, Any]) -> None:
        """Takes what a step's record says of both bands."""
        self.in_band_steps += row["in_band"]
        self.looks += row["pathway_predicted"] != ""
        self.looks_iii += row["pathway_predicted"] == "iii"


@dataclass(frozen=True)
class Resumable:
    """What a checkpoint is of, and is loaded into again."""

    model: Any
    optimizer: torch.optim.Optimizer
    scheduler: Any

    @classmethod
    def of(cls, state: StepState) -> "Resumable":
        """Of a training."""
        return cls(state.policy.model, state.update.optimizer, state.update.scheduler)


@dataclass(frozen=True)
class Snapshot:
    """A model gathered from all workers, or copied off a GPU: its weights by name, and its optimizer's state."""

    weights: dict[str, torch.Tensor]
    optimizer: dict[str, Any]
    scheduler: dict[str, Any] | None = None  # None: as it stands when the snapshot is written
    random: torch.Tensor | None = None

    @classmethod
    def copied(cls, state: Resumable) -> "Snapshot":
        """Everything in main memory, for a thread to write while training goes on; tied weights once."""
        named = _adapters(state.model) or state.model.state_dict(keep_vars=True)
        once = {tensor.data_ptr(): (name, tensor) for name, tensor in reversed(named.items())}
        weights = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in once.values()}
        return cls(weights, _in_main_memory(state.optimizer.state_dict())).with_scheduler(state.scheduler)

    @classmethod
    def gather(cls, model: Any, optimizer: torch.optim.Optimizer) -> "Snapshot | None":
        """All workers must take part; None for a model that every worker holds whole."""
        if not has_shards(model):
            return None
        return cls(whole_weights(model, trained_only=_adapters(model) is not None), whole(optimizer.state_dict()))

    def with_scheduler(self, scheduler: Any) -> "Snapshot":
        """The same, with scheduler and random state as they are now."""
        return replace(self, scheduler=copy.deepcopy(scheduler.state_dict()), random=torch.get_rng_state())


def save_checkpoint(
    directory: Path, state: Resumable, progress: Progress, keep: int, gathered: Snapshot | None = None
) -> Path:
    """Publishes a checkpoint by one rename, then removes those beyond the newest `keep`."""
    directory.mkdir(parents=True, exist_ok=True)
    target = directory / f"step-{progress.step:08d}"
    temporary = Path(tempfile.mkdtemp(dir=directory, prefix=".writing-"))
    try:
        if gathered is None:
            _save_weights(state.model, temporary / "model.safetensors")
        else:
            save_file(gathered.weights, temporary / "model.safetensors")
        tensors = {
            "optimizer": gathered.optimizer if gathered else state.optimizer.state_dict(),
            "scheduler": gathered.scheduler if gathered and gathered.scheduler else state.scheduler.state_dict(),
            "random": torch.get_rng_state() if gathered is None or gathered.random is None else gathered.random,
            "look": progress.look,
        }
        torch.save(tensors, temporary / "optimizer.pt")
        write_json(temporary / "state.json", asdict(replace(progress, look={})))
        files = sorted(path.name for path in temporary.iterdir())
        write_json(temporary / "manifest.json", {name: measured(temporary / name) for name in files})
        for name in files:
            _sync(temporary / name)
        if target.exists():  # left by an attempt that was killed after publishing
            shutil.rmtree(target)
        os.replace(temporary, target)
        _sync(directory)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    for old in checkpoints(directory)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return target


class CheckpointWriter:
    """Writes at once, or beside the training on a GPU, one checkpoint at a time."""

    def __init__(self, *, beside: bool):
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="rcray-checkpoint") if beside else None
        self.pending: Future[None] | None = None

    def save(
        self,
        directory: Path,
        state: Resumable,
        progress: Progress,
        keep: int,
        gathered: Snapshot | None,
        *,
        then: Callable[[], None],
    ) -> None:
        """Writes what is now, then calls `then`. A thread writes from a copy, after the one before; raises for that."""
        if self.thread is None:
            save_checkpoint(directory, state, progress, keep, gathered)
            then()
            return
        self.wait()
        now = gathered.with_scheduler(state.scheduler) if gathered else Snapshot.copied(state)
        progress = replace(copy.deepcopy(replace(progress, look={})), look=_in_main_memory(progress.look))

        def write() -> None:
            save_checkpoint(directory, state, progress, keep, now)
            then()

        self.pending = self.thread.submit(write)

    def wait(self) -> None:
        """Until everything is written."""
        pending, self.pending = self.pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """The same where a run has ended already: a checkpoint that fails now is said, and no reason for its end."""
        try:
            self.wait()
        except Exception as error:
            log.warning("the last checkpoint was not written: %s", error)


def _in_main_memory(value: Any) -> Any:
    """The same structure, every tensor copied off its device."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: _in_main_memory(part) for key, part in value.items()}
    return [_in_main_memory(part) for part in value] if isinstance(value, list) else value


def checkpoints(directory: Path) -> list[Path]:
    """Published checkpoints, oldest first."""
    return sorted(directory.glob("step-*")) if directory.is_dir() else []


def restore_newest(directory: Path, state: Resumable, *, upto: int | None = None) -> Progress | None:
    """Loads the newest sound checkpoint, falling back past damaged ones; None where there is none.

    `upto` is the last step whose record is sound: what a later checkpoint vouches for is damaged.
    """
    for stale in directory.glob(".writing-*") if directory.is_dir() else ():
        shutil.rmtree(stale, ignore_errors=True)
    for path in reversed(checkpoints(directory)):
        if upto is not None and int(path.name.partition("-")[2]) > upto:
            log.warning("checkpoint %s: the records before it are damaged; trying the one before", path.name)
            continue
        try:
            verify(path)
        except CheckpointError as error:
            log.warning("%s; trying the one before", error.message)
            continue
        _load_weights(state.model, path / "model.safetensors")
        tensors = torch.load(path / "optimizer.pt", weights_only=True, map_location="cpu")
        load_optimizer(state.optimizer, tensors["optimizer"])
        state.scheduler.load_state_dict(tensors["scheduler"])
        torch.set_rng_state(tensors["random"])
        return Progress(**{**read_json(path / "state.json"), "look": tensors.get("look", {})})
    return None


def _adapters(model: Any) -> dict[str, torch.Tensor] | None:
    """The trainable tensors of a model that also has frozen ones; None where everything is trained."""
    parameters = dict(model.named_parameters())
    trained = {name: p for name, p in parameters.items() if p.requires_grad}
    return None if len(trained) == len(parameters) else trained


def _save_weights(model: Any, path: Path) -> None:
    adapters = _adapters(model)
    if adapters is None:
        save_model(model, str(path))
    else:
        save_file({name: p.detach().contiguous() for name, p in adapters.items()}, path)


def _load_weights(model: Any, path: Path) -> None:
    adapters = _adapters(model)
    if adapters is None and not has_shards(model):
        load_model(model, str(path))
        return
    adapters = adapters or dict(model.named_parameters())
    saved = load_file(path)
    if {name: p.shape for name, p in saved.items()} != {name: p.shape for name, p in adapters.items()}:
        raise CheckpointError(
            f"checkpoint {path.parent.name}: its weights are not those of this model",
            fix="remove the run's checkpoints directory to start the run again",
        )
    for name, p in adapters.items():
        copy_into(p, saved[name])


def verify(path: Path) -> None:
    """Raises unless every file is there with the size and hash its manifest names."""
    try:
        manifest = json.loads((path / "manifest.json").read_text())
        if not set(manifest) >= _FILES:
            raise ValueError
    except (OSError, ValueError, TypeError):
        raise CheckpointError(f"checkpoint {path.name}: its manifest is missing or damaged") from None
    for name, expected in manifest.items():
        if not (path / name).is_file() or measured(path / name) != expected:
            raise CheckpointError(f"checkpoint {path.name}: {name} is damaged")


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
