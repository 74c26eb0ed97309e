"""Benchmarks through lm-eval: the embedded tasks, the published suite's definition, tasks by name and by file."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from rcray.config.benchmarks import BENCHMARKS, Benchmark, suite
from rcray.config.evaluation import EvaluationConfig
from rcray.data import synthetic
from rcray.errors import ConfigError, DataError, ModelError
from rcray.evaluate import embedded, harness
from rcray.evaluate.backends import batch_size, open_transformers, require_backend
from rcray.evaluate.harness_rows import combine
from rcray.models.load import LoadedModel
from tests.evaluate import standin
from tests.evaluate.conftest import random_model
from tests.small_runs import small_config

SETTINGS = EvaluationConfig()


@pytest.fixture(scope="module")
def lm(tiny):
    return open_transformers(tiny, SETTINGS)


def simple_evaluate(lm, task, manager=None, **options):
    """lm-eval's own entry point, as a person would call it."""
    import lm_eval

    manager = manager or harness.task_manager()
    return lm_eval.simple_evaluate(model=lm, tasks=[task], task_manager=manager, log_samples=False, **options)


# -- the embedded tasks


def test_choice_documents_have_one_right_answer():
    for document in embedded.choice_documents():
        assert len(set(document["choices"])) == embedded.CHOICES
        words = document["question"].removeprefix("render ").split()
        right = [synthetic.LEXICON[word] for word in words]
        assert document["choices"][document["answer"]].split() == right
        for i, choice in enumerate(document["choices"]):
            assert sum(a != b for a, b in zip(choice.split(), right, strict=True)) == (i != document["answer"])


def test_the_right_answer_stands_everywhere():
    places = [document["answer"] for document in embedded.choice_documents()]
    assert set(places) == set(range(embedded.CHOICES))
    assert max(np.bincount(places)) < len(places) / 4


def test_cloze_documents_ask_for_the_next_word():
    for document in embedded.cloze_documents():
        words = document["question"].removeprefix("render ").split()
        begun = document["begun"].split()
        assert 1 <= len(begun) < len(words)
        assert [*begun, document["answer"]] == [synthetic.LEXICON[word] for word in words[: len(begun) + 1]]


def test_documents_are_not_training_pairs():
    trained = {row[0] for row in synthetic.generate(1600, difficulty="medium", seed=0, split="train")}
    asked = [row["question"] for row in (*embedded.choice_documents(), *embedded.cloze_documents())]
    assert len(set(asked)) == len(asked) and not trained & set(asked)


@pytest.mark.parametrize("benchmark", suite("embedded"), ids=lambda benchmark: benchmark.name)
def test_embedded_rows_are_simple_evaluates_to_the_digit(lm, benchmark):
    (row,) = harness.run_benchmark(benchmark, lm, SETTINGS)
    theirs = simple_evaluate(lm, embedded.task_config(benchmark.task), apply_chat_template=True)
    values = theirs["results"][benchmark.task]
    assert row.value == float(values[f"{benchmark.metric},{benchmark.filter}"])
    assert row.stderr == row.stderr_subtask_mean == row.stderr_pooled
    assert row.stderr == pytest.approx(values[f"{benchmark.metric}_stderr,{benchmark.filter}"], rel=1e-12)
    assert row.n == embedded.DOCUMENTS and row.status == "ok"
    assert row.task_version == str(theirs["versions"][benchmark.task]) == embedded.version_key()
    assert row.shots == theirs["n-shot"][benchmark.task] == 0
    assert row.harness == f"lm-eval {theirs['lm_eval_version']}"
    assert row.chat_template is True
    assert 0.1 < row.value < 0.9, "neither chance nor a ceiling: there is something to see"


def test_a_number_does_not_depend_on_what_was_asked_before(lm):
    cloze = BENCHMARKS["rcray_cloze"]  # drawn at temperature 1
    settings = EvaluationConfig(limit=64)
    (alone,) = harness.run_benchmark(cloze, lm, settings)
    harness.run_benchmark(BENCHMARKS["rcray_choice"], lm, EvaluationConfig(limit=8))
    torch.manual_seed(7)
    assert harness.run_benchmark(cloze, lm, settings) == [alone]


def test_random_generators_are_left_as_they_were(lm):
    torch.manual_seed(3), np.random.seed(3), random.seed(3)
    expected = torch.rand(1).item(), np.random.rand(), random.random()
    torch.manual_seed(3), np.random.seed(3), random.seed(3)
    harness.run_benchmark(BENCHMARKS["rcray_cloze"], lm, EvaluationConfig(limit=8))
    assert (torch.rand(1).item(), np.random.rand(), random.random()) == expected


