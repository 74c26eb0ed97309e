"""Runs of a few steps on the tiny model."""

from rcray.config import RunConfig

SMALL = {
    "data": {"train_pairs": 64, "eval_pairs": 16},
    "train": {
        "batch_size": 8,
        "micro_batch_size": 4,
        "learning_rate": 1e-4,
        "probe_every": 3,
        "probe_pairs": 8,
    },
    "execution": {"checkpoint_every": 3},
}


def small_config(**settings: object) -> RunConfig:
    """A run of 8 steps; `settings` are sections merged over the small defaults."""
    content: dict = {name: dict(section) for name, section in SMALL.items()}
    for name, value in settings.items():
        content[name] = {**content.get(name, {}), **value} if isinstance(value, dict) else value
    return RunConfig.model_validate(content)
