"""Samples: answers of start and trained model, and text that is no answer."""

import json

import pytest
import torch

from rcray.config import run_id
from rcray.config.evaluation import EvaluationConfig
from rcray.data.encoded import EncodedPair
from rcray.evaluate.degenerate_text import EMPTY, GARBLED, LANGUAGE, LOOP, flags_of, repetition
from rcray.evaluate.samples import sampled_pairs
from rcray.evaluate.stage import EvaluationStage, evaluate_run
from rcray.records.samples import read_samples
from rcray.train.launch import launch
from tests.small_runs import small_config

ENGLISH = "The best way to do it is to ask for the book that you want, and it is not far with the bus."
GERMAN = "Der beste Weg ist es, nach dem Buch zu fragen, und das ist nicht weit mit den Bussen von der Stadt."
CHINESE = "最好的办法是去问你想要的那本书它离得不远"
IDS = list(range(40))


@pytest.mark.parametrize(
    ("text", "ids", "chosen", "flags"),
    [
        (ENGLISH, IDS, ENGLISH, ()),
        ("  .\n", [5], ENGLISH, (EMPTY,)),
        ("", [], ENGLISH, (EMPTY,)),
        (ENGLISH, [1, 2, 3, *[7, 8, 9] * 5], ENGLISH, (LOOP,)),
        (ENGLISH, [*IDS, *[7] * 12], ENGLISH, (LOOP,)),
        ("ork\ufffd eth", IDS, ENGLISH, (GARBLED,)),
        ("ork\x07 eth\n", IDS, ENGLISH, (GARBLED,)),
        ("ha ha ha", [4, 4, 4], ENGLISH, ()),
        (GERMAN, IDS, ENGLISH, (LANGUAGE,)),
        (GERMAN, IDS, GERMAN, ()),
        (CHINESE, IDS, ENGLISH, (LANGUAGE,)),
        (CHINESE, [7, 8] * 10, ENGLISH, (LOOP, LANGUAGE)),
        ("ork veth zusk hiln", IDS, "jork weth cusk qiln", ()),  # a made-up language is no other one
    ],
)
def test_text_that_is_no_answer(text, ids, chosen, flags):
    assert flags_of(text, ids, chosen) == flags


def test_repetition_counts_runs_that_return():
    assert repetition(IDS) == 0
    assert repetition([1, 2, 3, 1, 2, 3]) == pytest.approx(1 / 4)
    assert repetition([1]) == 0


def test_every_prompt_is_asked_once():
    pairs = [EncodedPair(str(i), (i // 2,), (1,), (2,)) for i in range(6)]
    assert [pair.row for pair in sampled_pairs(pairs, 2)] == ["0", "2"]


@pytest.mark.parametrize("method", ["full", "lora"])
def test_both_models_answer_the_same_prompts(store, method):
    config = small_config(model={"name": "tiny-neox", "method": method}, train={"learning_rate": 1e-3})
    launch(config, store)
    settings = EvaluationConfig(samples=3, sample_tokens=12)
    state = torch.random.get_rng_state()
    outcome = evaluate_run(config, store, settings)
    assert torch.equal(state, torch.random.get_rng_state())
    run = store.run(run_id(config))
    samples = read_samples(run.samples)
    assert len(samples) == 3
    assert all(len(sample.start) == len(sample.trained) == 2 for sample in samples)
    assert all(sample.prompt.startswith("render") or "render" in sample.prompt for sample in samples)
    greedy = [(sample.start[0].text, sample.trained[0].text) for sample in samples]
    assert all(text for pair in greedy for text in pair)
    rows = {row.name: row for row in outcome.rows if row.benchmark == "samples"}
    assert set(rows) == {f"samples/{n}_{s}" for n in ("tokens", "repetition", "flagged") for s in ("start", "trained")}
    assert rows["samples/tokens_start"].value == pytest.approx(
        sum(answer.tokens for sample in samples for answer in sample.start) / 6
    )
    again = evaluate_run(config, store, settings)
    assert again.measured == ()
    stage = EvaluationStage(settings)
    assert stage.is_done(config, store)
    before = json.loads(run.samples.read_text())
    run.samples.unlink()  # numbers without their texts are measured again, and come out the same
    assert not stage.is_done(config, store)
    assert evaluate_run(config, store, settings).measured == ("samples",)
    assert json.loads(run.samples.read_text()) == before
