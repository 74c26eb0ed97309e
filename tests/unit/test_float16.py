"""float16: loss scaling changes nothing where nothing overflows, and an overflow costs one update, in the open."""

import math

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file

from rcray.config import build_run, run_id
from rcray.errors import ConfigError
from rcray.store import Store
from rcray.train import scaling, setup
from rcray.train.launch import launch
from rcray.train.look import Looks
from rcray.train.scaling import OVERFLOW, LossScaling
from tests.small_runs import Killed, kill_at, records, small_config

UPDATE = {"enabled": True, "kind": "update", "look_every": 1}
AUTOCAST = {"train": {"precision": "float16"}}
QLORA = {
    "model": {
        "name": "tiny-neox", "method": "qlora", "lora": {"r": 4, "alpha": 8}, "dtype": "float16"
    }
}  # fmt: skip


def weights(store, config):
    final = store.run(run_id(config)).final
    return load_file(next(final.glob("*model.safetensors")))


def other_store(store, tmp_path, name):
    other = Store.open(tmp_path / name)
    (other.root / "cache").symlink_to(store.cache)
    return other


@pytest.mark.parametrize(("method", "calibrated"), [("full", True), ("lora", False)])
def test_a_scaled_step_is_the_same_step(store, tmp_path, monkeypatch, method, calibrated):
    """Without float16 nothing overflows or vanishes: seeds times 2^16, gradients divided by it, the same bits."""
    config = small_config(model={"name": "tiny-neox", "method": method}, calibration=calibrated)
    launch(config, store)
    other = other_store(store, tmp_path, "scaled")
    monkeypatch.setattr(type(config), "computes_in_float16", True)
    launch(config, other)
    plain, scaled = weights(store, config), weights(other, config)
    assert all(torch.equal(plain[name], scaled[name]) for name in plain)
    assert records(store, config)["grad_norm"].tolist() == records(other, config)["grad_norm"].tolist()


@pytest.mark.parametrize("settings", [AUTOCAST, QLORA], ids=["autocast", "qlora"])
def test_a_run_in_float16_follows_the_one_in_float32(store, settings):
    half = small_config(calibration=True, **settings)
    assert half.computes_in_float16
    wide_model = {**settings["model"], "dtype": "float32"} if "model" in settings else {}
    wide = small_config(calibration=True, model={"name": "tiny-neox", **wide_model})
    assert not wide.computes_in_float16
    for config in (half, wide):
        assert launch(config, store).status == "ok"
    got, expected = records(store, half), records(store, wide)
    assert (got["skipped"] == "").all()
    for column in ("z_w", "z_l", "grad_norm"):
        assert got[column].tolist() == pytest.approx(expected[column].tolist(), rel=2e-2), column
        assert got[column].tolist() != expected[column].tolist(), "it was computed in float16"


def test_an_overflow_costs_one_update_and_is_recorded(store, monkeypatch):
    monkeypatch.setattr(setup, "LossScaling", lambda: LossScaling(2.0**24))
    config = small_config(train={"precision": "float16", "probe_every": 1})
    launch(config, store)
    rows = records(store, config)
    lost = rows["skipped"] == OVERFLOW
    assert lost.iloc[0]
    assert not rows.loc[lost, "grad_norm"].map(math.isfinite).any()
    moved = rows["probe_z_w"].diff().shift(-1)[:-1] != 0  # the probe is looked at before a step
    assert moved.tolist() == (~lost)[:-1].tolist(), "a lost step makes no update, the others do"
    assert (~lost).any(), "the scale was halved until it held"
    assert rows["learning_rate"].gt(0).all()


SEEN_BY_LOOKS = ("predicted_dz_w", "predicted_dz_l", "next_dz_w", "next_dz_l", "true_band_lower", "true_band_upper")


