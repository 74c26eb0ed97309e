"""Peaks of training steps as lines over the tokens of a micro-batch, from steps of the whole model at two lengths."""

from collections.abc import Callable
from typing import Any

from rcray.config import RunConfig
from rcray.sweep.memory import Peak, peak_key
from rcray.sweep.pretend.steps import Lengths, pretended_step

PRESETS = ("pythia-410m", "pythia-2.8b", "mistral-7b", "qwen2.5-7b")
LONGEST = (512, 1024)


def measured_peak(config: RunConfig) -> Peak:
    """The line of a cell's own step, both answers of its pairs as long as they may be."""
    low, high = (pretended_step(config, Lengths.longest(longest)).peak_bytes for longest in LONGEST)
    tokens = [2 * config.train.micro_batch_size * longest for longest in LONGEST]
    slope = (high - low) / (tokens[1] - tokens[0])
    return Peak(round(low - slope * tokens[0]), round(slope))


def preset_cells() -> list[RunConfig]:
    """Each preset as it is, and as `official` computes it; the one that is trained in full in float32 products, too."""
    settings: dict[str, Any] = {
        "data": "ultrafeedback",
        "calibration": {"enabled": True, "look_every": 0},
        "execution": {"gpus_per_worker": 1},
    }
    asked: list[dict[str, Any]] = [{"train": {"precision": "float32"}, "model": PRESETS[0]}]
    asked += [{"fidelity": fidelity, "model": name} for name in PRESETS for fidelity in ("paper", "official")]
    return [RunConfig.model_validate({**settings, **run}) for run in asked]


def preset_peaks(say: Callable[[str], None]) -> dict[str, dict[str, float]]:
    """By key, as peaks.json keeps them."""
    peaks: dict[str, dict[str, float]] = {}
    for config in preset_cells():
        key = peak_key(config)
        if key not in peaks:
            peak = measured_peak(config)
            peaks[key] = {"fixed": peak.fixed, "per_token": peak.per_token}
            say(f"{key}: {peak.fixed / 1e9:.2f} GB and {peak.per_token / 1e3:.0f} kB a token")
    return peaks
