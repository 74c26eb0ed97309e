"""Where prompts repeat, a pair whose prompt was trained on is no fresh pair: neither a look nor the drift counts it."""

import json
import math
import shutil

import pytest
import torch

from rcray.calibration.update import DRIFT_MEMORY
from rcray.config import run_id
from rcray.data.synthetic import generate
from rcray.models.likelihood import side_logps
from rcray.store import Store
from rcray.train.ahead import Ahead
from rcray.train.loop import Job, prepare
from rcray.train.step import optimizer_step
from tests.small_runs import small_config


@pytest.fixture
def training(tmp_path, model_cache):
    """Four answers' pairs to each of sixteen prompts."""
    pairs = list(generate(64, difficulty="medium", seed=0, split="train"))
    rows = [{"prompt": pairs[i % 16][0], "chosen": pairs[i][1], "rejected": pairs[i][2]} for i in range(64)]
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    store = Store(tmp_path / "store")
    shutil.copytree(model_cache, store.cache)
    data = {"name": str(tmp_path / "pairs.jsonl"), "train_pairs": 40, "eval_pairs": 8}
    config = small_config(
        data=data, train={"batch_size": 4}, calibration={"enabled": True, "kind": "update", "look_every": 2}
    )
    return prepare(Job(config, store, run_id(config), "a"), 0, 1)


def test_drift_counts_pairs_whose_prompts_were_not_trained_on(training):
    state, batches = training.state, Ahead(training.state.policy, training.data.pairs, training.schedule)
    counts, drift, weight = [], 0.0, 0.0
    for step in range(6):
        now = batches.at(step)
        fresh = torch.cat([batch.fresh for batch in now])
        with torch.no_grad():
            z_w = torch.cat([side_logps(state.policy.model, batch.chosen).sums for batch in now]).double()
        zt_w = z_w - state.policy.reference.sum_w[torch.cat([batch.index for batch in now])]
        optimizer_step(state, now, step + 1)  # no look
        counts.append(int(fresh.sum()))
        keep = math.exp(-counts[-1] / DRIFT_MEMORY)
        if counts[-1]:
            drift, weight = keep * drift + (1 - keep) * float(zt_w[fresh].mean()), keep * weight + 1 - keep
        assert state.drift.mean.w == pytest.approx(drift / weight, abs=1e-5)
    assert counts[0] == 4 and min(counts) < 4, "prompts repeat here"


def test_looks_prefer_prompts_that_were_not_trained_on(training):
    prompts, plan = training.data.prompts, training.fresh.plan
    order = [row for step in range(10) for part in training.schedule.micro_batches(step) for row in part]
    rows = plan.rows(2)
    trained = set(prompts[order[:16]].flatten().tolist())  # up to the next look, at the fifth step
    unseen = [row for row in order[16:] if not trained & set(prompts[row].tolist())]
    assert 0 < len(unseen) < 24
    assert sum(row in unseen for row in rows) == min(len(rows), len(unseen))
