"""A small table and its renderers: Markdown, LaTeX, CSV, the terminal. Equal tables give equal bytes.

An entry is a number with an optional spread, or words. Words stand wherever there is no number to print
(`failed`, `pending`, ...); nothing is ever left blank for want of a result.
"""

import csv
import io
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from rich.console import RenderableType
    from rich.table import Table as RichTable

NOT_APPLICABLE = "NA"  # in CSV: a quantity that this row does not have
Shares = TypeVar("Shares", float, "np.ndarray")


def percent(share: Shares) -> Shares:
    """A share (or a difference of shares) as it is printed or drawn: here, and nowhere else, it becomes percent."""
    return 100 * share


@dataclass(frozen=True)
class Column:
    """One column: how it is named, aligned and rounded in each format."""

    key: str  # the CSV header
    title: str
    help: str = ""
    latex: str = ""  # the header in LaTeX, if escaping the title is not enough
    align: Literal["left", "right"] = "right"
    digits: int = 1
    sign: bool = False  # print + before positive numbers
    spread: bool = False  # CSV: a second column for the spread
    percent: bool = False  # values are shares (or differences of shares), and are printed in percent
    bar: bool = False  # the page draws it as a bar
    csv_only: bool = False
    metric: str = ""  # the key of the frame that it shows, where it shows one

    def printed(self, value: float) -> float:
        """The value in the unit that is printed."""
        return percent(value) if self.percent else value

    def text(self, value: float, sign: bool = False) -> str:
        """The value as it is printed."""
        return number(self.printed(value), self.digits, sign)


@dataclass(frozen=True)
class Entry:
    """A number with an optional spread, or, where `value` is None, words."""

    words: str = ""  # beside a value: how people read it, where the rounded number will not do (`10h 46m`)
    value: float | None = None
    spread: float | None = None
    best: bool = False
    tone: Literal["", "status", "absent"] = ""  # a status word; a quantity that this row does not have
    latex: str = ""  # the words in LaTeX, where escaping them is not enough
    mark: str = ""  # letter of a footnote
    tip: str = ""  # said where the page's reader points at it
    runs: tuple[str, ...] = ()  # ids of the runs behind it


@dataclass(frozen=True)
class Row:
    """One row; rows of a group stand together under the group's name."""

    group: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class Table:
    """A titled table with notes that say what its numbers are."""

    title: str
    notes: tuple[str, ...]
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    spread_name: Literal["stderr", "std"] = "stderr"
    name: str = "results"  # of its files, and of its place on the page
    group_title: str = "Model"
    subscripts: bool = False  # LaTeX: the spread as a subscript, as the paper prints it

    @property
    def groups(self) -> list[str]:
        """The groups, in order of appearance."""
        return list(dict.fromkeys(row.group for row in self.rows))

    def shown(self) -> list[int]:
        """Indices of the columns that people see; the others are for programs."""
        return [i for i, column in enumerate(self.columns) if not column.csv_only]


def slug(text: str) -> str:
    """A file name of a title."""
    return re.sub(r"[^a-z0-9.=]+", "-", text.lower()).strip("-.")


def number(value: float, digits: int, sign: bool = False) -> str:
    """A rounded number; never `-0.0`."""
    if not math.isfinite(value):
        return "non-finite"
    text = f"{value:+.{digits}f}" if sign else f"{value:.{digits}f}"
    return re.sub(r"^[+-](0(\.0*)?)$", r"\1", text)


def entry_text(column: Column, entry: Entry, plus_minus: str = " ± ") -> str:
    """An entry in plain words, as in `81.2 ± 2.4`."""
    return (entry.words or _rounded(column, entry, plus_minus)) + (f" [{entry.mark}]" if entry.mark else "")


def _rounded(column: Column, entry: Entry, plus_minus: str) -> str:
    if entry.value is None:
        return ""
    text = column.text(entry.value, column.sign)
    if entry.spread is not None and math.isfinite(entry.spread) and math.isfinite(entry.value):
        text += plus_minus + column.text(entry.spread)
    return text


