"""Collation masks by position, and the schedule is a function of seed and step."""

import itertools

import numpy as np
import pytest
import torch

from rcray.config import build_run
from rcray.data.batch import collate
from rcray.data.encode import EncodedPair, EncodedPairs, EncodeReport
from rcray.data.schedule import Schedule
from rcray.errors import ConfigError
from tests.padding import padding_share

EOS = 0  # the pad id of this test too
PAIRS = (
    EncodedPair("a", (5, 6, 7), (8, EOS), (9, 9, 9, EOS)),
    EncodedPair("b", (5,), (8, EOS, 8, EOS), (EOS,)),
    EncodedPair("c", (EOS, EOS), (EOS, 4), (4, EOS)),
)


def test_masks_are_by_position_where_pad_is_eos():
    batch = collate(PAIRS, [0, 1, 2])
    assert batch.chosen.ids.tolist() == [[5, 6, 7, 8, 0], [5, 8, 0, 8, 0], [0, 0, 0, 4, 0]]
    assert batch.chosen.attention.tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 1, 1], [1, 1, 1, 1, 0]]
    assert batch.chosen.response.tolist() == [[0, 0, 0, 1, 1], [0, 1, 1, 1, 1], [0, 0, 1, 1, 0]]
    assert batch.rejected.attention.sum(1).tolist() == [7, 2, 4]
    assert batch.rejected.response.sum(1).tolist() == [4, 1, 2], "a real eos is an answer token"


def test_rows_are_those_asked_for_in_their_order():
    batch = collate(PAIRS, [2, 0])
    assert batch.index.tolist() == [2, 0]
    for row, position in enumerate([2, 0]):
        for side, answer in ((batch.chosen, PAIRS[position].chosen), (batch.rejected, PAIRS[position].rejected)):
            whole = side.ids[row][side.attention[row].bool()].tolist()
            assert tuple(whole) == PAIRS[position].prompt + answer
            assert tuple(side.ids[row][side.response[row].bool()].tolist()) == answer


def test_sides_are_padded_apart():
    batch = collate(PAIRS, [0])
    assert (batch.chosen.ids.shape, batch.rejected.ids.shape) == ((1, 5), (1, 7))


def test_tokens_counts_real_tokens_only():
    assert collate(PAIRS, [0, 1, 2]).tokens == sum(pair.tokens for pair in PAIRS)


def test_to_moves_everything():
    meta = collate(PAIRS, [0, 1]).to(torch.device("meta"))
    sides = (meta.chosen, meta.rejected)
    assert meta.index.is_meta and all(t.is_meta for s in sides for t in (s.ids, s.attention, s.response))


# -- the schedule

SCHEDULE = Schedule(pairs=53, batch_size=12, micro_batch_size=4, epochs=3, seed=1)


def steps(schedule, **where):
    return [schedule.micro_batches(step, **where) for step in range(schedule.total_steps)]


def flat(micro_batches):
    return list(itertools.chain.from_iterable(micro_batches))


def test_the_tail_of_an_epoch_is_dropped():
    assert (SCHEDULE.steps_per_epoch, SCHEDULE.total_steps) == (4, 12)


def test_shape_of_a_step():
    for micro_batches in steps(SCHEDULE):
        assert [len(rows) for rows in micro_batches] == [4, 4, 4]


def test_an_epoch_shows_no_pair_twice():
    for epoch in range(3):
        rows = [row for step in steps(SCHEDULE)[4 * epoch : 4 * epoch + 4] for row in flat(step)]
        assert len(set(rows)) == len(rows) == 48
        assert set(rows) <= set(range(53))


def test_an_epoch_without_a_tail_is_a_permutation():
    whole = Schedule(pairs=48, batch_size=12, micro_batch_size=4, epochs=2, seed=1)
    for epoch in range(2):
        rows = [row for step in steps(whole)[4 * epoch : 4 * epoch + 4] for row in flat(step)]
        assert sorted(rows) == list(range(48))
        assert rows != list(range(48)), "shuffled"


def test_the_same_seed_gives_the_same_order_and_another_does_not():
    again = Schedule(pairs=53, batch_size=12, micro_batch_size=4, epochs=3, seed=1)
    other = Schedule(pairs=53, batch_size=12, micro_batch_size=4, epochs=3, seed=2)
    assert steps(again) == steps(SCHEDULE) != steps(other)


def test_epochs_differ():
    first, second = steps(SCHEDULE)[:4], steps(SCHEDULE)[4:8]
    assert first != second


def test_a_step_does_not_depend_on_the_steps_before_it_nor_on_the_global_generator():
    expected = SCHEDULE.micro_batches(7)
    torch.manual_seed(123)
    state = torch.get_rng_state()
    assert Schedule(53, 12, 4, 3, 1).micro_batches(7) == expected
    assert torch.equal(torch.get_rng_state(), state)


def test_changing_a_result_does_not_change_the_schedule():
    before = SCHEDULE.micro_batches(0)
    SCHEDULE.micro_batches(0)[0].clear()
    assert SCHEDULE.micro_batches(0) == before


