"""Adapters: the same training, carried out differently, is the same training."""

import pytest
import torch
from safetensors.torch import load_file

from rcray.config import run_id
from rcray.data.batch import collate
from rcray.models.load import load_model
from rcray.store import Store
from rcray.train.extra_gradients import pair_logps
from rcray.train.launch import launch
from rcray.train.loop import Job, prepare
from rcray.train.step import optimizer_step
from tests.small_runs import Killed, kill_at, records, small_config


def adapted(method="lora", objective="dpo", **settings):
    return small_config(
        model={"method": method, "lora": {"r": 4, "alpha": 8}},
        objective=objective,
        calibration={"enabled": True, **settings.pop("calibration", {})},
        train={"learning_rate": 1e-3, **settings.pop("train", {})},
        **settings,
    )


def weights(store, config):
    return load_file(store.run(run_id(config)).final / "adapter_model.safetensors")


@pytest.mark.parametrize(("method", "objective"), [("lora", "dpo"), ("lora", "tdpo"), ("qlora", "dpo")])
def test_resumed_equals_uninterrupted_bit_for_bit(store, tmp_path, method, objective):
    config = adapted(method, objective)
    assert config.calibration.scores == "adapters"
    launch(config, store)

    other = Store.open(tmp_path / "interrupted")
    (other.root / "cache").symlink_to(store.cache)
    run = other.run(run_id(config))
    for stop_at in (5, 7):
        with pytest.raises(Killed):
            launch(config, other, on_step=kill_at(stop_at))
        (newest,) = run.checkpoints.glob(f"step-{3 * (stop_at // 3):08d}")
        assert all(".lora_" in name for name in load_file(newest / "model.safetensors")), "adapters alone"
    launch(config, other)

    expected, got = weights(store, config), weights(other, config)
    assert expected.keys() == got.keys()
    assert all(torch.equal(expected[name], got[name]) for name in expected)
    assert any(tensor.abs().max() > 0 for name, tensor in expected.items() if "lora_B" in name)
    assert records(store, config).equals(records(other, config))


def test_eight_micro_batches_of_one_equal_one_of_eight(store, tmp_path):
    results = []
    for micro in (1, 8):
        config = adapted(calibration={"granularity": "step"}, train={"micro_batch_size": micro})
        place = Store.open(tmp_path / f"micro-{micro}")
        (place.root / "cache").symlink_to(store.cache)
        launch(config, place)
        results.append(records(place, config))
    for name in ("loss", "z_w", "log_r", "log_r_star", "rho", "log_alpha", "grad_norm"):
        assert (results[0][name] - results[1][name]).abs().max() < 1e-3, name


@pytest.mark.parametrize("objective", ["tdpo", "ti-dpo"])
def test_the_disabled_adapter_is_the_frozen_copy(store, objective):
    """The live reference of a LoRA run is the same model with its adapter off: no second copy, same numbers."""
    config = adapted(objective=objective)
    training = prepare(Job(config, store, run_id(config), "a"), 0, 1)
    state = training.state
    assert state.policy.live_reference is state.policy.model
    batches = [collate(training.data.pairs, index) for index in training.schedule.micro_batches(0)]
    for step in (1, 2):
        optimizer_step(state, batches, step)  # moves the adapter off zero
    own = pair_logps(state.policy, batches[0])
    plain = config.model.model_copy(update={"method": "full"})
    state.policy.live_reference = load_model(plain, store.cache).model.eval()
    copy = pair_logps(state.policy, batches[0])
    for name, value in vars(copy).items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(getattr(own, name), value), name
    assert own.ref_w is not None and not torch.equal(own.z_w, own.ref_w)
