"""The same training, carried out differently, is the same training."""

from contextlib import nullcontext

import pytest
import torch
from safetensors.torch import load_file

from rcray.calibration import Calibrator, calibrate
from rcray.config import run_id
from rcray.data.batch import collate
from rcray.data.layout import CHOSEN, REJECTED, packed, two_rows, worth_packing
from rcray.models.blocks import last_adapter_block
from rcray.models.capabilities import capabilities_of
from rcray.models.forward import answer_logps, unfolding
from rcray.objectives import PairLogps, build_objective
from rcray.store import Store
from rcray.train.launch import launch
from rcray.train.loop import Job, prepare
from tests.small_runs import Killed, kill_at, records, small_config


def weights(store, config):
    (saved,) = store.run(run_id(config)).final.glob("*model.safetensors")
    return load_file(saved)


@pytest.mark.parametrize(
    ("objective", "kind", "method"),
    [
        ("cpo", "published", "full"),
        ("dil-bce", "published", "full"),
        ("tdpo", "published", "full"),
        ("dpo", "update", "full"),
        ("ti-dpo", "update", "full"),
        ("dpo", "update", "lora"),
        ("simpo", "update", "qlora"),
    ],
)
def test_resumed_equals_uninterrupted_bit_for_bit(store, tmp_path, model_cache, objective, kind, method, monkeypatch):
    monkeypatch.setattr("rcray.config.calibration.FIRST_LOOKS", 2)  # so that a run is resumed between two looks
    config = small_config(
        objective=objective,
        model={"method": method, "lora": {"r": 4, "alpha": 8}} if method != "full" else {},
        calibration={"enabled": True, "kind": kind, "look_every": 4},
        train={"schedule": "cosine", "warmup_steps": 2} if method != "full" else {},
    )
    launch(config, store)

    other = Store.open(tmp_path / "interrupted")
    (other.root / "cache").symlink_to(store.cache)
    for stop_at in (5, 7):
        with pytest.raises(Killed):
            launch(config, other, on_step=kill_at(stop_at))
        assert other.run(run_id(config)).read_status().step == 3 * (stop_at // 3)
    launch(config, other)

    expected, got = weights(store, config), weights(other, config)
    assert expected.keys() == got.keys()
    assert all(torch.equal(expected[name], got[name]) for name in expected)
    assert records(store, config).equals(records(other, config))
    assert records(other, config)["step"].tolist() == list(range(1, 9))


def test_a_finished_run_is_left_alone(store):
    config = small_config()
    launch(config, store)
    final = store.run(run_id(config)).final / "model.safetensors"
    before = final.stat().st_mtime_ns
    launch(config, store, on_step=lambda row: pytest.fail("trained again"))
    assert final.stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("objective", "kind"), [("cpo", "published"), ("dil-lsif", "published"), ("dpo", "update"), ("simpo", "update")]
)
def test_eight_micro_batches_of_one_equal_one_of_eight(store, tmp_path, objective, kind):
    """With statistics over the whole step, how it is cut into micro-batches does not matter."""
    results, foreseen = [], kind == "update"
    for micro in (1, 8):
        config = small_config(
            objective=objective,
            calibration={"enabled": True, "kind": kind, "granularity": "step"},
            # Adam's first update is the sign of a gradient, which its last bit may turn: where such updates are also
            # foreseen, two equal runs part within a few steps. Descent has no such edge.
            train={"micro_batch_size": micro, **({"optimizer": "sgd", "learning_rate": 0.01} if foreseen else {})},
        )
        place = Store.open(tmp_path / f"micro-{micro}")
        (place.root / "cache").symlink_to(store.cache)
        launch(config, place)
        results.append((weights(place, config), records(place, config)))
    (weights_1, records_1), (weights_8, records_8) = results
    for name in ("loss", "z_w", "log_r", "log_r_star", "rho", "log_alpha", "grad_norm"):
        assert (records_1[name] - records_8[name]).abs().max() < (1e-3 if name == "log_alpha" else 1e-4), name
    # Adam divides by the root of tiny second moments, so weights agree less tightly than gradients.
    assert max((weights_1[n] - weights_8[n]).abs().max() for n in weights_1) < 1e-4


def shares(config, batch):
    return {"on": True, "off": False, "auto": worth_packing(batch)}[config.execution.prompt_sharing]


def plain_training(training, calibrator=None):
    """The textbook loop: mean loss, backward through everything, clip, step."""
    state, config = training.state, training.job.config
    objective = build_objective(config.objective)
    model, optimizer = state.policy.model, state.update.optimizer
    micro = config.train.batch_size // config.train.micro_batch_size
    for step in range(training.schedule.total_steps):
        optimizer.zero_grad()
        for index in training.schedule.micro_batches(step):
            batch = collate(training.data.pairs, index)
            layout = (packed if shares(config, batch) else two_rows)(batch)
            block = last_adapter_block(model)  # packed rows are unfolded there, so that adapters part by side
            with unfolding(model, block.block, layout) if block else nullcontext():
                logp, _ = answer_logps(model, layout, mlp=capabilities_of(model).short_mlp)
            z_w, z_l = (layout.matrix(logp, side).sum(-1) for side in (CHOSEN, REJECTED))
            ref = state.policy.reference
            ref_w, ref_l = (s[batch.index].float() if ref else None for s in (ref.sum_w, ref.sum_l))
            pairs = PairLogps(z_w, z_l, *layout.counts, ref_w, ref_l)
            if calibrator is None:
                loss = objective.loss(pairs)
            else:
                head = [model.get_output_embeddings().weight]
                loss = calibrate(
                    objective, pairs.z_w, pairs.z_l, parameters=head, calibrator=calibrator, pairs=pairs
                ).loss
            (loss.mean() / micro).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.train.clip_norm)
        optimizer.step()
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.parametrize(("objective", "sharing"), [("dpo", "on"), ("dpo", "off"), ("dil-bce", "auto")])
@pytest.mark.parametrize("method", ["full", "lora"])
def test_without_calibration_it_is_the_plain_objective_bit_for_bit(store, objective, method, sharing):
    config = small_config(
        objective=objective,
        model={"method": method, "lora": {"r": 4, "alpha": 8}},
        execution={"prompt_sharing": sharing},
        calibration={"look_every": 0},
    )
    ours = prepare(Job(config, store, run_id(config), "a"), 0, 1)
    ours.start()
    ours.run()
    expected = plain_training(prepare(Job(config, store, run_id(config), "b"), 0, 1))
    got = ours.state.policy.model.state_dict()
    assert all(torch.equal(expected[name], got[name]) for name in expected)


def test_with_calibration_it_is_the_published_wrapper(store):
    """The seeds of the backward scaled by alpha equal the paper's stop-gradient construction."""
    config = small_config(objective="dpo", calibration={"enabled": True, "granularity": "microbatch"})
    ours = prepare(Job(config, store, run_id(config), "a"), 0, 1)
    ours.start()
    ours.run()
    calibrator = Calibrator(config.calibration.ema_beta, clip=config.calibration.clip)
    expected = plain_training(prepare(Job(config, store, run_id(config), "b"), 0, 1), calibrator)
    got = ours.state.policy.model.state_dict()
    # Adam divides by the root of tiny second moments; tests/math/test_one_backward.py compares gradients to 1e-9.
    assert max((expected[name] - got[name]).abs().max() for name in expected) < 1e-4
    assert ours.state.calibrator.ema == pytest.approx(calibrator.ema, abs=1e-5)
