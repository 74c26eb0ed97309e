"""Collation masks by position, and the schedule is a function of seed and step."""

import itertools

import pytest
import torch

from rcray.config import build_run
from rcray.data.batch import Schedule, collate
from rcray.data.encode import EncodedPair
from rcray.errors import ConfigError

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
