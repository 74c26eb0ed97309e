"""Peaks of training steps as lines over layers and tokens, from a few steps of few layers.

Memory that grows with the layers grows by the same for each, and memory that grows with the tokens by the same for each
of them: four steps, of two depths and two lengths, give the plane that the whole model lies on. That holds where blocks
keep their activations. Where they are computed again a few layers are outweighed by the head: there is a rule for that.
"""

from collections.abc import Callable
from typing import Any

from rcray.config import RunConfig
from rcray.sweep.memory import Peak, peak_key
from rcray.sweep.pretend.models import architecture
from rcray.sweep.pretend.steps import Lengths, pretended_step

PRESETS = ("pythia-410m", "pythia-2.8b", "mistral-7b", "qwen2.5-7b")
DEPTHS, LONGEST = (2, 4), (512, 1024)


def measured_peak(config: RunConfig) -> Peak:
    """The line of a whole model over the tokens of its micro-batch, both answers as long as they may be."""
    whole = int(architecture(config.model).num_hidden_layers)
    size = config.train.micro_batch_size
    seen = {
        (depth, longest): pretended_step(config, Lengths.longest(longest), layers=depth).peak_bytes
        for depth in DEPTHS
        for longest in LONGEST
    }
    deep = []
    for longest in LONGEST:
        few, more = (seen[depth, longest] for depth in DEPTHS)
        deep.append(few + (more - few) / (DEPTHS[1] - DEPTHS[0]) * (whole - DEPTHS[0]))
    tokens = [2 * size * longest for longest in LONGEST]
    slope = (deep[1] - deep[0]) / (tokens[1] - tokens[0])
    return Peak(round(deep[0] - slope * tokens[0]), round(slope))


def preset_cells() -> list[RunConfig]:
    """Each preset, its activations kept: with recomputation the last block and the head outweigh a few layers."""
    settings: dict[str, Any] = {
        "data": "ultrafeedback",
        "calibration": {"enabled": True, "look_every": 0},
        "execution": {"gpus_per_worker": 1, "gradient_checkpointing": False},
    }
    return [RunConfig.model_validate({**settings, "model": name}) for name in PRESETS]


def preset_peaks(say: Callable[[str], None]) -> dict[str, dict[str, float]]:
    """By key, as peaks.json keeps them."""
    found: dict[str, dict[str, float]] = {}
    for config in preset_cells():
        key = peak_key(config)
        if key not in found:
            peak = measured_peak(config)
            found[key] = {"fixed": peak.fixed, "per_token": peak.per_token}
            say(f"{key}: {peak.fixed / 1e9:.2f} GB and {peak.per_token / 1e3:.0f} kB a token")
    return found
