"""Configuration: what a run is. Nothing here imports torch, ray or mlflow."""

from rcray.config.identity import content_key, flatten, identity, run_id
from rcray.config.load import build_run, load_experiment, parse_overrides
from rcray.config.schema import Experiment, RunConfig

__all__ = [
    "Experiment",
    "RunConfig",
    "build_run",
    "content_key",
    "flatten",
    "identity",
    "load_experiment",
    "parse_overrides",
    "run_id",
]