def test_a_scaled_look_is_the_same_look(store, tmp_path, monkeypatch):
    config = small_config(calibration=UPDATE)
    launch(config, store)
    other = other_store(store, tmp_path, "scaled")
    monkeypatch.setattr(type(config), "computes_in_float16", True)
    launch(config, other)
    plain, scaled = records(store, config), records(other, config)
    for column in (*SEEN_BY_LOOKS, "log_alpha"):
        assert plain[column].equals(scaled[column]), column


def first_look(store, monkeypatch, config):
    """The scores of a run's first look."""
    seen, take = [], Looks.take

    def take_one(looks, fresh):
        seen.append(take(looks, fresh))
        raise Killed

    monkeypatch.setattr(Looks, "take", take_one)
    with pytest.raises(Killed):
        launch(config, store)
    monkeypatch.undo()
    return torch.cat([seen[0].score_w, seen[0].score_l])


@pytest.mark.parametrize("settings", [AUTOCAST, QLORA], ids=["autocast", "qlora"])
def test_a_look_in_float16_sees_what_one_in_float32_does(store, monkeypatch, settings):
    wide_model = {**settings["model"], "dtype": "float32"} if "model" in settings else {}
    half, wide = (
        small_config(likelihood="mean", calibration={"look_pairs": 32}, **each)
        for each in (settings, {"model": {"name": "tiny-neox", **wide_model}})
    )
    expected = first_look(store, monkeypatch, wide)
    seen = first_look(store, monkeypatch, half)
    assert 0 < (seen - expected).norm() < 3e-2 * expected.norm()


def test_a_look_that_overflows_is_taken_again(store, tmp_path, monkeypatch):
    """At half the scale, until it holds; the scale is kept, and what is seen does not depend on where it began."""
    config = small_config(**AUTOCAST, calibration=UPDATE)
    launch(config, store)
    other = other_store(store, tmp_path, "steep")
    scales = []

    def steep(*args, **kwargs):
        kwargs["scaling"] = LossScaling(2.0**24)
        scales.append(kwargs["scaling"])
        return Looks(*args, **kwargs)

    monkeypatch.setattr(setup, "Looks", steep)
    launch(config, other)
    assert 1 <= scales[0].scale < 2.0**24
    usual, steep_rows = records(store, config), records(other, config)
    assert usual["predicted_dz_w"].notna().sum() == len(usual) - 1
    for column in SEEN_BY_LOOKS:
        assert steep_rows[column].tolist() == pytest.approx(usual[column].tolist(), rel=5e-2, abs=1e-2, nan_ok=True)


def test_a_step_that_overflows_says_nothing_of_its_band(store, monkeypatch):
    """The look itself is sound: what it predicted stays, and calibration holds its factor."""
    monkeypatch.setattr(setup, "LossScaling", lambda: LossScaling(2.0**24))
    config = small_config(calibration=UPDATE, train={"precision": "float16"})
    launch(config, store)
    rows = records(store, config)
    lost = rows["skipped"] == OVERFLOW
    assert lost.any() and (~lost).any()
    assert rows.loc[lost, ["next_dz_w", "true_band_lower", "true_band_upper"]].isna().all(axis=None)
    assert rows.loc[~lost, "next_dz_w"].notna().all()
    assert rows["predicted_dz_w"].notna()[1:].all() and rows["log_alpha"].notna().all()


@pytest.mark.parametrize("calibration", [True, UPDATE], ids=["published", "update"])
def test_resumed_equals_uninterrupted(store, tmp_path, monkeypatch, calibration):
    monkeypatch.setattr(scaling, "GROWTH_INTERVAL", 2)  # so that the scale itself must be restored
    config = small_config(**AUTOCAST, calibration=calibration)
    launch(config, store)
    other = other_store(store, tmp_path, "interrupted")
    with pytest.raises(Killed):
        launch(config, other, on_step=kill_at(5))
    launch(config, other)
    whole, resumed = weights(store, config), weights(other, config)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert records(store, config).equals(records(other, config))


