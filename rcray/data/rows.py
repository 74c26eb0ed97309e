"""Raw rows of text files, one at a time: JSONL (also gzipped), JSON arrays, CSV.

A row is named `file:line`, counting from 1; an element of a JSON array by its position. A row that cannot be read
becomes a `Skipped`; a file that cannot be read is an error.
"""

import csv
import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

from rcray.data.dialogue import MAX_ROW_CHARACTERS, Skipped
from rcray.errors import DataError

MAX_LINE_BYTES = 4 * MAX_ROW_CHARACTERS  # UTF-8 takes up to 4 bytes a character
MAX_ARRAY_BYTES = 2**29  # a JSON array has to be parsed whole


class Row(NamedTuple):
    """A readable row: its name, and its values by column."""

    name: str
    values: dict[str, Any]


class Rows(Protocol):
    """Rows of one split; may be read any number of times, in the same order."""

    @property
    def columns(self) -> tuple[str, ...] | None:
        """None where every row has its own, as in JSONL."""

    def read(self, wanted: Sequence[str]) -> Iterator[Row | Skipped]:
        """The rows, with the wanted columns at least."""

    def count(self) -> int:
        """How many `read` yields."""

    def fingerprint(self) -> str:
        """Changes whenever the content does."""


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turns whatever a damaged or forbidden file raises into an error that names it."""
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{path}: cannot be read: {reason}", fix="check the file and data.name") from None


def refuse_empty(path: Path) -> None:
    """An empty file is a mistake, not a dataset."""
    with readable(path):
        if path.stat().st_size == 0:
            raise DataError(f"{path}: the file is empty", fix="write it again, or correct data.name")


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    with readable(path), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True)
class JsonLines:
    """One object per line."""

    path: Path
    columns: tuple[str, ...] | None = None

    def read(self, wanted: Sequence[str]) -> Iterator[Row | Skipped]:
        """Lines are read up to a limit, so that one endless line does not fill the memory."""
        for number, line in self._lines():
            name = f"{self.path}:{number}"
            if isinstance(line, int):
                yield Skipped(name, "dropped too long", f"{line:,} bytes, and {MAX_LINE_BYTES:,} are allowed")
            else:
                yield _parse(name, line)

    def count(self) -> int:
        """Lines that are not blank."""
        return sum(1 for _ in self._lines())

    def fingerprint(self) -> str:
        """Of the bytes."""
        return file_digest(self.path)

    def _lines(self) -> Iterator[tuple[int, bytes | int]]:
        """(line number, line), or (line number, bytes) of a line that is too long; blank ones are passed over."""
        refuse_empty(self.path)
        with readable(self.path), _open(self.path) as file:
            number = 0
            while line := file.readline(MAX_LINE_BYTES):
                number += 1
                size = len(line)
                if size == MAX_LINE_BYTES and not line.endswith(b"\n"):
                    while rest := file.readline(MAX_LINE_BYTES):
                        size += len(rest)
                        if rest.endswith(b"\n"):
                            break
                    yield number, size
                elif line.strip():
                    yield number, line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line


def _open(path: Path) -> IO[bytes]:
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def _parse(name: str, line: bytes) -> Row | Skipped:
    try:
        values = json.loads(line.decode())
    except UnicodeDecodeError as error:
        return Skipped(name, "dropped unreadable", f"not valid UTF-8 at byte {error.start}")
    except (json.JSONDecodeError, RecursionError, ValueError) as error:
        return Skipped(name, "dropped unreadable", f"not valid JSON: {' '.join(str(error).split())}")
    return _as_row(name, values)


def _as_row(name: str, values: Any) -> Row | Skipped:
    if isinstance(values, dict):
        return Row(name, values)
    return Skipped(name, "dropped unreadable", f"a JSON object is expected, and this is a {type(values).__name__}")


@dataclass(frozen=True)
class JsonArray:
    """One array of objects. It is parsed whole, so its size is limited."""

    path: Path
    columns: tuple[str, ...] | None = None

    def read(self, wanted: Sequence[str]) -> Iterator[Row | Skipped]:
        """The elements in their order."""
        return (_as_row(f"{self.path}:{i}", values) for i, values in enumerate(self._array(), start=1))

    def count(self) -> int:
        """Elements of the array."""
        return len(self._array())

    def fingerprint(self) -> str:
        """Of the bytes."""
        return file_digest(self.path)

    def _array(self) -> list[Any]:
        with readable(self.path):
            if (size := self.path.stat().st_size) > MAX_ARRAY_BYTES:
                raise DataError(
                    f"{self.path}: a JSON array of {size:,} bytes", fix="write one object per line (.jsonl)"
                )
            content = self.path.read_bytes()
        try:
            array: list[Any] = json.loads(content.decode("utf-8-sig"))
        except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
            raise DataError(f"{self.path}: not valid JSON: {error}", fix="correct it, or write .jsonl") from None
        return array


@dataclass(frozen=True)
class CsvFile:
    """Comma-separated text with a header line."""

    path: Path

    @property
    def columns(self) -> tuple[str, ...]:
        """The header."""
        refuse_empty(self.path)
        with readable(self.path), self._open() as file:
            try:
                return tuple(csv.DictReader(file).fieldnames or ())
            except csv.Error as error:
                raise DataError(f"{self.path}:1: not a header of CSV: {error}", fix="name the columns there") from None

    def read(self, wanted: Sequence[str]) -> Iterator[Row | Skipped]:
        """Bytes that are no UTF-8 stay in their row as lone surrogates, which `fault` refuses."""
        csv.field_size_limit(max(csv.field_size_limit(), MAX_ROW_CHARACTERS))  # the library's own limit is 131072
        with readable(self.path), self._open() as file:
            reader = csv.DictReader(file)
            line = 0
            while True:
                name = f"{self.path}:{max(line, 1) + 1}"  # a row begins after the end of the last, and after the header
                try:
                    values = next(reader, None)
                except csv.Error as error:
                    kind = "dropped too long" if "limit" in str(error) else "dropped unreadable"
                    yield Skipped(name, kind, f"not a row of CSV: {error}")
                    line = reader.line_num
                    continue
                if values is None:
                    return
                line = reader.line_num
                if None in values:  # where DictReader puts the rest
                    yield Skipped(name, "dropped unreadable", "more cells than the header has columns")
                else:
                    yield Row(name, values)

    def count(self) -> int:
        """Records, not lines: a cell may hold line breaks."""
        return sum(1 for _ in self.read(()))

    def fingerprint(self) -> str:
        """Of the bytes."""
        return file_digest(self.path)

    def _open(self) -> IO[str]:
        return self.path.open(encoding="utf-8-sig", errors="surrogateescape", newline="")


def json_rows(path: Path) -> Rows:
    """A `.json` file is an array if it opens with a bracket, and JSONL otherwise."""
    refuse_empty(path)
    with readable(path), path.open("rb") as file:
        first = file.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    return JsonArray(path) if first == b"[" else JsonLines(path)
