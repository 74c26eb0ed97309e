"""`.live.jsonl`: the step records since a run's newest checkpoint, a line each, as soon as the step is made.

For whoever watches, and for nobody else: what a run resumes from is in its Parquet parts, which are written with its
checkpoints. A line that a kill cut in two is no row, a disk that is full stops no step, and the file goes when the rows
are in a part.
"""

import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

FILE = ".live.jsonl"  # hidden: like the note of progress it is no part of the run that is copied or tracked


class LiveRows:
    """The training's end: appends rows, and forgets them when they are kept elsewhere."""

    def __init__(self, run: Path):
        self._path = run / FILE

    def add(self, row: Mapping[str, Any]) -> None:
        """One write a row, without waiting for the disk; what was not measured is left out."""
        said = {name: value for name, value in row.items() if not _is_empty(value)}
        with suppress(OSError):  # a full disk is met, and said, by what must be written
            handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            try:
                os.write(handle, (json.dumps(said) + "\n").encode())
            finally:
                os.close(handle)

    def clear(self) -> None:
        """The rows so far are kept elsewhere, or forgotten."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


def read_live(run: Path) -> list[dict[str, Any]]:
    """The rows that stand there, in order; what is no whole line is not one."""
    rows = []
    try:
        lines = (run / FILE).read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return []
    for line in lines[:-1]:
        with suppress(ValueError):
            row = json.loads(line)
            if isinstance(row, dict) and isinstance(row.get("step"), int):
                rows.append(row)
    return rows


def _is_empty(value: Any) -> bool:
    return value == "" or (isinstance(value, float) and math.isnan(value))
