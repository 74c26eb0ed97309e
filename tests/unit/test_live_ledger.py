"""The ledger of a sweep under way: what a disk does for a moment costs it nothing but that moment."""

import threading

import pytest

from rcray.config import run_id
from rcray.errors import StoreError
from rcray.files import write_json
from rcray.records.states import State
from rcray.store import Store
from rcray.sweep import runner
from rcray.sweep.grid import Cell
from rcray.sweep.ledger import LiveLedger
from rcray.sweep.runner import SweepOptions, run_sweep
from tests.small_runs import small_config


@pytest.fixture
def store(tmp_path):
    return Store.open(tmp_path)


@pytest.fixture
def cell():
    config = small_config()
    return Cell(run_id(config), config, ())


def test_what_ended_during_a_failed_refresh_is_read_by_the_next(store, cell):
    troubles = [None, OSError("the disk is away"), None]

    def fetch(running, ended):
        if trouble := troubles.pop(0):
            raise trouble

    ledger = LiveLedger([cell], store, store.experiment("x"), fetch=fetch)
    assert ledger.refresh().cells[0].status is State.PENDING
    write_json(store.run(cell.run_id).status, {"status": "failed"})
    ledger.end(cell.run_id)
    with pytest.raises(OSError, match="away"):
        ledger.refresh()
    assert ledger.refresh().cells[0].status is State.FAILED


def test_a_file_that_cannot_be_read_for_a_moment_ends_no_watch(store, cell, monkeypatch):
    seen, enough = [], threading.Event()

    def on_refresh(ledger):
        seen.append(ledger)
        if len(seen) == 2:
            raise StoreError("adjusted.json: cannot be read: Stale file handle")
        if len(seen) == 3:
            enough.set()

    monkeypatch.setattr(runner, "_REFRESH_SECONDS", 0.01)
    looked_again = []
    monkeypatch.setattr(runner, "_run_on_tune", lambda *_: looked_again.append(enough.wait(5)))
    run_sweep([cell], store, store.experiment("x"), SweepOptions(on_refresh=on_refresh))
    assert looked_again == [True]