def test_the_scale_falls_on_overflow_and_grows_with_time():
    held = LossScaling(4.0)
    assert not held.settle(math.inf) and held.scale == 2
    assert not held.settle(math.nan) and held.scale == 1
    assert held.settle(math.inf), "at 1 it is no matter of scale: the run ends as degenerate"
    for _ in range(scaling.GROWTH_INTERVAL):
        assert held.settle(1.0)
    assert (held.scale, held.sound_steps) == (2, 0)
    again = LossScaling()
    again.restore(held.state())
    assert again == held


def test_float16_weights_are_not_trained_in_full():
    with pytest.raises(ValidationError, match=r"float16.*train\.precision: float16"):
        small_config(model={"name": "tiny-neox", "dtype": "float16"})


@pytest.mark.parametrize("name", ["pythia-2.8b", "mistral-7b", "qwen2.5-7b"])
def test_official_qlora_computes_in_float16(name):
    official, paper = (
        build_run({"model": name, "fidelity": preset}, {}, "t").model for preset in ("official", "paper")
    )
    assert (official.dtype, official.quantization.compute_dtype) == ("float16", "float16")
    assert (paper.dtype, paper.quantization.compute_dtype) == ("bfloat16", "bfloat16")
    assert (
        build_run({"model": {"name": name, "method": "full"}, "fidelity": "official"}, {}, "t").model.dtype != "float16"
    )


def test_official_410m_is_float32_under_bfloat16_autocast():
    official, paper = (build_run({"model": "pythia-410m", "fidelity": p}, {}, "t") for p in ("official", "paper"))
    assert (official.model.dtype, official.train.precision) == ("float32", "bfloat16")
    assert (paper.model.dtype, paper.train.precision) == ("float32", "auto")
    written = build_run({"model": "pythia-410m", "fidelity": "official", "train": {"precision": "float32"}}, {}, "t")
    assert written.compute_dtype == "float32"


@pytest.mark.parametrize(
    ("model", "train", "on_cpu", "on_gpu"),
    [
        ("pythia-410m", {}, "float32", "bfloat16"),
        ("pythia-410m", {"precision": "float32"}, "float32", "float32"),
        ("pythia-410m", {"precision": "tf32"}, "float32", "float32"),
        ({"name": "pythia-410m", "dtype": "bfloat16"}, {}, "bfloat16", "bfloat16"),
        ("smollm2-135m", {}, "float32", "bfloat16"),
        ("mistral-7b", {}, "bfloat16", "bfloat16"),
        ({"name": "tiny-neox", "method": "qlora"}, {}, "float32", "float32"),
    ],
)
def test_float32_weights_are_multiplied_in_bfloat16_on_a_gpu_unless_asked_otherwise(model, train, on_cpu, on_gpu):
    runs = [
        build_run({"model": model, "train": train, "execution": {"gpus_per_worker": gpus}}, {}, "t") for gpus in (0, 1)
    ]
    assert [run.compute_dtype for run in runs] == [on_cpu, on_gpu]
    assert run_id(runs[0]) == run_id(runs[1])


def test_asking_for_float32_is_another_run_and_the_older_name_is_not():
    asked = {p: build_run({"train": {"precision": p}}, {}, "t") for p in ("auto", "weights", "float32")}
    assert run_id(asked["auto"]) == run_id(asked["weights"]) == run_id(build_run({}, {}, "t"))
    assert run_id(asked["float32"]) != run_id(asked["auto"])
    for model in ({"name": "mistral-7b"}, {"name": "tiny-neox", "dtype": "bfloat16"}):
        with pytest.raises(ConfigError, match=r"'float32' and model.* 'bfloat16' ask for two precisions"):
            build_run({"model": model, "train": {"precision": "float32"}}, {}, "t")


def test_a_dtype_that_is_written_is_computed_in():
    model = build_run({"model": {"name": "mistral-7b", "dtype": "float32"}, "fidelity": "official"}, {}, "t").model
    assert model.quantization.compute_dtype == "bfloat16", "as the model's own preset says"
