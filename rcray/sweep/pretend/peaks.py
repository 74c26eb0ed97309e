"""Peaks of training steps as lines over the tokens of a micro-batch, from steps at two lengths.

Each layer adds the same to the peak of a step from a few layers on, so that steps of few layers tell that of all.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rcray.config import RunConfig, load_experiment
from rcray.config.models import MODELS, paper_models
from rcray.sweep.grid import expand
from rcray.sweep.memory import Peak, extra_weights, peak_key
from rcray.sweep.pretend.models import architecture
from rcray.sweep.pretend.steps import Lengths, pretended_step

LONGEST = (512, 1024)
SMOKE = Path(__file__).parents[3] / "experiments" / "smoke-gpu.yaml"


def few_layers(config: RunConfig) -> int:
    """From so many on each adds the same: blocks computed again hold less, at first, than the last one and the head."""
    return 6 if config.execution.gradient_checkpointing else 2


def measured_peak(config: RunConfig) -> Peak:
    """The line of a cell's own step, with a look if it takes them, both answers of its pairs as long as may be."""
    low, high = (whole_peak(config, Lengths.longest(longest)) for longest in LONGEST)
    tokens = [2 * config.train.micro_batch_size * longest for longest in LONGEST]
    slope = (high - low) / (tokens[1] - tokens[0])
    return Peak(round(low - slope * tokens[0]), round(slope))


def whole_peak(config: RunConfig, lengths: Lengths) -> float:
    """Bytes that a step of all layers holds at once."""
    looking, few = bool(config.calibration.look_every), few_layers(config)
    layers = architecture(config.model).num_hidden_layers
    if layers <= few + 1:
        return pretended_step(config, lengths, looking=looking).peak_bytes
    at, more = (pretended_step(config, lengths, layers=n, looking=looking).peak_bytes for n in (few, few + 1))
    return at + (layers - few) * (more - at)


def preset_cells() -> list[RunConfig]:
    """Each preset as it resolves, without looks, and with an objective that reads distributions; as `official` has it.

    Those in 4 bits also with activations kept, Mistral with the scores of head-vs-full.yaml, the one that is trained in
    full also in float32 products; and the cells of smoke-gpu.yaml.
    """
    presets = [{"model": name} for name in paper_models()]
    in_full = [run for run in presets if MODELS[run["model"]].model["method"] == "full"]
    quantized = [run for run in presets if run not in in_full]
    float32: list[dict[str, Any]] = [{**run, "train": {"precision": "float32"}} for run in in_full]
    kept: list[dict[str, Any]] = [{**run, "execution": {"gradient_checkpointing": False}} for run in quantized]
    asked = [*presets, *kept, *float32, *({**run, "objective": "tdpo"} for run in presets)]
    asked += [{"model": "mistral-7b", "calibration": {"scores": "full"}}]
    asked += [{**run, "fidelity": "official"} for run in presets]
    asked += [{**run, "calibration": {"look_every": 0}} for run in (*presets, *float32)]
    cells = [RunConfig.model_validate(_on_a_gpu(run)) for run in asked]
    return cells + [cell.config for cell in expand(load_experiment(SMOKE))]


def _on_a_gpu(run: dict[str, Any]) -> dict[str, Any]:
    calibration = {"enabled": True, **run.get("calibration", {})}
    execution = {"gpus_per_worker": 1, **run.get("execution", {})}
    return {"data": "ultrafeedback", **run, "calibration": calibration, "execution": execution}


def preset_peaks(say: Callable[[str], None]) -> dict[str, dict[str, float]]:
    """By key, as peaks.json keeps them."""
    peaks: dict[str, dict[str, float]] = {}
    for config in preset_cells():
        key = peak_key(config)
        if key not in peaks:
            peak = measured_peak(config)
            shape = config.model.shape
            assert shape is not None
            peak = replace(peak, fixed=peak.fixed - extra_weights(config, shape))  # `plan` adds them
            peaks[key] = {"fixed": peak.fixed, "per_token": peak.per_token}
            say(f"{key}: {peak.fixed / 1e9:.2f} GB and {peak.per_token / 1e3:.0f} kB a token")
    return peaks
