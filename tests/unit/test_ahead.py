"""Batches of a GPU, made a step ahead by a thread: the same as a CPU's, in order, and what goes wrong is not lost."""

import threading
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from rcray.data.layout import LaidOut
from rcray.data.schedule import Schedule
from rcray.train import ahead as ahead_module
from rcray.train.ahead import Ahead
from rcray.train.micro import lay_out
from rcray.train.record import row_of
from rcray.train.step import optimizer_step
from tests.math.test_one_backward import SIZES, build, gradients, make_pairs, state_of

CARD = torch.device("cuda", 0)
PAIRS, BATCH, MICRO = 12, 4, 2
SCHEDULE = Schedule(PAIRS, BATCH, MICRO, 1, 0)
STEPS = SCHEDULE.total_steps


@pytest.fixture
def pinned(monkeypatch):
    """Where what was put into pinned memory lies; without a card it stays where it is."""
    seen = set()

    def pin_memory(tensor):
        seen.add(tensor.data_ptr())
        return tensor

    monkeypatch.setattr(Tensor, "pin_memory", pin_memory)
    return seen


def pairs():
    return make_pairs(SIZES * (PAIRS // len(SIZES)))


def on_both(state, schedule=SCHEDULE, pairs_=None, **dealt):
    """What makes the batches of a CPU, and what makes those of a GPU."""
    rows = pairs_ or pairs()
    return [Ahead(replace(state.policy, device=at), rows, schedule, **dealt) for at in (torch.device("cpu"), CARD)]


def same(one, two):
    """Tensors within, too."""
    if isinstance(one, Tensor):
        return torch.equal(one, two)
    if hasattr(one, "__dataclass_fields__"):
        return all(same(getattr(one, f.name), getattr(two, f.name)) for f in fields(one))
    return one == two


@pytest.mark.parametrize("sharing", ["off", "on", "auto"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_gpus_batches_are_a_cpus_laid_out_in_pinned_memory(quick_cache, pinned, sharing, rank):
    state = state_of(build(quick_cache, "lora"), "dpo", estimator="adapters", sharing=sharing)
    plain, ahead = on_both(state, rank=rank, workers=2)
    for step in range(STEPS):
        expected, batches = plain.at(step), ahead.at(step)
        assert [batch.index.tolist() for batch in batches] == SCHEDULE.micro_batches(step, rank, 2)
        assert len(batches) == len(expected) == BATCH // MICRO
        for batch, other in zip(batches, expected, strict=True):
            assert isinstance(batch, LaidOut) and not isinstance(other, LaidOut)
            (layout,) = lay_out(plain.policy, other, apart=False)
            assert same(batch.layout, layout) and (sharing != "on" or layout.packed)
            assert same(other, batch), "and all that is known of its pairs"
            tensors = [t for t in vars(batch.layout).values() if isinstance(t, Tensor)]
            assert {t.data_ptr() for t in (batch.index, *tensors)} <= pinned
        assert plain.tokens(step) == ahead.tokens(step)


def test_weights_fresh_prompts_and_mismatched_rows_come_along(quick_cache, pinned):
    state = state_of(build(quick_cache, "lora"), "dpo", estimator="adapters")
    state.policy.baseline = lambda batch: None
    rows = [replace(pair, behind=(i % 5, i % 3)) for i, pair in enumerate(pairs())]
    behind = np.array([pair.behind for pair in rows])
    schedule = Schedule(PAIRS, BATCH, MICRO, 1, 0, behind=behind, prompts=behind % 3)
    plain, ahead = on_both(state, schedule, rows)
    for step in range(STEPS):
        for batch, other in zip(ahead.at(step), plain.at(step), strict=True):
            assert other.weights is not None and other.fresh is not None and other.mismatched is not None
            assert same(other, batch)


@pytest.fixture
def made(monkeypatch):
    """Which step each micro-batch was made for, by whom; a step in `broken` cannot be made."""
    step_of = {tuple(rows): step for step in range(STEPS) for rows in SCHEDULE.micro_batches(step)}
    real, seen, broken, begun = ahead_module.collate, [], set(), [threading.Event() for _ in range(STEPS)]

    def collate(pairs, index, *others):
        step = step_of[tuple(index)]
        seen.append((step, threading.current_thread().name.startswith("rcray-batches")))
        begun[step].set()
        if step in broken:
            raise ValueError(f"step {step} cannot be made")
        return real(pairs, index, *others)

    monkeypatch.setattr(ahead_module, "collate", collate)
    return seen, broken, begun


def test_the_next_step_is_under_way_when_one_is_taken(quick_cache, pinned, made):
    seen, _, begun = made
    plain, ahead = on_both(state_of(build(quick_cache, "lora"), "dpo", estimator="adapters"))
    ahead.at(0)
    assert begun[1].wait(30), "nobody asked for it yet"
    ahead.at(1)
    ahead.at(2)
    assert [step for step, _ in seen] == [0, 0, 1, 1, 2, 2], "each is made once"
    assert all(by_thread for _, by_thread in seen)
    seen.clear()
    plain.at(0)
    assert seen == [(0, False)] * 2, "beside a CPU's own arithmetic nothing is made ahead"


def test_a_run_that_goes_on_in_the_middle_begins_there(quick_cache, pinned, made):
    seen, _, _ = made
    plain, ahead = on_both(state_of(build(quick_cache, "lora"), "dpo", estimator="adapters"))
    batches = [ahead.at(step) for step in range(1, STEPS)]
    assert {step for step, _ in seen} == set(range(1, STEPS))
    for step, made_ahead in enumerate(batches, start=1):
        assert all(same(other, batch) for batch, other in zip(made_ahead, plain.at(step), strict=True))


def test_what_goes_wrong_ahead_is_said_at_its_own_step(quick_cache, pinned, made):
    _, broken, begun = made
    _, ahead = on_both(state_of(build(quick_cache, "lora"), "dpo", estimator="adapters"))
    broken.add(1)
    ahead.at(0)
    assert begun[1].wait(30)
    with pytest.raises(ValueError, match="step 1 cannot be made"):
        ahead.at(1)
    assert len(ahead.at(2)) == BATCH // MICRO


@pytest.mark.parametrize("method", ["full", "lora", "qlora"])
def test_a_step_on_what_was_laid_out_is_the_step_bit_for_bit(quick_cache, pinned, method):
    model, found = build(quick_cache, method), []
    estimator = "head" if method == "full" else "adapters"
    for which in range(2):
        state = state_of(model, "dpo", estimator=estimator, sharing="auto", n=PAIRS)
        batches = on_both(state)[which].at(0)
        assert all(isinstance(batch, LaidOut) == bool(which) for batch in batches)
        row = row_of(optimizer_step(state, batches, 1))
        found.append(({k: v for k, v in row.items() if "seconds" not in k}, gradients(model)))
        model.zero_grad(set_to_none=True)
    (row, expected), (other, result) = found
    assert row.keys() == other.keys() and row["log_alpha"] != 0
    assert [k for k in row if row[k] != other[k] and row[k] == row[k]] == [], "NaN is what was not asked for"
    assert expected.keys() == result.keys() and len(expected) > 0
    assert all(torch.equal(expected[name], result[name]) for name in expected)
