"""Incentives, scores, the disentanglement band and reward calibration: torch only.

In a loop of your own::

    calibrator = Calibrator()
    result = calibrate(loss_fn, z_w, z_l, parameters=[model.lm_head.weight], calibrator=calibrator)
    result.loss.mean().backward()

By the update that the optimizer really makes::

    steering = UpdateSteering(optimizer)
    result = calibrate(loss_fn, z_w, z_l, calibrator=steering)
"""

from rcray.calibration.band import (
    Band,
    Calibration,
    Calibrator,
    Scores,
    Statistics,
    band,
    observe,
    statistics,
)
from rcray.calibration.pathway import pathway_of, predicted_pathway, rates
from rcray.calibration.scores import Reduce, plain_scores, score_parameters
from rcray.calibration.steering import Steered, UpdateSteering
from rcray.calibration.wrap import (
    Calibrated,
    calibrate,
    mean_incentives,
    normalised_gradient,
    scale_gradient,
    summarise,
)
from rcray.objectives.base import Incentives, incentives

__all__ = [
    "Band",
    "Calibrated",
    "Calibration",
    "Calibrator",
    "Incentives",
    "Reduce",
    "Scores",
    "Statistics",
    "Steered",
    "UpdateSteering",
    "band",
    "calibrate",
    "incentives",
    "mean_incentives",
    "normalised_gradient",
    "observe",
    "pathway_of",
    "plain_scores",
    "predicted_pathway",
    "rates",
    "scale_gradient",
    "score_parameters",
    "statistics",
    "summarise",
]
