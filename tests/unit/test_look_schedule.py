"""Which pairs are looked at: those that training comes to later."""

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rcray.config.calibration import FIRST_LOOKS, LATE_LOOKS
from rcray.data.schedule import LookSchedule, Schedule

schedules = st.builds(
    lambda steps, batch, rest, epochs, seed: Schedule(steps * batch + rest % batch, batch, batch, epochs, seed),
    steps=st.integers(2, 60), batch=st.sampled_from([1, 4, 8]), rest=st.integers(0, 7), epochs=st.integers(1, 2),
    seed=st.integers(0, 3),
)  # fmt: skip


@given(schedule=schedules, every=st.integers(1, 12), pairs=st.integers(1, 16))
def test_a_look_sees_pairs_that_come_later(schedule, every, pairs):
    """Never the step's own; while others last, none that was trained on, or will be before the next look."""
    looks, size = LookSchedule(schedule, every, pairs), schedule.batch_size
    used = schedule.steps_per_epoch * size
    for step in range(schedule.total_steps):
        rows = looks.rows(step)
        epoch, position = divmod(step, schedule.steps_per_epoch)
        dense = min(FIRST_LOOKS, round(schedule.total_steps / 4)) if epoch == 0 else 0
        assert (rows is not None) == (position < dense or position % every == 0)
        if rows is None:
            continue
        assert len(rows) == len(set(rows)) == min(pairs, schedule.pairs - size)
        own = {row for part in schedule.micro_batches(step) for row in part}
        assert not own & set(rows)
        start = epoch * schedule.steps_per_epoch
        trained_on = {row for before in range(start, step) for part in schedule.micro_batches(before) for row in part}
        left_out = schedule.pairs - used
        fresh = used - (position + 1) * size + left_out
        assert len(trained_on & set(rows)) == max(0, len(rows) - fresh)
        ends = start + schedule.steps_per_epoch
        following = next((s for s in range(step + 1, ends) if looks.rows(s) is not None), ends)
        meanwhile = {row for s in range(step, following) for part in schedule.micro_batches(s) for row in part}
        later = used - (following - start) * size
        assert len(meanwhile & set(rows)) == max(0, min(len(rows), fresh) - later - left_out)


def test_late_looks_are_further_apart():
    looks = LookSchedule(Schedule(1000 * 4, 4, 4, 1, seed=0), every=10, pairs=4)
    taken = [step for step in range(1000) if looks.rows(step) is not None]
    assert taken == [*range(FIRST_LOOKS), *range(FIRST_LOOKS, LATE_LOOKS, 10), *range(LATE_LOOKS, 1000, 20)]


def test_a_batch_is_never_judged_by_itself():
    """Beside a single step there are the pairs that it leaves out, or none."""
    alone = LookSchedule(Schedule(8, 8, 8, 3, seed=0), every=1, pairs=8)
    assert [alone.rows(step) for step in range(3)] == [None] * 3
    schedule = Schedule(13, 8, 8, 3, seed=0)
    for step in range(3):
        rows = LookSchedule(schedule, every=1, pairs=8).rows(step)
        assert set(rows) == set(range(13)) - set(_rows(schedule, step, step + 1))


@given(schedule=schedules, pairs=st.integers(1, 16), workers=st.integers(1, 7))
def test_every_worker_has_as_many_pairs_of_a_look(schedule, pairs, workers):
    looks = LookSchedule(schedule, 1, pairs, workers)
    counts = {len(looks.rows(step) or ()) for step in range(schedule.total_steps)}
    (count,) = counts
    assert count % workers == 0 and count < pairs + workers
    assert count >= min(pairs, (schedule.pairs - schedule.batch_size) // workers * workers)


def test_later_looks_see_other_pairs():
    looks = LookSchedule(Schedule(800, 8, 4, 1, seed=0), every=10, pairs=8)
    seen = [looks.rows(step) for step in (0, 1, 2, 30, 40)]
    assert len({row for rows in seen for row in rows}) == 5 * 8


@given(schedule=schedules, every=st.integers(1, 12), pairs=st.integers(1, 16), kinds=st.integers(1, 400))
def test_a_look_sees_prompts_that_come_later(schedule, every, pairs, kinds):
    """While there are such, none of its prompts was trained on, or will be before the next look."""
    numbers = np.random.default_rng(kinds).integers(0, kinds, (schedule.pairs, 2))
    schedule = replace(schedule, prompts=numbers)
    looks, size = LookSchedule(schedule, every, pairs), schedule.batch_size
    for step in range(schedule.total_steps):
        rows = looks.rows(step)
        if rows is None:
            continue
        assert len(rows) == len(set(rows)) == min(pairs, schedule.pairs - size)
        start = step - step % schedule.steps_per_epoch
        ends = start + schedule.steps_per_epoch
        following = next((s for s in range(step + 1, ends) if looks.rows(s) is not None), ends)
        trained = _rows(schedule, start, following)
        prompts = set(numbers[trained].flatten())
        others = set(range(schedule.pairs)) - set(_rows(schedule, start, following))
        unseen = [row for row in others if not prompts & set(numbers[row])]
        assert sum(row in unseen for row in rows) == min(len(rows), len(unseen))


@given(schedule=schedules, every=st.integers(1, 12), pairs=st.integers(1, 16))
def test_prompts_of_their_own_change_nothing(schedule, every, pairs):
    numbered = replace(schedule, prompts=np.arange(2 * schedule.pairs).reshape(-1, 2))
    for step in range(schedule.total_steps):
        ours, plain = (LookSchedule(one, every, pairs).rows(step) for one in (numbered, schedule))
        assert (ours is None) == (plain is None) and set(ours or ()) == set(plain or ())
        fresh = numbered.fresh(step)
        assert fresh is not None and fresh[_rows(schedule, step, step + 1)].all()


def test_a_pair_is_fresh_until_its_prompt_was_trained_on():
    prompts = np.array([[0, 0], [1, 1], [2, 0], [3, 3]])
    schedule = Schedule(4, 1, 1, 1, seed=0, prompts=prompts)
    order = _rows(schedule, 0, 4)
    for step in range(4):
        seen = set(prompts[order[:step]].flatten())
        assert schedule.fresh(step).tolist() == [not seen & set(row) for row in prompts.tolist()]
    assert Schedule(4, 1, 1, 1, seed=0).fresh(3) is None


def test_a_thread_may_be_an_epoch_ahead():
    """Batches are made by a thread, looks by the loop: at the end of an epoch they ask for two of them by turns."""
    schedule = Schedule(40, 4, 4, 2, seed=0, prompts=np.arange(80).reshape(-1, 2) % 30)
    expected = _rows(schedule, 9, 10), schedule.fresh(9).tolist()

    class Interrupted(dict):
        """As if the thread came just when something is kept, with the next epoch's."""

        def __setitem__(self, epoch, value):
            super().__setitem__(epoch, value)
            if epoch == 0:
                schedule.micro_batches(10)
                schedule.fresh(10)

    for name in ("_kept", "_first"):
        object.__setattr__(schedule, name, Interrupted())
    assert (_rows(schedule, 9, 10), schedule.fresh(9).tolist()) == expected


def _rows(schedule, first, last):
    return [row for step in range(first, last) for part in schedule.micro_batches(step) for row in part]
