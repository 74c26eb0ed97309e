"""The dynamics recorder: one row per step, kept in Parquet parts that always match a checkpoint.

Rows are buffered and written as one part just before each checkpoint. After a kill, parts beyond the newest
checkpoint are removed and their steps are made again, so the record has every step exactly once. Until a row is in a
part, whoever watches finds it in the run's live rows.
"""

from pathlib import Path
from typing import Any

import numpy as np

from rcray.extras import explained_imports
from rcray.files import write_parquet
from rcray.records.columns import BY_NAME, COLUMNS, EMPTY
from rcray.records.live import LiveRows

with explained_imports():
    import pyarrow as pa
    import pyarrow.compute
    import pyarrow.parquet as pq

_TYPES = {"int": pa.int64(), "float": pa.float64(), "bool": pa.bool_(), "str": pa.string()}
SCHEMA = pa.schema([(column.name, _TYPES[column.kind]) for column in COLUMNS])


class Recorder:
    """Buffers rows and writes them in parts named by their first and last step."""

    def __init__(self, directory: Path, live: LiveRows | None = None):
        self.directory = directory
        self.live = live  # None: nobody can watch between parts
        self.rows: list[dict[str, Any]] = []

    def add(self, row: dict[str, Any]) -> None:
        """Takes one step's row; every column of the glossary must be there."""
        self.rows.append({name: row[name] for name in SCHEMA.names})
        if self.live:
            self.live.add(self.rows[-1])

    def flush(self) -> None:
        """Writes the buffered rows as one part."""
        if not self.rows:
            return
        first, last = self.rows[0]["step"], self.rows[-1]["step"]
        write_parquet(self.directory / part_name(first, last), pa.Table.from_pylist(self.rows, SCHEMA))
        self._forget()

    def rewind(self, step: int) -> None:
        """Forgets every row after `step`."""
        self._forget()
        for path, first, last in _parts(self.directory):
            if last <= step:
                continue
            if first <= step:
                table = _open_part(path)
                kept = table.filter(pa.compute.less_equal(table["step"], step))
                write_parquet(self.directory / part_name(first, step), kept)
            path.unlink()

    def _forget(self) -> None:
        self.rows = []
        if self.live:
            self.live.clear()


def part_name(first: int, last: int) -> str:
    """File name of the part that holds steps `first` to `last`."""
    return f"part-{first:08d}-{last:08d}.parquet"


def _parts(directory: Path) -> list[tuple[Path, int, int]]:
    """The parts in their order, each with its first and last step."""
    paths = sorted(directory.glob("part-*.parquet"))
    return [(path, *map(int, path.stem.split("-")[1:])) for path in paths]  # type: ignore[misc]


def read_dynamics(directory: Path, columns: list[str] | None = None, after_step: int = 0) -> pa.Table:
    """Recorded rows after a step, in order of steps; an empty table where nothing is recorded yet.

    While a run rewinds, a step may stand in two parts for a moment; the later part holds the one that counts.
    """
    wanted = columns or SCHEMA.names
    read = list(dict.fromkeys(["step", *wanted]))
    parts = [path for path, _, last in _parts(directory) if last > after_step]
    if not parts:
        return SCHEMA.empty_table().select(wanted)
    table = pa.concat_tables([_read_part(path, read) for path in parts])
    steps = table["step"].to_numpy()
    unique, from_the_end = np.unique(steps[::-1], return_index=True)
    kept = len(steps) - 1 - from_the_end
    return table.take(kept[unique > after_step]).select(wanted)


def sound_until(directory: Path) -> int:
    """The last step up to which the record is whole: every part is there and its content is what was written."""
    reached = 0
    for path, first, last in _parts(directory):
        if last <= reached:  # rewound since
            continue
        try:
            steps = _read_part(path, SCHEMA.names)["step"].to_pylist()
        except (pa.ArrowException, OSError, KeyError, ValueError):  # ValueError: a name that is no text
            break
        if first > reached + 1 or steps != list(range(first, last + 1)):
            break
        reached = last
    return reached


def _open_part(path: Path) -> pa.Table:
    return pq.read_table(path, page_checksum_verification=True)


def _read_part(path: Path, columns: list[str]) -> pa.Table:
    """The columns of one part, and no others; one that came later than the part is not measured there."""
    with pq.ParquetFile(path, page_checksum_verification=True) as file:
        known = set(file.schema_arrow.names)
        table = file.read([name for name in columns if name in known], use_threads=False)  # small: threads only wait
    for field in SCHEMA:
        if field.name in columns and field.name not in table.column_names:
            empty = pa.array([EMPTY[BY_NAME[field.name].kind]] * table.num_rows, field.type)
            table = table.append_column(field, empty)
    return table.select(columns)
