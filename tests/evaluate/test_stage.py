"""One run measured: once per (weights, task, settings), each model loaded once, incomplete ones refused."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from rcray.config.evaluation import EvaluationConfig, settings_from
from rcray.errors import ConfigError, DataError, DegenerateRunError, ModelError, RcrayError
from rcray.evaluate import embedded, stage
from rcray.evaluate.command import Target, check_settings, evaluate, find_runs
from rcray.evaluate.stage import EvaluationStage, evaluate_run
from rcray.models.chain import CHAIN, FULL, read_chain, write_chain
from rcray.records.items import read_items
from tests.evaluate.test_harness import write_task
from tests.small_runs import small_config

BOTH = EvaluationConfig(benchmarks=("embedded",), limit=24)


def kept(run):
    return json.loads(run.evaluation.read_text())


def test_everything_of_one_load_and_then_of_none(trained):
    first = evaluate_run(trained.plain, trained.store, BOTH)
    assert first.measured == ("preference", "rcray_choice", "rcray_cloze") and first.loads == 1
    again = evaluate_run(trained.plain, trained.store, BOTH)
    assert again.measured == () and again.loads == 0
    assert again.rows == first.rows
    assert kept(trained.run(trained.plain))["rows"] == [row.content() for row in first.rows]


def test_rows_keep_their_old_shape(trained):
    """Tables and MLflow read these fields of every row."""
    for row in evaluate_run(trained.plain, trained.store, BOTH).rows:
        assert {"benchmark", "metric", "value", "stderr", "n"} <= row.content().keys()
    for row in kept(trained.run(trained.plain))["rows"]:
        assert row["status"] in ("ok", "undefined")


def test_every_pair_and_document_is_kept(trained):
    """Rows are means of what is kept, and two runs have kept it of the same pairs and documents."""
    kept_of = {}
    for config in (trained.plain, trained.calibrated):
        rows, run = evaluate_run(config, trained.store, BOTH).rows, trained.run(config)
        keys = run.read_evaluation().keys
        kept_of[run.run_id] = {name: read_items(run.items(keys[name])) for name in keys}
        for row in rows:
            items = kept_of[run.run_id][row.benchmark]
            if row.metric in items.columns and row.value is not None:
                assert items.columns[row.metric].mean() == pytest.approx(row.value), row.name
                assert len(items.names) == len(set(items.names)) == row.n
        pairs = kept_of[run.run_id]["preference"]
        assert {"start_w", "start_l", "trained_w", "trained_l", "n_w", "n_l"} < set(pairs.columns)
    one, other = kept_of.values()
    assert one.keys() == {"preference", "rcray_choice", "rcray_cloze"}
    for name in one:
        assert one[name].names == other[name].names
        assert set(one[name].columns) == set(other[name].columns) > set()


def test_items_that_were_not_kept_are_no_fault(trained):
    """As in a store of an earlier version; what is measured again is kept."""
    evaluate_run(trained.plain, trained.store)
    run = trained.run(trained.plain)
    key = run.read_evaluation().keys["preference"]
    for path in (run.items(key), trained.store.cache / "evaluation" / f"{key}.parquet"):
        path.unlink()
    assert evaluate_run(trained.plain, trained.store).measured == ()
    assert read_items(run.items(key)) is None


def test_what_a_key_depends_on(trained, monkeypatch):
    evaluate_run(trained.plain, trained.store, BOTH)

    def measured(settings):
        return evaluate_run(trained.plain, trained.store, settings).measured

    assert measured(BOTH.model_copy(update={"batch_size": 7, "cpus": 2.0})) == ()
    assert measured(BOTH.model_copy(update={"limit": 12})) == ("rcray_choice", "rcray_cloze")
    assert measured(BOTH) == (), "the cache keeps both"
    monkeypatch.setattr(embedded, "VERSION", 99)
    assert measured(BOTH) == ("rcray_choice", "rcray_cloze")


def test_other_weights_are_measured_anew(trained):
    run = trained.run(trained.plain)
    evaluate_run(trained.plain, trained.store, BOTH)
    shutil.rmtree(run.final)
    shutil.copytree(trained.run(trained.calibrated).final, run.final)
    assert not EvaluationStage(BOTH).is_done(trained.plain, trained.store)
    outcome = evaluate_run(trained.plain, trained.store, BOTH)
    assert outcome.loads == 1 and "preference" in outcome.measured


def test_a_changed_task_file_is_measured_anew(trained, tmp_path):
    path = write_task(tmp_path)
    settings = EvaluationConfig(preference=False, benchmarks=(str(path),))
    assert evaluate_run(trained.plain, trained.store, settings).measured == ("phrases",)
    assert evaluate_run(trained.plain, trained.store, settings).measured == ()
    lines = (tmp_path / "rows.jsonl").read_text().splitlines()
    (tmp_path / "rows.jsonl").write_text("\n".join(lines[:10]) + "\n")
    outcome = evaluate_run(trained.plain, trained.store, settings)
    assert outcome.measured == ("phrases",) and outcome.rows[0].n == 10


def test_rows_of_other_settings_stay(trained):
    evaluate_run(trained.plain, trained.store, BOTH)
    evaluate_run(trained.plain, trained.store, EvaluationConfig())
    names = {row["benchmark"] for row in kept(trained.run(trained.plain))["rows"]}
    assert names == {"preference", "rcray_choice", "rcray_cloze"}


def test_done_means_everything_asked_for(trained):
    evaluate_run(trained.plain, trained.store, EvaluationConfig())
    assert EvaluationStage(EvaluationConfig()).is_done(trained.plain, trained.store)
    assert not EvaluationStage(BOTH).is_done(trained.plain, trained.store)
    assert not EvaluationStage(EvaluationConfig()).is_done(trained.calibrated, trained.store)


def test_only_preference_without_a_section(trained):
    outcome = evaluate_run(trained.plain, trained.store)
    assert outcome.measured == ("preference",)
    means = ["accuracy", "margin", "drift_w", "drift_l", "ranking", "ranking_per_token"]
    assert [row.metric for row in outcome.rows] == [*means, "brier", "ece", "length_correlation"]


# -- incomplete, damaged, degenerate


def test_a_missing_chain_is_named(trained):
    (trained.run(trained.plain).final / CHAIN).unlink()
    with pytest.raises(ModelError, match=r"chain is incomplete: adapter_chain.json is missing"):
        evaluate_run(trained.plain, trained.store, BOTH)
    assert not EvaluationStage(BOTH).is_done(trained.plain, trained.store)


def test_missing_weights_are_named(trained):
    (trained.run(trained.plain).final / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"incomplete: its own weights .* are missing"):
        evaluate_run(trained.plain, trained.store, BOTH)


def test_an_adapter_without_its_base_is_refused(tmp_path, trained):
    """The published evaluation put an adapter on another base; here the missing piece is named."""
    from rcray.config.model import ModelConfig
    from rcray.models.load import load_model
    from rcray.models.trained import save_trained

    store = trained.store
    base = tmp_path / "base"
    shutil.copytree(next((store.cache / "models").glob("tiny-neox-*")), base)
    config = small_config(model={"name": str(base), "method": "lora", "lora": {"r": 2, "alpha": 4}})
    run = store.run(stage.run_id(config))
    save_trained(load_model(ModelConfig.model_validate(config.model.model_dump()), store.cache), run.final)
    evaluate_run(config, store, BOTH)
    for entry in (store.cache / "evaluation").glob("*"):
        entry.unlink()
    shutil.rmtree(base)
    with pytest.raises(ModelError, match=r"chain is incomplete: .*cannot load"):
        evaluate_run(config, store, BOTH)


def spoil(run):
    """Every weight of the head becomes NaN, as after a collapse; the chain is written as training would."""
    from dataclasses import dataclass

    record = read_chain(run.final)
    weights = load_file(run.final / "model.safetensors")
    weights["embed_out.weight"] = torch.full_like(weights["embed_out.weight"], float("nan"))
    save_file(weights, run.final / "model.safetensors", metadata={"format": "pt"})

    from rcray.config.model import ModelConfig

    @dataclass
    class As:
        config: ModelConfig
        commit: None = None
        base_fingerprint: str = record["base"]["fingerprint"]
        sft_fingerprint: str = ""
        base: Path = run.final

    write_chain(As(ModelConfig.model_validate(record["model"])), run.final, FULL)


def test_a_nan_model_has_no_score_anywhere(trained):
    spoil(trained.run(trained.plain))
    outcome = evaluate_run(trained.plain, trained.store, BOTH)
    assert {row.status for row in outcome.rows} == {"degenerate"}
    assert {row.value for row in outcome.rows} == {None}
    assert "non-finite" in outcome.degenerate
    with pytest.raises(DegenerateRunError, match="non-finite"):
        EvaluationStage(BOTH)(trained.plain, trained.store)  # also when it is all cached
    only = EvaluationConfig(preference=False, benchmarks=("rcray_choice",))
    assert "non-finite logits" in evaluate_run(trained.plain, trained.store, only).degenerate


def test_a_benchmark_out_of_reach_does_not_cost_the_others(trained):
    settings = EvaluationConfig(benchmarks=("gsm8k", "rcray_choice"), limit=12)
    with pytest.raises(DataError, match="openai/gsm8k"):
        evaluate_run(trained.plain, trained.store, settings)
    names = {row["benchmark"] for row in kept(trained.run(trained.plain))["rows"]}
    assert names == {"preference", "rcray_choice"}
    assert not EvaluationStage(settings).is_done(trained.plain, trained.store)


# -- what is asked, and of which runs


def test_settings_are_refused_before_anything_runs(tmp_path):
    for settings, message in (
        (EvaluationConfig(backend="vllm"), "not installed"),
        (EvaluationConfig(data_dir=str(tmp_path / "no")), "no such directory"),
        (EvaluationConfig(benchmarks=(str(tmp_path / "no.yaml"),)), "no such task file"),
    ):
        with pytest.raises(ConfigError, match=message):
            check_settings(settings)
    with pytest.raises(DataError, match="allenai/ai2_arc"):
        check_settings(EvaluationConfig(benchmarks=("arc",)))


def test_options_win_over_the_section(tmp_path):
    section = EvaluationConfig(benchmarks=("arc",), limit=5)
    settings = settings_from(
        section, {"benchmarks": ["rcray_choice", "t.yaml"], "limit": None, "data_dir": None}, tmp_path
    )
    assert settings.benchmarks == ("rcray_choice", str(tmp_path / "t.yaml")) and settings.limit == 5
    with pytest.raises(ConfigError, match=r"--benchmarks: 'bbh' is asked for twice"):
        settings_from(section, {"benchmarks": ["bbh", "published"]}, tmp_path)


def test_runs_are_found_by_id_by_directory_and_all_at_once(trained):
    root = trained.store.root
    run = trained.run(trained.plain)
    for given in (run.run_id, str(run.path)):
        (target,) = find_runs(given, trained.store)
        assert target.config == trained.plain and target.store.root == root
    for given in (str(root), str(root / "runs")):
        assert len(find_runs(given, trained.store)) == 2
    with pytest.raises(ConfigError, match=f"did you mean '{run.run_id}'"):
        find_runs(run.run_id[:-1], trained.store)


def test_a_moved_run_is_refused(trained, tmp_path):
    shutil.copytree(trained.run(trained.plain).path, tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=r"is not the directory of run"):
        find_runs(str(tmp_path / "elsewhere"), trained.store)


def test_what_is_measured_is_shown_without_ray_and_without_a_hub(trained, monkeypatch):
    evaluate_run(trained.plain, trained.store, BOTH)
    monkeypatch.setattr("rcray.evaluate.remote.evaluate_many", None)
    monkeypatch.setattr("rcray.evaluate.command.check_settings", None)
    said, warned = [], []
    evaluate([Target("plain", trained.plain, trained.store)], BOTH, said.append, warned.append)
    assert len(said) == 11 and not warned
    assert any(line.startswith("plain: rcray_cloze/exact_match 0.") and "(n=24, 0 shots)" in line for line in said)
    assert "plain: preference/length_correlation undefined: all length differences are equal" in said


def test_degenerate_and_unfinished_runs_are_failures_of_the_command(trained):
    spoil(trained.run(trained.plain))
    evaluate_run(trained.plain, trained.store, BOTH)
    said, warned = [], []
    with pytest.raises(RcrayError, match="of 1 runs: 1 degenerate"):
        evaluate([Target("plain", trained.plain, trained.store)], BOTH, said.append, warned.append)
    assert any("rcray_choice/acc degenerate: " in line for line in said)
    other = small_config(train={"seed": 9})
    with pytest.raises(RcrayError, match="1 of 1 cells are not finished"):
        evaluate([Target("other", other, trained.store)], BOTH, said.append, warned.append)
    assert warned == ["other: not finished, skipped"]