def test_limit_is_recorded(lm):
    (row,) = harness.run_benchmark(BENCHMARKS["rcray_choice"], lm, EvaluationConfig(limit=12))
    assert (row.n, row.limit) == (12, 12)


# -- the published suite


def test_the_published_suite_is_the_papers():
    table = {b.name: (b.task, b.shots, b.metric, b.filter, b.aggregate, b.chat_template) for b in suite("published")}
    assert table == {
        "mmlu_pro": ("leaderboard_mmlu_pro", 5, "acc", "none", "single", False),
        "bbh": ("leaderboard_bbh", 3, "acc_norm", "none", "unweighted", False),
        "musr": ("leaderboard_musr", 0, "acc_norm", "none", "weighted", False),
        "math": ("leaderboard_math_hard", 4, "exact_match", "none", "unweighted", False),
        "arc": ("arc_challenge", 25, "acc_norm", "none", "single", False),
        "gsm8k": ("gsm8k", 5, "exact_match", "strict-match", "single", False),
    }


@pytest.fixture(scope="module")
def untrained(tiny):
    model = random_model(tiny.tokenizer, context=1536)
    return open_transformers(LoadedModel(model, tiny.tokenizer), SETTINGS)


@pytest.mark.parametrize("name", ["arc", "musr"])
def test_unmodified_tasks_from_a_data_directory(untrained, tmp_path, monkeypatch, name):
    standin.write_arc(tmp_path)
    standin.write_musr(tmp_path)
    benchmark = BENCHMARKS[name]
    settings = EvaluationConfig(data_dir=str(tmp_path))
    (row,) = harness.run_benchmark(benchmark, untrained, settings)
    monkeypatch.chdir(tmp_path)
    manager = harness.task_manager(benchmark.family)
    theirs = simple_evaluate(untrained, benchmark.task, manager, num_fewshot=benchmark.shots)
    values = theirs["results"][benchmark.task]
    assert row.value == pytest.approx(values["acc_norm,none"], abs=1e-15)
    assert row.stderr == pytest.approx(values["acc_norm_stderr,none"], rel=1e-12)
    assert row.shots == benchmark.shots
    if name == "musr":
        assert (row.subtasks, row.n, row.aggregate) == (3, sum(standin.MUSR.values()), "weighted")
    else:
        assert (row.subtasks, row.n) == (None, 6)


@pytest.mark.slow
@pytest.mark.parametrize("name", [benchmark.name for benchmark in suite("published")])
def test_every_published_benchmark_runs(untrained, tmp_path, name):
    standin.write_all(tmp_path)
    benchmark = BENCHMARKS[name]
    settings = EvaluationConfig(data_dir=str(tmp_path))
    results = harness.harness_results(benchmark, untrained, settings)
    (row,) = harness.run_benchmark(benchmark, untrained, settings)
    assert row.shots == benchmark.shots and row.metric == benchmark.metric
    leaves = list(results["samples"])
    assert len(leaves) == {"bbh": 24, "musr": 3, "math": 7}.get(name, 1)
    sizes = [results["n-samples"][leaf]["effective"] for leaf in leaves]
    key = f"{benchmark.metric},{benchmark.filter}"
    values = [float(results["results"][leaf][key]) for leaf in leaves]
    observed = row.observed if row.value is None else row.value
    expected = sum(values) / len(values) if benchmark.aggregate == "unweighted" else np.average(values, weights=sizes)
    assert observed == pytest.approx(expected, abs=1e-12)


def test_data_out_of_reach(tmp_path):
    with pytest.raises(DataError) as refused:
        harness.load_tasks(BENCHMARKS["musr"], None)
    assert "TAUR-Lab/MuSR" in str(refused.value) and "evaluation.data_dir" in str(refused.value)
    with pytest.raises(DataError, match="DIR/allenai/ai2_arc"):
        harness.load_tasks(BENCHMARKS["arc"], str(tmp_path))
    with pytest.raises(ConfigError, match="no such directory"):
        harness.check_benchmarks([], str(tmp_path / "nowhere"))


# -- any task, by name or by file


def write_task(folder, name="phrases", **more):
    rows = embedded.choice_documents()[:12]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = [
        f"task: {name}",
        "dataset_path: json",
        "dataset_kwargs: {data_files: {test: rows.jsonl}}",
        "test_split: test",
        "output_type: multiple_choice",
        'doc_to_text: "{{question}}"',
        'doc_to_choice: "{{choices}}"',
        "doc_to_target: answer",
        "metric_list: [{metric: acc}, {metric: acc_norm}]",
        "metadata: {version: 2.5}",
        *(f"{key}: {value}" for key, value in more.items()),
    ]
    path = folder / f"{name}.yaml"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_task_file_with_data_beside_it(lm, tmp_path, monkeypatch):
    path = write_task(tmp_path)
    (benchmark,) = EvaluationConfig(benchmarks=(str(path),)).resolved()
    rows = harness.run_benchmark(benchmark, lm, SETTINGS)
    assert [(row.benchmark, row.metric) for row in rows] == [("phrases", "acc"), ("phrases", "acc_norm")]
    assert {(row.task_version, row.shots, row.n, row.task) for row in rows} == {("2.5", 0, 12, "phrases.yaml")}
    monkeypatch.chdir(tmp_path)
    theirs = simple_evaluate(lm, str(path))["results"]["phrases"]
    assert [row.value for row in rows] == [theirs["acc,none"], theirs["acc_norm,none"]]


