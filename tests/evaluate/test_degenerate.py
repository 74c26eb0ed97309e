"""Models whose scores mean nothing are caught; a weak but sound model is not."""

import copy

import pytest
import torch

from rcray.config.benchmarks import BENCHMARKS
from rcray.config.evaluation import EvaluationConfig
from rcray.evaluate import harness
from rcray.evaluate.backends import open_transformers
from rcray.evaluate.degenerate import LEAST_ANSWERS, benchmark_fault, inspect_answers, model_fault
from rcray.models.load import LoadedModel
from tests.evaluate.conftest import random_model
from tests.evaluate.test_harness import write_task

SETTINGS = EvaluationConfig(limit=48)
TASKS = ("rcray_choice", "rcray_cloze")


def nan_model(tiny):
    model = copy.deepcopy(tiny.model)
    with torch.no_grad():
        model.get_output_embeddings().weight.fill_(float("nan"))
    return model


def constant_model(tiny, word=" bork"):
    """Says one word, whatever it reads: the last norm forgets its input."""
    model = copy.deepcopy(tiny.model)
    (token,) = tiny.tokenizer.encode(word)
    with torch.no_grad():
        norm = model.gpt_neox.final_layer_norm
        norm.weight.zero_()
        norm.bias.fill_(1.0)
        head = model.get_output_embeddings().weight
        head.zero_()
        head[token] = 0.5
    return model


def ask(model, tiny, benchmark):
    return harness.run_benchmark(benchmark, open_transformers(LoadedModel(model, tiny.tokenizer), SETTINGS), SETTINGS)


@pytest.mark.parametrize("task", TASKS)
def test_sound_models_are_not_caught(tiny, task):
    for model in (tiny.model, random_model(tiny.tokenizer), random_model(tiny.tokenizer, seed=5)):
        assert model_fault(model, tiny.tokenizer) is None
        (row,) = ask(model, tiny, BENCHMARKS[task])
        assert row.status == "ok" and row.value is not None and row.reason is None


def test_a_nan_model_is_caught_from_its_logits(tiny):
    assert "non-finite logits" in model_fault(nan_model(tiny), tiny.tokenizer)
    model = copy.deepcopy(tiny.model)
    with torch.no_grad():  # one weight of the body is enough
        model.gpt_neox.layers[0].mlp.dense_h_to_4h.weight[0, 0] = float("inf")
    assert "non-finite logits" in model_fault(model, tiny.tokenizer)


def test_a_nan_model_is_caught_from_its_answers(tiny):
    (row,) = ask(nan_model(tiny), tiny, BENCHMARKS["rcray_choice"])
    assert (row.status, row.value, row.stderr) == ("degenerate", None, None)
    assert "non-finite log-likelihoods in 48 of 48" in row.reason
    assert row.observed is not None, "what a table would have shown"


def test_a_constant_model_is_caught_from_its_logits(tiny):
    assert model_fault(constant_model(tiny), tiny.tokenizer) == "the same logits whatever the input"


def test_a_constant_model_is_caught_from_its_words(tiny):
    (row,) = ask(constant_model(tiny), tiny, BENCHMARKS["rcray_cloze"])
    assert (row.status, row.value) == ("degenerate", None)
    assert row.reason.startswith("all 48 generations are 'bork")


def test_silence_is_caught(tiny):
    model = constant_model(tiny, "<|end|>")
    with torch.no_grad():
        model.get_output_embeddings().weight[tiny.tokenizer.eos_token_id] = 5.0
    (row,) = ask(model, tiny, BENCHMARKS["rcray_cloze"])
    assert (row.status, row.reason) == ("degenerate", "48 of 48 generations are empty")


def test_all_first_choices_are_caught(tiny, tmp_path):
    """Choices of equal length are all alike to a model that does not read: the first wins every comparison."""
    path = write_task(tmp_path, "one_word")
    text = path.read_text().replace('"{{choices}}"', '["bork", "diln"]').replace("answer", '"{{answer % 2}}"')
    path.write_text(text)
    (benchmark,) = EvaluationConfig(benchmarks=(str(path),)).resolved()
    model = constant_model(tiny, " zork")
    rows = ask(model, tiny, benchmark)
    assert {row.status for row in rows} == {"degenerate"}
    assert {row.reason for row in rows} == {"all 12 answers are the first choice"}


# -- the rule itself


def choices(picked, golds, choice_count=4):
    def row(i):
        resps = [[(-1.0 if c == picked[i] else -2.0, False)] for c in range(choice_count)]
        return {"filter": "none", "resps": resps, "target": golds[i]}

    return [row(i) for i in range(len(picked))]


@pytest.mark.parametrize(
    ("picked", "golds", "constant"),
    [
        ([0] * 20, [0, 1] * 10, "all 20 answers are the first choice"),
        ([2] * 20, [0, 1] * 10, "all 20 answers are choice 3"),
        ([2] * 19 + [1], [0, 1] * 10, None),
        ([0] * (LEAST_ANSWERS - 1), [0, 1, 2] * 3, None),  # too few to say
        ([0] * 20, [0] * 20, None),  # constant, and right
    ],
)
def test_constant_choices(picked, golds, constant):
    assert inspect_answers(choices(picked, golds)).constant == constant


def test_one_constant_subtask_is_noted_and_all_of_them_are_a_collapse():
    weak, sound = choices([1] * 20, [0, 1] * 10), choices([0, 1] * 10, [0, 1] * 10)
    reason, note = benchmark_fault({"a": weak, "b": sound})
    assert reason is None and note == "one answer throughout in a"
    reason, _ = benchmark_fault({"a": weak, "b": weak})
    assert reason == "in every subtask; a: all 20 answers are choice 2"


def test_one_non_finite_likelihood_spoils_all():
    rows = choices([0, 1] * 10, [0, 1] * 10)
    rows[7]["resps"][2] = [(float("nan"), False)]
    reason, _ = benchmark_fault({"a": choices([0, 1] * 10, [0, 1] * 10), "b": rows})
    assert reason == "b: non-finite log-likelihoods in 1 of 20 documents"
