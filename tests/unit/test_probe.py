"""The probe set: answers that belong to nothing, and what a run records of where its probability went."""

import math

import torch

from rcray.config import run_id
from rcray.data.encoded import EncodedPair
from rcray.data.prepare import prepare_data
from rcray.train.launch import launch
from rcray.train.loop import Job, prepare
from rcray.train.probe import PROBE_COLUMNS, misplaced_answers, shuffled_words
from tests.small_runs import records, small_config


def test_answers_that_belong_to_nothing(neox, tmp_path):
    tokenizer = neox.tokenizer
    pairs = prepare_data(small_config().data, tokenizer, tmp_path).held_out.pairs[:4]
    answers = misplaced_answers(pairs, tokenizer, 1024)
    assert [pair.prompt for pair in answers] == [pair.prompt for pair in pairs]
    assert [pair.chosen for pair in answers] == [pair.chosen for pair in (*pairs[1:], pairs[0])]
    for misplaced, pair in zip(answers, pairs, strict=True):
        own, other = (
            tokenizer.decode(list(ids), skip_special_tokens=True) for ids in (pair.chosen, misplaced.rejected)
        )
        assert sorted(other.split()) == sorted(own.split())
        assert misplaced.rejected != pair.chosen
        assert misplaced.rejected[-1] == pair.chosen[-1]  # the end of the turn stays the end
    assert misplaced_answers(pairs, tokenizer, 1024) == answers


def test_one_prompt_throughout_has_no_other_answer(neox):
    pairs = [EncodedPair(str(i), (5, 6), (7, 8), (9,)) for i in range(3)]
    assert misplaced_answers(pairs, neox.tokenizer, 64) == []
    assert shuffled_words((), neox.tokenizer, "a") == ()


def test_a_run_records_where_its_probability_went(store):
    config = small_config(train={"learning_rate": 1e-3})
    launch(config, store)
    rows = records(store, config)
    probed = rows[rows["probe_z_w"].notna()]
    assert list(probed["step"]) == [1, 4, 7, 8]
    assert probed[list(PROBE_COLUMNS)].notna().all().all()
    assert probed["probe_kl"].iloc[0] == 0
    assert (probed["probe_kl"].iloc[1:] > 0).all()
    assert (probed["probe_logp_greedy"] >= probed["probe_logp_w"]).all()
    assert (probed["probe_entropy"] > 0).all()
    assert (probed["probe_logp_w"] > probed["probe_logp_other"]).all()  # trained on renderings: others are unlikely


def test_a_probe_draws_nothing_and_measures_what_it_measured(store):
    config = small_config()
    training = prepare(Job(config, store, run_id(config), "a"), 0, 1)
    state = torch.random.get_rng_state()
    first, second = training.probe.measure(), training.probe.measure()
    assert torch.equal(state, torch.random.get_rng_state())
    assert first == second == training.probe.measure(at_start=True), "the reading it began with serves the first record"
    assert not any(map(math.isnan, first.values()))
