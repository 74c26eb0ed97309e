"""The loop of docs/own-loop.md, by the update, as printed: it keeps the winner that plain DPO loses."""

import copy
import shutil
from types import SimpleNamespace

import torch
import torch.nn.functional as F

from rcray.config import run_id
from rcray.data.batch import collate
from rcray.models.likelihood import side_logps
from rcray.store import Store
from rcray.train.loop import Job, prepare
from tests.contract.pages import blocks
from tests.small_runs import small_config

STEPS = 60
PRINTED = next(block for block in blocks("python") if "in batches():" in block)


def likelihoods(model, batch):
    return [side_logps(model, side).sums for side in (batch.chosen, batch.rejected)]


def moved_by(loop, store):
    """What a loop does to the mean likelihoods of 64 held-out pairs, from the warmed-up tiny model."""
    config = small_config(
        data={"train_pairs": 8 * STEPS, "eval_pairs": 64},
        train={"seed": 11, "probe_pairs": 64},
        calibration={"look_every": 0},
    )
    training = prepare(Job(config, store, run_id(config), "a"), 0, 1)
    model = training.state.policy.model
    start = copy.deepcopy(model)

    def batches():
        for step in range(STEPS):
            rows = [row for part in training.schedule.micro_batches(step) for row in part]
            batch = collate(training.data.pairs, rows)
            with torch.no_grad():
                ref_w, ref_l = likelihoods(start, batch)

            def dpo(z_w, z_l, margin=ref_w - ref_l):
                return -F.logsigmoid(0.1 * (z_w - z_l - margin))

            yield *likelihoods(model, batch), dpo

    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, weight_decay=0.0)
    plain = SimpleNamespace(calibrate=lambda loss_fn, z_w, z_l, calibrator: SimpleNamespace(loss=loss_fn(z_w, z_l)))
    exec(loop, {"optimizer": optimizer, "batches": batches, "plain": plain})
    probe = collate(training.probe.data.pairs, range(len(training.probe.data.pairs)))
    with torch.no_grad():
        before, after = (likelihoods(m, probe) for m in (start, model))
    return [float((a - b).mean()) for b, a in zip(before, after, strict=True)]


def test_the_winner_is_kept(tmp_path, model_cache):
    store = Store(tmp_path)
    shutil.copytree(model_cache, store.cache)
    plain = moved_by(PRINTED.replace("= calibrate(", "= plain.calibrate("), store)
    steered = moved_by(PRINTED, store)
    print(f"plain {plain}, steered {steered}")
    assert plain[0] < -0.5 and plain[1] < plain[0]
    assert steered[0] > 0 > steered[1]
