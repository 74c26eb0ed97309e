"""A GPU that is broken is told from a cell that breaks it, kept for a while, and charged to nobody."""

from types import SimpleNamespace

import pytest
import torch

from rcray import faults
from rcray.errors import RcrayError
from rcray.faults import ended_by_device_faults, is_broken_card
from rcray.sweep import losses
from rcray.sweep.losses import BROKEN_CARD, NODE, PROCESSES, SHARES_STORE, CardWatch, Losses, trial_watch
from tests.unit.test_sweep_trial import DEVICE, MEMORY, THE_CELL_ITSELF

OF_THE_CARD = [
    message
    for message in DEVICE
    if any(
        word in message for word in ("uncorrectable", "unknown error", "CUDA-capable", "No CUDA GPUs", "GPU is lost")
    )
]
ECC = "CUDA error: uncorrectable ECC error encountered"


@pytest.mark.parametrize("message", [*DEVICE, *MEMORY, *THE_CELL_ITSELF])
def test_only_what_no_program_can_bring_about_is_the_card(message):
    assert is_broken_card(torch.AcceleratorError(message)) == (message in OF_THE_CARD)


@pytest.mark.parametrize(("after", "held"), [(5.0, [180.0]), (3600.0, [])])
def test_a_gpu_that_fails_soon_is_held(monkeypatch, after, held):
    events, clock = [], iter([0.0, after])
    monkeypatch.delenv(faults.HOLD_SECONDS, raising=False)
    fake = SimpleNamespace(monotonic=lambda: next(clock), sleep=events.append)
    monkeypatch.setattr(faults, "time", fake)
    monkeypatch.setattr(faults.os, "_exit", lambda code: events.append(f"exit {code}"))
    with ended_by_device_faults(lambda error: events.append("said")):
        raise torch.AcceleratorError(ECC)
    assert events == ["said", *held, "exit 74"]


def test_what_is_no_fault_of_the_gpu_is_neither_held_nor_said(monkeypatch):
    monkeypatch.setattr(faults.time, "sleep", lambda seconds: pytest.fail("held"))
    with pytest.raises(ZeroDivisionError), ended_by_device_faults(lambda error: pytest.fail("said")):
        raise ZeroDivisionError


def test_a_broken_card_matters_where_nothing_else_works():
    cards = CardWatch()
    cards.works("a")
    assert [cards.meets("b") for _ in range(5)] == [0] * 5, "a works on another one"
    cards.ends("a")
    assert [cards.meets("b"), cards.meets("c")] == [1, 2]
    cards.works("c")
    cards.ends("c")
    assert cards.meets("d") == 1


def test_a_broken_card_is_avoided_and_not_charged():
    met = Losses()
    met.broken_cards += ["there"] * 50
    assert met.verdict({"there"}) == "" and met.avoided({"there", "else"}) == {"there"}


@pytest.fixture
def watch(monkeypatch):
    monkeypatch.setattr(losses, "_alive", lambda: {"one": {"GPU": 8.0}})
    monkeypatch.setattr(losses, "_address", lambda node: "10.0.0.1")
    monkeypatch.setattr(losses, "_move", lambda trial, avoided, nodes: False)
    quiet = SimpleNamespace(start=lambda key: None, end=lambda key: None, is_written_here=lambda key: None)
    return trial_watch(quiet, quiet)


def trial(run_id):
    config = {"cell": {"run_id": run_id}}
    return SimpleNamespace(config=config, max_failures=-1, get_pickled_error=lambda: None)


def begin(watch, some):
    watch.on_trial_result(1, [], some, {NODE: "one", SHARES_STORE: True})


def lose(watch, some, said=""):
    begin(watch, some)
    if said:
        watch.on_trial_result(1, [], some, {BROKEN_CARD: said})
    watch.on_trial_recover(1, [], some)
    watch.on_step_end(1, [])


def test_on_one_machine_with_eight_cards_no_cell_fails(watch):
    working, unlucky = trial("a"), trial("b")
    begin(watch, working)
    watch.on_trial_result(1, [], working, {"step": 1})
    for _ in range(10):
        lose(watch, unlucky, ECC)
    assert not watch.given_up and "given_up" not in unlucky.config
    watch.on_trial_complete(1, [], working)
    for some in (unlucky, trial("c")):
        lose(watch, some, ECC)
    with pytest.raises(RcrayError, match=r"node 10\.0\.0\.1: a broken GPU took 3 processes in a row: CUDA error: unc"):
        lose(watch, unlucky, ECC)
    assert not watch.given_up


def test_a_fault_that_a_cell_may_have_made_is_charged_to_it(watch):
    deadly = trial("a")
    for _ in range(PROCESSES):
        lose(watch, deadly)
    assert watch.given_up and deadly.max_failures == 0
