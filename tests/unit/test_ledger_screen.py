"""The ledger on a terminal: small sweeps whole, of large ones what runs, what failed and what has just finished."""

import re
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from rcray.progress import LedgerScreen
from rcray.records.ledger import Ledger, LedgerEntry
from rcray.records.states import State

HEIGHT = 30


def ledger_of(count, **states):
    """So many cells, pending but for those named by state."""
    cells = [LedgerEntry(f"id-{i}", f"cell {i}") for i in range(count)]
    for state, places in states.items():
        for i in places:
            cells[i] = replace(cells[i], status=State(state), doing=f"step of {i}" if state == "running" else "")
    return Ledger(tuple(cells))


@pytest.fixture
def terminal():
    screen = LedgerScreen("t")
    screen.console = Console(force_terminal=True, width=100, height=HEIGHT, file=StringIO())
    with screen:
        yield screen


def drawn(screen):
    """What is on the terminal now: its lines, and which cells have a row."""
    console = Console(width=100, file=StringIO())
    console.print(screen.live.get_renderable())
    lines = console.file.getvalue().splitlines()
    return lines, [found[1] for line in lines if (found := re.match(r" (cell \d+)  ", line))]


def test_a_small_sweep_is_shown_whole(terminal):
    terminal.refresh(ledger_of(12, ok=range(4), running=[4, 5]))
    lines, cells = drawn(terminal)
    assert len(cells) == 12 and len(lines) <= HEIGHT
    assert "cell 5: step of 5" in lines[-1] and "are shown" not in "".join(lines)


def test_of_a_large_one_no_more_than_the_terminal_holds(terminal):
    """As many rows for ten thousand cells as for a hundred: it is drawn four times a second."""
    counts = []
    for count in (100, 10_000):
        terminal.refresh(ledger_of(count, running=[70, 71], failed=[90], oom=[95], ok=range(60)))
        lines, cells = drawn(terminal)
        assert len(lines) <= HEIGHT
        assert {"cell 70", "cell 71", "cell 90", "cell 95"} <= set(cells)
        assert f"{count - 64} pending" in "".join(lines) and f"of {count:,} cells are shown" in "".join(lines)
        counts.append(len(cells))
    assert counts[0] == counts[1] > 10


def test_the_last_to_finish_stay_in_sight(terminal):
    terminal.refresh(ledger_of(200, ok=range(100)))
    terminal.refresh(ledger_of(200, ok=[*range(100), 150, 199], running=[120]))
    names = drawn(terminal)[1]
    assert {"cell 150", "cell 199", "cell 120", "cell 99"} <= set(names) and "cell 0" not in names
    assert names == sorted(names, key=lambda name: int(name.split()[1])), "in the order of the sweep"


def test_many_running_cells_leave_room_for_those_that_failed(terminal):
    terminal.refresh(ledger_of(500, running=range(8), failed=[400]))
    lines, cells = drawn(terminal)
    assert "cell 400" in cells and "cell 0: step of 0" in "".join(lines)


def printed(ledger):
    screen = LedgerScreen("t")
    screen.console = Console(width=100, file=StringIO())
    with screen:
        screen.refresh(Ledger())
        screen.last = ledger
    return screen.console.file.getvalue()


def test_in_the_end_a_large_sweep_is_told_by_its_tally_and_what_failed():
    said = printed(ledger_of(10_000, ok=range(9_998), failed=[9_998], oom=[9_999]))
    assert "9998 ok, 1 failed, 1 oom" in said and "9,998 cells are not shown: ledger.json has all" in said
    assert "cell 9998" in said and "cell 9999" in said and len(said.splitlines()) < 15


def test_in_the_end_a_small_one_is_printed_whole():
    said = printed(ledger_of(50, ok=range(50)))
    assert all(f"id-{i}" in said for i in range(50)) and "not shown" not in said
