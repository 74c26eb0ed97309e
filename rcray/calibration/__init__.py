"""Incentives, scores, the disentanglement band and reward calibration: torch only.

In a loop of your own::

    calibrator = Calibrator()
    result = calibrate(loss_fn, z_w, z_l, parameters=[model.lm_head.weight], calibrator=calibrator)
    result.loss.mean().backward()
"""

from rcray.calibration.band import Band, Statistics, band, pathway_of, predicted_pathway, rates
from rcray.calibration.calibrator import Calibration, Calibrator, observe, scale_gradient
from rcray.calibration.incentives import Incentives, Reduce, incentives, mean_incentives
from rcray.calibration.scores import Scores, plain_scores, score_parameters, statistics, summarise
from rcray.calibration.wrap import Calibrated, calibrate

__all__ = [
    "Band",
    "Calibrated",
    "Calibration",
    "Calibrator",
    "Incentives",
    "Reduce",
    "Scores",
    "Statistics",
    "band",
    "calibrate",
    "incentives",
    "mean_incentives",
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
