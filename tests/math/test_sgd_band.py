"""The theorem in a real run: with plain gradient descent and scores over everything, the paper's band is right."""

import shutil

import pytest
import torch

from rcray.calibration import pathway_of
from rcray.config import run_id
from rcray.data.batch import collate
from rcray.models.likelihood import side_logps
from rcray.store import Store
from rcray.train.loop import Job, prepare
from rcray.train.record import row_of
from rcray.train.step import optimizer_step
from tests.small_runs import small_config

STEPS = 30
CLEAR = 0.1  # the smaller realised move over the larger one: below, a pathway hangs on what hardly moved


def mean_likelihoods(model, batches):
    with torch.no_grad():
        sides = [[side_logps(model, getattr(batch, side)).sums for batch in batches] for side in ("chosen", "rejected")]
    return [float(torch.cat(side).double().mean()) for side in sides]


@pytest.mark.parametrize("calibrated", [False, True])
@pytest.mark.parametrize("objective", ["dpo", "cpo"])
def test_the_papers_band_predicts_a_batch_under_plain_descent(tmp_path, model_cache, objective, calibrated):
    store = Store(tmp_path)
    shutil.copytree(model_cache, store.cache)
    config = small_config(
        objective={"name": objective},
        data={"train_pairs": STEPS * 8},
        train={"optimizer": "sgd", "learning_rate": 1e-3},
        calibration={"enabled": calibrated, "scores": "full", "granularity": "step", "look_every": 0},
    )
    training = prepare(Job(config, store, run_id(config), "a"), 0, 1)
    model, right = training.state.policy.model, []
    for step in range(STEPS):
        batches = [collate(training.data.pairs, rows) for rows in training.schedule.micro_batches(step)]
        before = mean_likelihoods(model, batches)
        row = row_of(optimizer_step(training.state, batches, step + 1))
        moved = [after - b for after, b in zip(mean_likelihoods(model, batches), before, strict=True)]
        smaller, larger = sorted(map(abs, moved))
        if smaller >= CLEAR * larger:
            right.append(row["pathway_head"] == pathway_of(*moved))
    assert len(right) >= STEPS // 2
    assert sum(right) >= 0.95 * len(right), f"{sum(right)} of {len(right)}"
