"""Fidelity presets: the paper's equations, or the authors' published code.

A preset only fills in what an experiment file leaves open; anything written there wins. The resolved
values are part of a run's identity, so two presets never share a cell by accident.
"""

from collections.abc import Mapping
from typing import Any, Literal

Fidelity = Literal["paper", "official"]

#: Settings under `run:` that each preset decides, by dotted path.
PRESETS: Mapping[str, Mapping[str, Any]] = {
    # The equations: z is the sum of token log-probabilities and the appendix's dynamic clipping is on. Scores are
    # defined per triplet and smoothed over triplets, so the statistics are those of small micro-batches: the mean
    # score of a large batch loses what is particular to each pair.
    "paper": {
        "likelihood": "sum",
        "calibration.clip": True,
        "calibration.granularity": "microbatch",
        "data.add_bos": False,
        "data.empty_system": False,
        "data.score_header": False,
        "data.answer_room": "rest",
    },
    # The authors' code: per-token means, the clip commented out, calibration once per micro-batch. Their prompts start
    # with BOS and an empty system turn, the assistant's header is scored, and an answer that is too long keeps
    # max_length - max_prompt_length tokens.
    "official": {
        "likelihood": "mean",
        "calibration.clip": False,
        "calibration.granularity": "microbatch",
        "data.add_bos": True,
        "data.empty_system": True,
        "data.score_header": True,
        "data.answer_room": "fixed",
    },
}

#: Objective constants of the authors' code. beta is 1.0 for Pythia and 2.0 for Mistral and Qwen there; the
#: experiment files of those models say so.
OFFICIAL_CONSTANTS: Mapping[str, Mapping[str, Any]] = {
    "dpo": {"beta": 1.0},
    "ipo": {"tau": 0.1},
    "simpo": {"beta": 1.0, "gamma": 1.0},
    "cpo": {"beta": 0.1, "lam": 1.0},
    "slic-hf": {"gamma": 1.0, "lam": 0.1},
    # d_l grows to about 2e6 in their loss, and is cut to 20 where the calibration reads it.
    "ddro": {"max_incentive": 2e6, "rc_max_incentive": 20.0},
    "ti-dpo": {"beta": 1.0, "importance": "probability", "triplet": False},
}
