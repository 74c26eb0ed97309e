"""Whose turn it is in a pass of delivery: of thousands of cells, those with something new, and everybody in time."""

import os
from collections.abc import Sequence
from pathlib import Path

from rcray.store import RunDir, Store
from rcray.sweep.grid import Cell

#: Of a run's small files, as they were looked at: one that is written again differs.
Seen = tuple[tuple[int, int, int] | None, ...]


class Turns:
    """Passes that are cut short go on where the last one stopped; a cell that is level waits until its files change."""

    def __init__(self) -> None:
        self._level: dict[str, Seen] = {}
        self._last = ""

    def due(self, cells: Sequence[Cell], store: Store, *, everything: bool) -> list[tuple[Cell, Seen]]:
        """The cells to look at, with what was seen of their files: those that have begun before those that wait."""
        start = next((i + 1 for i, cell in enumerate(cells) if cell.run_id == self._last), 0)
        seen = [(cell, _seen(store.run(cell.run_id))) for cell in [*cells[start:], *cells[:start]]]
        due = [(cell, files) for cell, files in seen if everything or self._level.get(cell.run_id) != files]
        return sorted(due, key=lambda each: not any(each[1]))

    def begin(self, cell: Cell) -> None:
        """It is looked at now; until `level` it stays due."""
        self._last = cell.run_id
        self._level.pop(cell.run_id, None)

    def level(self, cell: Cell, files: Seen) -> None:
        """The tracker has all that these files say."""
        self._level[cell.run_id] = files

    def forget(self) -> None:
        """Somebody else delivered, or what is to be delivered is another thing now."""
        self._level.clear()


def _seen(run: RunDir) -> Seen:
    """Every delivery follows from these: records are written before the status, which vouches for them."""
    return _file(run.status), _file(run.evaluation)


def _file(path: Path) -> tuple[int, int, int] | None:
    try:
        state = os.stat(path)
    except OSError:
        return None
    return state.st_mtime_ns, state.st_size, state.st_ino
