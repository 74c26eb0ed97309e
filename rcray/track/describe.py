"""How a run is described to a tracker: a name a person can read, tags to filter by, flat params, allowed names."""

import re
from collections.abc import Mapping

from rcray.config import RunConfig, flatten
from rcray.records.states import State
from rcray.secrets import redact
from rcray.sweep.grid import Cell
from rcray.track.tracker import LONGEST_NAME, LONGEST_PARAM, LONGEST_TAG, TrackerState

_NOT_ALLOWED = re.compile(r"[^\w\-. :/]")
_CUT = " [cut]"

PARENT = "mlflow.parentRunId"
STATES: dict[State, TrackerState] = {
    State.PENDING: "SCHEDULED",
    State.RUNNING: "RUNNING",
    State.OK: "FINISHED",
    State.FAILED: "FAILED",
    State.OOM: "FAILED",
    State.DEGENERATE: "FAILED",
}


def allowed_name(name: str) -> str:
    """A name MLflow takes for a param, tag or curve."""
    return _NOT_ALLOWED.sub("_", redact(name))[:LONGEST_NAME]


def params_of(config: RunConfig) -> dict[str, str]:
    """Every setting by its dotted name, as in `--set`."""
    flat = flatten(config.model_dump(mode="json"))
    return {allowed_name(path): _cut(redact(str(value)), LONGEST_PARAM) for path, value in flat.items()}


def tags_of(cell: Cell) -> dict[str, str]:
    """What people filter and group by."""
    config, calibration = cell.config, cell.config.calibration
    return clean_tags(
        {
            "model": config.model.label,
            "method": config.model.method,
            "data": config.data.name,
            "objective": config.objective.name,
            "family": config.objective.traits.family,
            "rc": "on" if calibration.enabled else "off",
            "ema_beta": str(calibration.ema_beta) if calibration.averages else "none",
            "epochs": str(config.train.epochs),
            "seed": str(config.train.seed),
            "fidelity": config.fidelity,
            "likelihood": config.likelihood,
            "rcray.kind": "cell",
            "rcray.run_id": cell.run_id,
        }
    )


def clean_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """Tags without secrets and within MLflow's limits."""
    return {allowed_name(name): _cut(redact(value), LONGEST_TAG) for name, value in tags.items()}


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - len(_CUT)] + _CUT