def mark_best(rows: Sequence[Row], columns: Iterable[int]) -> list[Row]:
    """Marks the highest value of each column in each group, where there is more than one to choose from."""
    marked = [list(row.entries) for row in rows]
    for column in columns:
        values: dict[str, list[float]] = {}
        for row in rows:
            value = row.entries[column].value
            if value is not None and math.isfinite(value):
                values.setdefault(row.group, []).append(value)
        for row, entries in zip(rows, marked, strict=True):
            own = values.get(row.group, [])
            if len(own) > 1 and entries[column].value == max(own):
                entries[column] = replace(entries[column], best=True)
    return [Row(row.group, tuple(entries)) for row, entries in zip(rows, marked, strict=True)]


def to_markdown(table: Table) -> str:
    """GitHub Markdown: a heading, the table, the notes."""
    shown = table.shown()
    several = len(table.groups) > 1
    head = [_markdown_escape(table.columns[i].title) for i in shown]
    rule = ["---:" if table.columns[i].align == "right" else ":---" for i in shown]
    if several:
        head, rule = [_markdown_escape(table.group_title), *head], [":---", *rule]
    lines = [head, rule]
    for row in table.rows:
        texts = []
        for i in shown:
            text = _markdown_escape(entry_text(table.columns[i], row.entries[i]))
            texts.append(f"**{text}**" if row.entries[i].best else text)
        lines.append([_markdown_escape(row.group), *texts] if several else texts)
    body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    notes = "\n".join(f"- {_markdown_escape(note)}" for note in table.notes)
    return f"## {_markdown_escape(table.title)}\n\n{body}\n\n{notes}\n"


def to_csv(table: Table) -> str:
    """Plain numbers, unrounded to six digits, the spread in a column of its own; words where there is no number."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    header = []
    for column in table.columns:
        header += [column.key, f"{column.key}_{table.spread_name}"] if column.spread else [column.key]
    writer.writerow([table.group_title.lower(), *header])
    for row in table.rows:
        fields = [row.group]
        for column, entry in zip(table.columns, row.entries, strict=True):
            fields += _csv_fields(column, entry)
        writer.writerow(fields)
    return out.getvalue()


def to_rich(table: Table, width: int | None = None) -> "RenderableType":
    """A renderable for the terminal; of a table wider than `width`, the last columns are left to the files."""
    from rich.console import Console, Group
    from rich.text import Text

    shown = table.shown()
    drawn = _draw(table, shown)
    measure = Console(width=10_000)
    while width is not None and len(shown) > 1 and measure.measure(drawn).maximum > width:
        shown = shown[:-1]
        drawn = _draw(table, shown)
    notes = list(table.notes)
    if hidden := [table.columns[i].title for i in table.shown() if i not in shown]:
        notes.append(f"Not shown for want of width: {', '.join(hidden)}.")
    return Group(drawn, *(Text(note, style="dim") for note in notes))


def _draw(table: Table, shown: list[int]) -> "RichTable":
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    several = len(table.groups) > 1
    drawn = RichTable(title=Text(table.title), box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    if several:
        drawn.add_column(Text(table.group_title), no_wrap=True)
    for i in shown:
        drawn.add_column(
            Text(table.columns[i].title.replace(" (", "\n(")), justify=table.columns[i].align, no_wrap=True
        )
    for row, last in _with_last_of_group(table):
        cells = [Text(row.group)] if several else []
        for i in shown:
            entry = row.entries[i]
            style = "bold" if entry.best else "yellow" if entry.tone == "status" else ""
            cells.append(Text(entry_text(table.columns[i], entry), style=style))
        drawn.add_row(*cells, end_section=last and several)
    return drawn


def _with_last_of_group(table: Table) -> Iterator[tuple[Row, bool]]:
    for i, row in enumerate(table.rows):
        yield row, i + 1 < len(table.rows) and table.rows[i + 1].group != row.group


def _csv_fields(column: Column, entry: Entry) -> list[str]:
    if entry.value is None or not math.isfinite(entry.value):
        words = NOT_APPLICABLE if entry.tone == "absent" else entry.words or "non-finite"
        return [words, words] if column.spread else [words]
    numbers = [entry.value, entry.spread] if column.spread else [entry.value]
    return [
        NOT_APPLICABLE if value is None or not math.isfinite(value) else f"{column.printed(value) + 0.0:.6g}"
        for value in numbers
    ]


def _markdown_escape(text: str) -> str:
    return re.sub(r"([\\|<>*`\[\]])", r"\\\1", " ".join(text.split()))
