"""What a run may ask of the loop beside the training itself: all of it leaves the training as it is, or says so."""

import json
import shutil

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file

from rcray.config import run_id
from rcray.errors import ConfigError, StoreError
from rcray.models.precision import Precision
from rcray.models.trained import load_trained
from rcray.store import Store
from rcray.train.dynamics import read_dynamics
from rcray.train.launch import is_finished, launch
from rcray.train.loop import Job, prepare
from rcray.train.profile import describe
from tests.small_runs import Killed, kill_at, records, small_config


def prepared(config, store):
    return prepare(Job(config, store, run_id(config), "a"), 0, 1)


def final_weights(store, config):
    return load_file(store.run(run_id(config)).final / "model.safetensors")


def test_how_a_run_is_carried_out_is_not_part_of_it():
    plain = small_config()
    other = small_config(
        execution={
            "prompt_sharing": "off",
            "gradient_checkpointing": True,
            "keep_best": True,
            "storage": "file:///elsewhere",
        }
    )
    assert run_id(plain) == run_id(other)
    for settings in ({"train": {"optimizer": "adamw8bit"}}, {"train": {"precision": "bfloat16"}}):
        assert run_id(small_config(**settings)) != run_id(plain)
    assert run_id(small_config(calibration={"scores": ["head", "full"]})) != run_id(plain)


def test_head_and_full_are_recorded_side_by_side(store):
    """`scores: [head, full]`: trained on the head's, the band over all parameters beside it."""
    both = small_config(calibration={"enabled": True, "scores": ["head", "full"]})
    full = small_config(calibration={"enabled": True, "scores": "full"})
    assert both.calibration.scores == "head" and both.calibration.record_full
    for config in (both, full):
        launch(config, store)
    beside, alone = records(store, both).iloc[0], records(store, full).iloc[0]
    for name in ("log_s_w", "log_s_l", "rho", "log_r_star", "band_lower", "band_upper"):
        assert beside[f"{name}_full"] == pytest.approx(alone[name], abs=1e-4), name
        assert beside[name] != pytest.approx(alone[name], abs=1e-4), name
    assert records(store, both)["in_band_full"].isin([0.0, 1.0]).all()
    assert records(store, full)["rho_full"].isna().all()


@pytest.mark.parametrize("scores", [["full", "head"], ["head"], ["head", "full", "sketch"]])
def test_a_pair_of_scores_is_one_and_full(scores):
    with pytest.raises(ValidationError, match=r"\[head, full\]"):
        small_config(calibration={"scores": scores})


def test_the_best_model_is_kept(store):
    config = small_config(execution={"keep_best": True}, train={"learning_rate": 3e-3, "schedule": "cosine"})
    launch(config, store)
    run = store.run(run_id(config))
    status = run.read_status()
    assert set(vars(status.best)) == {"ranked", "margin"}
    best = load_trained(run.best, store.cache).model.state_dict()
    assert best.keys() >= load_trained(run.final, store.cache).model.state_dict().keys()


def test_the_best_is_the_best_of_the_checkpoints(store, monkeypatch):
    """Pairs ranked rightly first, margin second; a later model that is worse does not replace it."""
    config = small_config(execution={"keep_best": True})
    training = prepared(config, store)
    seen = iter([[0.5, 1.0], [0.75, 0.2], [0.75, 0.1], [0.7, 9.0]])
    monkeypatch.setattr(training, "_probe", lambda: setattr(training, "standing", next(seen)))
    assert [training._is_best(probed=False) for _ in range(4)] == [True, True, False, False]
    assert training.progress.best == [0.75, 0.2]


def test_a_lost_node_goes_on_from_remote_storage(store, tmp_path):
    """A run killed on one disk is continued on another that shares only the remote storage; bit for bit."""
    uri = (tmp_path / "bucket").as_uri()
    config = small_config(calibration=True, execution={"storage": uri})
    with pytest.raises(Killed):
        launch(config, store, on_step=kill_at(7))
    other = Store.open(tmp_path / "other-node")
    shutil.copytree(store.cache, other.cache)
    steps = []
    launch(config, other, on_step=lambda row: steps.append(row["step"]))
    assert steps == [7, 8], "from the checkpoint after step 6"

    undisturbed = Store.open(tmp_path / "undisturbed")
    shutil.copytree(store.cache, undisturbed.cache)
    plain = small_config(calibration=True)
    launch(plain, undisturbed)
    expected, got = final_weights(undisturbed, plain), final_weights(other, config)
    assert all(torch.equal(expected[name], got[name]) for name in expected)
    assert records(other, config).equals(records(undisturbed, plain))

    third = Store.open(tmp_path / "third-node")
    launch(config, third, on_step=lambda row: pytest.fail("trained again"))
    assert is_finished(third.run(run_id(config)))
    there = tmp_path / "bucket" / "runs" / run_id(config)
    assert not (there / "checkpoints").exists() or not list((there / "checkpoints").rglob("*.safetensors"))
    assert json.loads((there / "status.json").read_text())["status"] == "ok"


def test_storage_that_is_no_uri_is_refused(store):
    with pytest.raises(StoreError, match=r"execution\.storage: 'nowhere://x'"):
        launch(small_config(execution={"storage": "nowhere://x"}), store)