@pytest.mark.parametrize("workers", [2, 4])
def test_workers_share_each_micro_batch(workers):
    for step in range(SCHEDULE.total_steps):
        whole = SCHEDULE.micro_batches(step)
        shares = [SCHEDULE.micro_batches(step, rank, workers) for rank in range(workers)]
        for i, rows in enumerate(whole):
            parts = [share[i] for share in shares]
            assert {len(part) for part in parts} == {4 // workers}
            assert len(set(flat(parts))) == 4, "disjoint"
            assert set(flat(parts)) == set(rows)


def test_the_batch_of_a_step_does_not_depend_on_the_micro_batch_size():
    halves = Schedule(pairs=53, batch_size=12, micro_batch_size=6, epochs=3, seed=1)
    assert [flat(step) for step in steps(halves)] == [flat(step) for step in steps(SCHEDULE)]


def test_too_few_usable_pairs_is_refused():
    config = build_run({"train": {"batch_size": 32}}, {}, "t")
    assert Schedule.of(config, 32).total_steps == 1
    with pytest.raises(ConfigError, match=r"train\.batch_size 32: only 31 usable pairs"):
        Schedule.of(config, 31)


def test_the_largest_seed_is_taken():
    config = build_run({"train": {"seed": 2**32 - 1}}, {}, "t")
    assert len(Schedule.of(config, 64).micro_batches(0)) == 4


# -- bucketing by length

MIXED = np.random.default_rng(0).integers(1, 200, size=(1003, 3))


def bucketed(*, seed=1, micro=4, workers=1, pairs=1003):
    settings = {"data": {"bucketing": "length"}, "train": {"batch_size": 12, "micro_batch_size": micro, "seed": seed}}
    config = build_run({**settings, "train": {**settings["train"], "epochs": 2}}, {}, "t")
    return Schedule.of(config, pairs, MIXED[:pairs])


def test_buckets_hold_every_pair_at_most_once_an_epoch():
    schedule = bucketed()
    assert (schedule.steps_per_epoch, schedule.total_steps) == (83, 166)
    for epoch in range(2):
        rows = [row for step in steps(schedule)[83 * epoch : 83 * epoch + 83] for row in flat(step)]
        assert len(set(rows)) == len(rows) == 996
        assert set(rows) <= set(range(1003))


def test_buckets_are_a_function_of_seed_and_step():
    schedule = bucketed()
    assert steps(bucketed()) == steps(schedule) != steps(bucketed(seed=2))
    assert steps(schedule)[:83] != steps(schedule)[83:], "epochs differ"
    assert bucketed().micro_batches(100) == schedule.micro_batches(100), "whatever steps came before"


def test_buckets_are_shared_by_workers_without_overlap():
    schedule = bucketed()
    for step in range(0, schedule.total_steps, 7):
        shares = [schedule.micro_batches(step, rank, 2) for rank in range(2)]
        for i, rows in enumerate(schedule.micro_batches(step)):
            assert sorted(shares[0][i] + shares[1][i]) == sorted(rows)
            assert len(shares[0][i]) == len(shares[1][i]) == 2


def test_the_pairs_of_a_bucketed_step_do_not_depend_on_the_micro_batch_size():
    """It is no part of a run's identity where calibration is per step."""
    for three, six in zip(steps(bucketed(micro=4)), steps(bucketed(micro=6)), strict=True):
        assert sorted(flat(three)) == sorted(flat(six))


def test_bucketing_lowers_padding_and_keeps_mixing():
    plain = Schedule(pairs=1003, batch_size=12, micro_batch_size=4, epochs=2, seed=1)
    schedule = bucketed()
    before, after = padding_share(plain, MIXED), padding_share(schedule, MIXED)
    assert 0.15 < after < 0.75 * before, (before, after)
    means = [MIXED[flat(step)].sum(axis=1).mean() for step in steps(schedule)[:83]]
    assert abs(np.corrcoef(means, range(83))[0, 1]) < 0.3, "long batches are not all at one end"
    firsts = [MIXED[step[0]].sum() for step in steps(schedule)]
    lasts = [MIXED[step[-1]].sum() for step in steps(schedule)]
    assert abs(np.mean(firsts) / np.mean(lasts) - 1) < 0.05, "nor is a step always in ascending order"


def test_padding_share_is_that_of_the_tensors():
    encoded = EncodedPairs(PAIRS * 4, EncodeReport())
    schedule = Schedule(pairs=12, batch_size=4, micro_batch_size=2, epochs=1, seed=0)
    batches = [collate(encoded.pairs, rows) for step in steps(schedule) for rows in step]
    sides = [side for batch in batches for side in (batch.chosen, batch.rejected)]
    padded = sum(int((side.attention == 0).sum()) for side in sides)
    assert padding_share(schedule, encoded.lengths) == pytest.approx(padded / sum(side.ids.numel() for side in sides))
    assert padding_share(schedule, np.full((12, 3), 5)) == 0


def test_equal_lengths_need_no_order():
    same = Schedule(96, 12, 4, 1, 1, np.full(96, 7))
    assert sorted(row for step in steps(same) for row in flat(step)) == list(range(96))
