"""Micro-batches within a budget of tokens: every pair once, equally many for each worker, little padding."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rcray.data.schedule import Schedule, within_budget
from tests.padding import padding_share
from tests.small_runs import small_config


@given(
    sizes=st.lists(st.integers(1, 500), min_size=1, max_size=40),
    budget=st.integers(1, 2000),
    workers=st.integers(1, 4),
)
def test_it_keeps_the_budget(sizes, budget, workers):
    pairs = len(sizes) - len(sizes) % workers
    rows, tokens = list(range(pairs)), np.array(sizes)
    parts = within_budget(rows, tokens, budget, workers)
    assert sorted(row for part in parts for row in part) == rows
    for part in parts:
        assert len(part) % workers == 0
        if len(part) > workers:
            assert len(part) // workers * tokens[part].max() <= budget


def test_a_budget_pads_less_than_a_number_of_pairs():
    rng = np.random.default_rng(0)
    lengths = rng.integers(5, 200, (64, 3))
    by_pairs = Schedule.of(small_config(), 64, lengths)
    by_tokens = Schedule.of(small_config(train={"micro_batch_tokens": 1600}), 64, lengths)
    assert padding_share(by_tokens, lengths) < padding_share(by_pairs, lengths)


def test_steps_see_the_same_pairs():
    lengths = np.random.default_rng(1).integers(5, 200, (64, 3))
    by_pairs = Schedule.of(small_config(), 64, lengths)
    by_tokens = Schedule.of(small_config(train={"micro_batch_tokens": 900}), 64, lengths)
    for step in range(by_pairs.total_steps):
        seen = [sorted(i for part in s.micro_batches(step) for i in part) for s in (by_pairs, by_tokens)]
        assert seen[0] == seen[1]
    first, second = (by_tokens.micro_batches(0, rank, 2) for rank in (0, 1))
    assert [len(part) for part in first] == [len(part) for part in second]
