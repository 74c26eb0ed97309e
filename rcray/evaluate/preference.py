"""Preference metrics on held-out pairs: what training did to the chosen and the rejected answers.

Legend: z~ = z of the trained model minus z of the model it started from, per held-out pair, in the run's reduction;
m~ = z~_w - z~_l. Intervals are 95% percentile bootstrap over pairs, seeded.
"""

import math
from typing import Any

import numpy as np
import torch

from rcray.config import RunConfig, run_id
from rcray.data.prepare import prepare_data
from rcray.errors import DegenerateRunError
from rcray.models.load import load_model
from rcray.models.reference import answer_logps, reference_logps
from rcray.models.trained import load_trained
from rcray.store import Store, read_json, write_json

BENCHMARK = "preference"
_RESAMPLES = 1000


def evaluate_run(config: RunConfig, store: Store) -> dict[str, Any]:
    """Measures a finished run once; the rows are kept in its directory."""
    run = store.run(run_id(config))
    kept = read_json(run.evaluation, default={})
    rows = [row for row in kept.get("rows", ()) if row["benchmark"] != BENCHMARK]
    if len(rows) < len(kept.get("rows", ())):
        return kept
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    base = load_model(config.model, store.cache, device=device)
    data = prepare_data(config.data, base.tokenizer, store.cache).held_out
    reference = reference_logps(base, data, store.cache, device)
    del base  # one model at a time on the device
    trained = load_trained(run.final, store.cache, device=device).model
    found = answer_logps(trained, data, range(len(data.pairs)), device)
    shift_w, shift_l = found.sum_w - reference.sum_w, found.sum_l - reference.sum_l
    if config.likelihood == "mean":
        shift_w, shift_l = shift_w / reference.n_w, shift_l / reference.n_l
    content = {"rows": [*rows, *preference_rows(shift_w.numpy(), shift_l.numpy())]}
    write_json(run.evaluation, content)
    return content


def preference_rows(shift_w: np.ndarray, shift_l: np.ndarray) -> list[dict[str, Any]]:
    """Rows of value, standard error and interval; a model with a non-finite likelihood has no score."""
    margin = shift_w - shift_l
    samples = {
        "accuracy": (margin > 0).astype(float),
        "margin": margin,
        "drift_w": shift_w,
        "drift_l": shift_l,
    }
    if not np.isfinite(margin).all():
        bad = int((~np.isfinite(margin)).sum())
        raise DegenerateRunError(f"{bad} of {len(margin)} held-out pairs have a non-finite likelihood")
    generator = np.random.default_rng(0)
    draws = generator.integers(0, len(margin), size=(_RESAMPLES, len(margin)))
    rows = []
    for name, values in samples.items():
        low, high = np.quantile(values[draws].mean(axis=1), (0.025, 0.975))
        rows.append(
            {
                "benchmark": BENCHMARK,
                "metric": name,
                "value": float(values.mean()),
                "stderr": float(values.std(ddof=1) / math.sqrt(len(values))),
                "n": len(values),
                "ci_low": float(low),
                "ci_high": float(high),
            }
        )
    return rows