@pytest.mark.parametrize("settings", [{"gradient_checkpointing": True}, {"prompt_sharing": "on"}])
@pytest.mark.parametrize("method", ["full", "lora"])
def test_the_way_it_is_computed_does_not_show(store, tmp_path, settings, method):
    model = {"method": method, "lora": {"r": 4, "alpha": 8}}
    reference = small_config(model=model, calibration=True, execution={"prompt_sharing": "off"})
    launch(reference, store)
    other = Store.open(tmp_path / "other")
    shutil.copytree(store.cache, other.cache)
    config = small_config(model=model, calibration=True, execution=settings)
    launch(config, other)
    expected, got = records(store, reference), records(other, config)
    for name in ("loss", "z_w", "rho", "log_alpha", "grad_norm"):
        assert (expected[name] - got[name]).abs().max() < 1e-3, name


def test_eight_bit_moments_train_and_resume(store, tmp_path):
    config = small_config(train={"optimizer": "adamw8bit", "learning_rate": 1e-3})
    launch(config, store)
    other = Store.open(tmp_path / "other")
    shutil.copytree(store.cache, other.cache)
    with pytest.raises(Killed):
        launch(config, other, on_step=kill_at(5))
    launch(config, other)
    expected, got = final_weights(store, config), final_weights(other, config)
    assert all(torch.equal(expected[name], got[name]) for name in expected)
    state = prepared(config, store).state.update.optimizer
    assert type(state).__name__ == "AdamW8bit"


def test_bfloat16_needs_a_device_that_has_it(monkeypatch):
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    with pytest.raises(ConfigError, match=r"train\.precision: 'bfloat16'.*cpu"):
        Precision.of(small_config(train={"precision": "bfloat16"}), torch.device("cpu"))
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: True)
    with Precision.of(small_config(train={"precision": "bfloat16"}), torch.device("cpu"))():
        assert torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16


def test_prompts_that_cannot_be_shared_are_not(store):
    """TDPO reads whole distributions: `auto` quietly takes two rows, `on` says why not."""
    assert prepared(small_config(objective="tdpo"), store).state.policy.share_prompts == "off"
    assert prepared(small_config(objective="dpo"), store).state.policy.share_prompts == "auto"
    with pytest.raises(ConfigError, match=r"execution\.prompt_sharing"):
        prepared(small_config(objective="tdpo", execution={"prompt_sharing": "on"}), store)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"execution": {"parallel": "fsdp"}}, "worker group"),
        ({"execution": {"parallel": "fsdp", "workers": 2}, "train": {"optimizer": "adamw8bit"}}, "adamw8bit"),
    ],
)
def test_what_cannot_be_sharded_is_refused(settings, message):
    with pytest.raises(ValidationError, match=message):
        small_config(**settings)


def test_the_profile_says_where_the_time_goes(store):
    config = small_config(calibration=True, data={"train_pairs": 32, "eval_pairs": 16})
    launch(config, store, profile=True)
    directory = store.run(run_id(config)).profile
    summary = json.loads((directory / "summary.json").read_text())
    assert summary["steps"] == 2, "four steps, the first two left out"
    assert set(summary["phases_ms"]) == {"forward", "incentives", "scores", "backward", "clip", "update"}
    assert all(ms > 0 for ms in summary["phases_ms"].values()) and summary["operations_ms"]
    assert json.loads((directory / "trace.json").read_text())["traceEvents"]
    text = describe(directory)
    assert "forward" in text and "trace.json" in text


def test_a_budget_of_tokens_is_the_same_training(store, tmp_path):
    """Cut by tokens or by pairs: with statistics over the step, nothing changes."""
    results = {}
    for name, train in {"pairs": {"micro_batch_size": 4}, "tokens": {"micro_batch_tokens": 150}}.items():
        config = small_config(calibration={"enabled": True, "granularity": "step"}, train=train)
        place = Store.open(tmp_path / name)
        (place.root / "cache").symlink_to(store.cache)
        launch(config, place)
        results[name] = read_dynamics(place.run(run_id(config)).dynamics).to_pandas()
        assert run_id(config) == run_id(small_config(calibration={"enabled": True, "granularity": "step"}))
    for name in ("loss", "z_w", "rho", "log_alpha", "grad_norm"):
        assert (results["pairs"][name] - results["tokens"][name]).abs().max() < 1e-3, name


def test_a_collapse_is_named_and_what_led_to_it_is_kept(store):
    """The step, the pairs and the values in the error; records up to it; the last good checkpoint stays."""
    config = small_config(train={"learning_rate": 1e4, "clip_norm": 1e30}, objective="cpo")
    with pytest.raises(Exception, match=r"step \d+: (loss .* on training pair \d+|the gradient is not finite)"):
        launch(config, store)
    run = store.run(run_id(config))
    status = run.read_status()
    assert status.status == "degenerate" and "training pair" in status.error
    failed_at = int(status.error.split("step ")[1].split(":")[0])
    assert len(records(store, config)) == failed_at - 1


def test_a_status_counts_the_looks_on_pathway_iii_also_across_a_resumption(store):
    config = small_config(calibration={"look_every": 2})
    with pytest.raises(Killed):
        launch(config, store, on_step=kill_at(5))
    status = launch(config, store)
    words = [word for word in records(store, config)["pathway_predicted"] if word]
    assert words and status.looks_iii == words.count("iii") / len(words)
