"""Raw rows of typed tables: Parquet files, saved `datasets`, hub datasets. Read in small batches."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rcray.config import content_key
from rcray.data.dialogue import Skipped
from rcray.data.rows import Row, Rows, file_digest, readable, refuse_empty
from rcray.errors import DataError
from rcray.extras import explained_imports

if TYPE_CHECKING:
    import pyarrow.parquet as pq

_BATCH = 256  # rows held as Python objects at a time


@dataclass(frozen=True)
class ParquetTable:
    """One Parquet file; a row is named `file:position`, counting from 1."""

    path: Path

    @property
    def columns(self) -> tuple[str, ...]:
        """Of the file's schema."""
        with self._file() as file:
            return tuple(file.schema_arrow.names)

    def read(self, wanted: Sequence[str]) -> Iterator[Row | Skipped]:
        """Only the wanted columns are decoded."""
        with self._file() as file:
            import pyarrow as pa

            start = 1
            batches = file.iter_batches(_BATCH, columns=[name for name in wanted if name in file.schema_arrow.names])
            while True:
                try:
                    batch = next(batches, None)
                except (pa.ArrowException, OSError) as error:
                    raise _damaged(self.path, error) from None
                if batch is None:
                    return
                yield from rows_of_batch(batch, str(self.path), start)
                start += batch.num_rows

    def count(self) -> int:
        """From the file's footer."""
        with self._file() as file:
            return int(file.metadata.num_rows)

    def fingerprint(self) -> str:
        """Of the bytes."""
        return file_digest(self.path)

    def _file(self) -> "pq.ParquetFile":
        refuse_empty(self.path)
        with explained_imports():
            import pyarrow as pa
            import pyarrow.parquet as pq
        try:
            with readable(self.path):
                return pq.ParquetFile(self.path)
        except pa.ArrowException as error:
            raise _damaged(self.path, error) from None


def _damaged(path: Path, error: Exception) -> DataError:
    return DataError(f"{path}: damaged Parquet: {' '.join(str(error).split())}", fix="write the file again")


@dataclass(frozen=True)
class DatasetTable:
    """A `datasets.Dataset`, which is memory-mapped; a row is named `title:position`, counting from 1."""

    dataset: Any
    title: str
    key: str  # of its content

    @property
    def columns(self) -> tuple[str, ...]:
        """Of its features."""
        return tuple(self.dataset.column_names)

    def read(self, wanted: Sequence[str]) -> Iterator[Row | Skipped]:
        """Only the wanted columns are decoded."""
        view = self.dataset.select_columns([name for name in wanted if name in self.columns]).with_format("arrow")
        for i, batch in enumerate(view.iter(_BATCH)):
            yield from rows_of_batch(batch, self.title, 1 + i * _BATCH)

    def count(self) -> int:
        """Its length."""
        return len(self.dataset)

    def fingerprint(self) -> str:
        """As its opener found it."""
        return self.key


def rows_of_batch(batch: Any, title: str, start: int) -> Iterator[Row | Skipped]:
    """Rows of an Arrow batch; text that is no UTF-8 costs its own row alone."""
    import pyarrow as pa

    try:
        values = batch.to_pylist()
    except (UnicodeDecodeError, pa.ArrowException):
        values = [_one(batch.slice(i, 1)) for i in range(batch.num_rows)]
    for number, row in enumerate(values, start):
        name = f"{title}:{number}"
        yield Row(name, row) if isinstance(row, dict) else Skipped(name, "dropped unreadable", row)


def _one(row: Any) -> dict[str, Any] | str:
    import pyarrow as pa

    try:
        return dict(row.to_pylist()[0])
    except UnicodeDecodeError as error:
        return f"not valid UTF-8 at byte {error.start}"
    except pa.ArrowException as error:
        return " ".join(str(error).split())


@dataclass(frozen=True)
class Joined:
    """Several parts as one. `alternating` takes a row of each in turn, so that the first rows show every part."""

    parts: tuple[Rows, ...]
    alternating: bool = False

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Those that every part has."""
        known = [part.columns for part in self.parts]
        if any(columns is None for columns in known):
            return None
        first, *others = [columns or () for columns in known]
        return tuple(name for name in first if all(name in other for other in others))

    def read(self, wanted: Sequence[str]) -> Iterator[Row | Skipped]:
        """Every part's rows, once."""
        streams = [part.read(wanted) for part in self.parts]
        if not self.alternating:
            return chain.from_iterable(streams)
        return (row for rows in zip_longest(*streams) for row in rows if row is not None)

    def count(self) -> int:
        """Over all parts."""
        return sum(part.count() for part in self.parts)

    def fingerprint(self) -> str:
        """Of every part's, in order."""
        return content_key([[part.fingerprint() for part in self.parts], self.alternating], 64)