def test_the_sections_shots_and_template_win(lm, tmp_path):
    path = write_task(tmp_path, fewshot_split="test")
    settings = EvaluationConfig(benchmarks=(str(path),), shots=2, chat_template=True)
    rows = harness.run_benchmark(settings.resolved()[0], lm, settings)
    assert {(row.shots, row.chat_template) for row in rows} == {(2, True)}


def test_shots_a_task_does_not_allow(lm):
    benchmark = replace(BENCHMARKS["rcray_choice"], shots=3)
    with pytest.raises(ConfigError, match="allows none"):
        harness.run_benchmark(benchmark, lm, SETTINGS)


def test_a_task_by_its_registered_name():
    with pytest.raises(ConfigError, match="did you mean 'arc_challenge'"):
        harness.check_benchmarks([Benchmark("arc_chalenge", "arc_chalenge")], None)
    with pytest.raises(DataError, match="allenai/ai2_arc"):  # known; only its data is out of reach
        harness.check_benchmarks([Benchmark("arc_easy", "arc_easy")], None)


def test_a_file_that_is_no_task(tmp_path):
    (tmp_path / "x.yaml").write_text("name: x\n")
    with pytest.raises((ConfigError, DataError), match=r"x"):
        harness.load_tasks(Benchmark("x", str(tmp_path / "x.yaml")), None)
    with pytest.raises(ConfigError, match="no such task file"):
        harness.load_tasks(Benchmark("y", str(tmp_path / "y.yaml")), None)


# -- backends


def test_batches_fit_the_model(tiny):
    assert batch_size(EvaluationConfig(batch_size=3), tiny.model) == 3
    assert batch_size(SETTINGS, tiny.model) == 32  # 8192 tokens at a context of 256
    assert batch_size(SETTINGS, random_model(tiny.tokenizer, context=16384)) == 1


def test_vllm_is_refused_where_it_is_not_installed():
    with pytest.raises(ConfigError, match=r"vllm is not installed.*\n.*backend: hf"):
        require_backend(EvaluationConfig(backend="vllm"))


@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
def test_vllm_gets_the_weights_the_chain_names(store, tmp_path, method):
    from rcray.evaluate.backends import vllm_arguments
    from rcray.models.load import load_model
    from rcray.models.trained import save_trained

    given = {"name": "tiny-neox", "method": method, **({} if method == "full" else {"lora": {"r": 2, "alpha": 4}})}
    loaded = load_model(small_config(model=given).model, store.cache)
    save_trained(loaded, tmp_path / "final")
    if method == "qlora":
        with pytest.raises(ConfigError, match="another base than the 4-bit one"):
            vllm_arguments(tmp_path / "final", store.cache, "bfloat16")
        return
    arguments = vllm_arguments(tmp_path / "final", store.cache, "bfloat16")
    assert arguments["tokenizer"] == str(tmp_path / "final") and arguments["dtype"] == "bfloat16"
    if method == "full":
        assert arguments["pretrained"] == str(tmp_path / "final") and "lora_local_path" not in arguments
    else:
        assert arguments["pretrained"] == str(loaded.origin.base)
        assert (arguments["lora_local_path"], arguments["max_lora_rank"]) == (str(tmp_path / "final"), 2)
    next((tmp_path / "final").glob("*.safetensors")).unlink()
    with pytest.raises(ModelError, match="chain is incomplete"):
        vllm_arguments(tmp_path / "final", store.cache, "bfloat16")


# -- aggregates


def test_aggregates_by_hand():
    score = combine([0.5, 1.0, 0.0], [0.1, 0.2, 0.3], [10, 20, 70])
    assert score.weighted == pytest.approx(0.25)
    assert score.unweighted == pytest.approx(0.5)
    assert score.stderr_subtask_mean == pytest.approx(0.2)
    pooled = (9 * 10 * 0.01 + 19 * 20 * 0.04 + 69 * 70 * 0.09) / 97
    assert score.stderr_pooled == pytest.approx((pooled / 100) ** 0.5)
    assert combine([0.5], [None], [10]).stderr_pooled is None
