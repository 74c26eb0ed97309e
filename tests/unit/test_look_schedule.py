"""Which pairs are looked at: those that training comes to later."""

from hypothesis import given
from hypothesis import strategies as st

from rcray.data.schedule import FIRST_LOOKS, LookSchedule, Schedule

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
        assert (rows is not None) == ((epoch == 0 and position < FIRST_LOOKS) or position % every == 0)
        if rows is None:
            continue
        assert len(rows) == len(set(rows)) == min(pairs, used - size)
        own = {row for part in schedule.micro_batches(step) for row in part}
        assert not own & set(rows)
        start = epoch * schedule.steps_per_epoch
        trained_on = {row for before in range(start, step) for part in schedule.micro_batches(before) for row in part}
        fresh = used - (position + 1) * size
        assert len(trained_on & set(rows)) == max(0, len(rows) - fresh)
        ends = start + schedule.steps_per_epoch
        following = next((s for s in range(step + 1, ends) if looks.rows(s) is not None), ends)
        meanwhile = {row for s in range(step, following) for part in schedule.micro_batches(s) for row in part}
        later = used - (following - start) * size
        assert len(meanwhile & set(rows)) == max(0, min(len(rows), fresh) - later)


def test_later_looks_see_other_pairs():
    looks = LookSchedule(Schedule(800, 8, 4, 1, seed=0), every=10, pairs=8)
    seen = [looks.rows(step) for step in (0, 1, 2, 30, 40)]
    assert len({row for rows in seen for row in rows}) == 5 * 8
