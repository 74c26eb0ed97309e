"""rcray: Ray sweeps over preference objectives, the disentanglement band, and reward calibration.

The names below are the core's: they need torch, pydantic and PyYAML, no Ray and no transformers, and each is imported
when it is first asked for. Everything else is the command line's, `rcray --help`.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"  # the one place; pyproject.toml reads it from here

if TYPE_CHECKING:
    from rcray.calibration import (
        Band,
        Calibrated,
        Calibration,
        Calibrator,
        Incentives,
        Scores,
        Statistics,
        Steered,
        UpdateSteering,
        calibrate,
        incentives,
        normalised_gradient,
        pathway_of,
        predicted_pathway,
        statistics,
    )
    from rcray.calibration.band import band
    from rcray.config import Experiment, RunConfig, load_experiment, run_id
    from rcray.errors import RcrayError
    from rcray.integrations.trl import CalibratedDPOTrainer
    from rcray.objectives import Objective, PairLogps, TokenLogps, objective

__all__ = [
    "Band",
    "Calibrated",
    "CalibratedDPOTrainer",
    "Calibration",
    "Calibrator",
    "Experiment",
    "Incentives",
    "Objective",
    "PairLogps",
    "RcrayError",
    "RunConfig",
    "Scores",
    "Statistics",
    "Steered",
    "TokenLogps",
    "UpdateSteering",
    "__version__",
    "band",
    "calibrate",
    "incentives",
    "load_experiment",
    "normalised_gradient",
    "objective",
    "pathway_of",
    "predicted_pathway",
    "run_id",
    "statistics",
]


def __getattr__(name: str) -> Any:
    place: Any
    if name not in __all__:
        raise AttributeError(f"module 'rcray' has no attribute {name!r}")
    if name in ("Experiment", "RunConfig", "load_experiment", "run_id"):
        import rcray.config as place
    elif name == "RcrayError":
        import rcray.errors as place
    elif name == "CalibratedDPOTrainer":
        import rcray.integrations.trl as place
    elif name in ("Objective", "PairLogps", "TokenLogps", "objective"):
        import rcray.objectives as place
    else:
        import rcray.calibration as place
    value = getattr(place, name)
    globals()[name] = value  # the next time it is found without asking
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
