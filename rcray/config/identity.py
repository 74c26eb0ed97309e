"""A run is its content: the run_id hashes what decides the result, and nothing else.

Two experiment files that describe the same training therefore share one run, and a setting that has no effect
(the EMA momentum of a run without calibration) does not split it in two.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from rcray.config.objectives import Kto
from rcray.config.schema import RunConfig

#: Raised when the meaning of a stored run changes, so that old results are not taken for new ones.
SEMANTICS_VERSION = 1

#: Fields that came later: at their defaults they say nothing, so that older runs keep their identity.
_LATER_FIELDS: dict[str, dict[str, Any]] = {
    "objective": {"rc_max_incentive": None},
    "calibration": {"record_full": False, "kind": "published", "guard": None},
    "train": {"optimizer": "adamw", "precision": "auto", "micro_batch_tokens": None, "momentum": 0.0},
}

#: Fields that a kind of calibration does not read; looks only watch a run that is not steered by them.
_SMOOTHING = ("ema_beta", "clip")
_STEERING = ("loser_share", "look_every", "look_pairs")
_INACTIVE = {"published": _STEERING, "update": _SMOOTHING, "normalised": (*_SMOOTHING, *_STEERING)}

RUN_ID_LENGTH = 12  # hex digits: 48 bits, collisions are out of reach for any grid


def identity(config: RunConfig) -> dict[str, Any]:
    """The part of a config that decides the result, with inactive fields removed."""
    content = config.model_dump(mode="json", exclude={"execution"})
    content["data"] = config.data.content()
    if config.is_start_model:
        return _start_model(config, content)
    calibration = config.calibration
    if not calibration.enabled:
        # Estimator and window stay: the band is recorded with or without calibration, in the same way.
        recorded = ("enabled", "scores", "granularity", "record_full")
        content["calibration"] = {name: content["calibration"][name] for name in recorded}
    else:
        inactive = _INACTIVE[calibration.kind]
        if calibration.guard is not None:  # it steps back by what looks see
            inactive = tuple(name for name in inactive if not name.startswith("look_"))
        content["calibration"] = {n: value for n, value in content["calibration"].items() if n not in inactive}
    kl_baseline = isinstance(config.objective, Kto) and config.objective.baseline == "kl"
    if not (calibration.granularity == "microbatch" or kl_baseline):
        del content["train"]["micro_batch_size"]  # gradients are scaled exactly: 8x1 = 1x8
        del content["train"]["micro_batch_tokens"]
    elif config.train.micro_batch_tokens is not None:
        del content["train"]["micro_batch_size"]  # the budget stands in its place
    content["model"] = _active_model_fields(config, content["model"])
    for section, defaults in _LATER_FIELDS.items():
        content[section] = {name: value for name, value in content[section].items() if defaults.get(name, ()) != value}
    content["semantics"] = SEMANTICS_VERSION
    return content


def _start_model(config: RunConfig, content: dict[str, Any]) -> dict[str, Any]:
    """What is measured of a model that nobody trained: its weights, on which pairs, how likelihoods are reduced."""
    model = {name: value for name, value in _active_model_fields(config, content["model"]).items() if name != "lora"}
    kept = {name: content[name] for name in ("fidelity", "data", "likelihood")}
    return {**kept, "model": model, "train": {"epochs": 0}, "semantics": SEMANTICS_VERSION}


def _active_model_fields(config: RunConfig, model: dict[str, Any]) -> dict[str, Any]:
    """Without LoRA where everything is trained, without quantisation where nothing is, without what is not given."""
    inactive = {"quantization"} if not config.model.quantized else set()
    inactive |= set() if config.model.trains_adapters else {"lora"}
    return {name: value for name, value in model.items() if value is not None and name not in inactive}


def flatten(content: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by their dotted paths, as in `--set`; an empty section is a value."""
    flat: dict[str, Any] = {}
    for key, value in content.items():
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def content_key(content: Any, length: int = RUN_ID_LENGTH) -> str:
    """Short hash of any JSON content, independent of key order."""
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()[:length]


def run_id(config: RunConfig) -> str:
    """The identity of a run, as a short hash of its canonical content."""
    return content_key(identity(config))
