"""Pieces of the page: escaped text, chips, symbols, tables, figures.

Every text that comes from outside (titles, errors, settings) goes through `text`; the only markup is written here.
"""

import base64
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING
from urllib.parse import quote

from rcray.aggregate.catalogue import Chapter
from rcray.aggregate.tables import Column, Entry, Table, number

if TYPE_CHECKING:
    from rcray.aggregate.figures import Plot

_SYMBOL = re.compile(r"(?<![A-Za-z0-9_&])(Δ?[A-Za-zλ]\u0303?)_([wl])(?![A-Za-z0-9_])")
FORMATS = (("md", "Markdown"), ("tex", "LaTeX"), ("csv", "CSV"))


def text(value: object) -> str:
    """Escaped for the page."""
    return escape(str(value), quote=True)


def chip(word: str, shown: str = "") -> str:
    """A small coloured label."""
    return f'<span class="chip {text(word.replace(" ", "-"))}">{text(shown or word)}</span>'


def symbols(value: str) -> str:
    """Escaped text whose z_w, d_l and so on are set as symbols."""
    return _SYMBOL.sub(r"<i>\1</i><sub>\2</sub>", text(value))


def chapter(found: Chapter) -> str:
    """Tables under one heading; more than one can be folded away."""
    alone = found.anchor == "results" and len(found.tables) == 1  # its heading is the chapter's
    tables = "".join(table_block(table, heading=not alone) for table in found.tables)
    return (
        f'<section id="{text(found.anchor)}"><h2>{text(found.title)}</h2><p class="soft">{text(found.intro)} '
        f'<span class="screen">Select a heading to sort.</span></p>{tables}</section>'
    )


def table_block(table: Table, heading: bool) -> str:
    """A sortable table with its notes and its files."""
    shown = table.shown()
    heads = "".join(
        f'<th scope="col" class="{table.columns[i].align}" title="{text(table.columns[i].help)}">'
        f"{_heading(table.columns[i].title)}</th>"
        for i in shown
    )
    bodies = []
    for group in table.groups:
        rows = [row for row in table.rows if row.group == group]
        lines = []
        if len(table.groups) > 1:
            lines.append(f'<tr class="group"><th colspan="{len(shown)}" scope="rowgroup">{text(group)}</th></tr>')
        for row, after in zip(rows, [*rows[1:], None], strict=True):
            pair = after is not None and after.entries[shown[0]].words == row.entries[shown[0]].words
            lines.append(f"<tr>{''.join(_cell(table.columns[i], row.entries[i], pair) for i in shown)}</tr>")
        bodies.append(f"<tbody>{''.join(lines)}</tbody>")
    notes = "".join(f"<li>{symbols(note)}</li>" for note in table.notes)
    files = ", ".join(f'<a href="tables/{quote(table.name)}.{suffix}">{name}</a>' for suffix, name in FORMATS)
    title = f"<h3>{text(table.title)}</h3>" if heading else ""
    return (
        f'<article class="table" id="table-{text(table.name)}">{title}<div class="card scroll">'
        f'<table class="results sortable"><thead><tr>{heads}</tr></thead>{"".join(bodies)}</table></div>'
        f'<ul class="notes">{notes}<li>The same as {files}.</li></ul></article>'
    )


def _cell(column: Column, entry: Entry, pair: bool) -> str:
    classes = [column.align, "pair" if pair else "", "best" if entry.best else "", entry.tone]
    attributes = f' title="{text(entry.tip)}"' if entry.tip else ""
    mark = f"<sup>{text(entry.mark)}</sup>" if entry.mark else ""
    known = entry.value is not None and math.isfinite(entry.value)
    if known:
        attributes += f' data-value="{entry.value:.6g}"'
    if known and column.share and entry.value is not None:
        classes.append("share")
        attributes += f' style="--share:{min(max(entry.value, 0.0), 100.0):.1f}"'
    if entry.words or not known or entry.value is None:
        words = entry.words or ("non-finite" if entry.value is not None else "")
        shown = symbols(words)
        if entry.tone == "status":
            classes.append(text(words.split("/")[0].split(" ")[0]))
    else:
        shown = _minus(number(entry.value, column.digits, column.sign))
        if entry.spread is not None and math.isfinite(entry.spread):
            shown += f'<span class="spread"> ± {number(entry.spread, column.digits)}</span>'
    if entry.runs:
        shown = f'<a class="run" href="#run-{text(entry.runs[0])}">{shown}</a>'
    return f'<td class="{" ".join(filter(None, classes))}"{attributes}>{shown}{mark}</td>'


def _heading(title: str) -> str:
    name, _, unit = title.partition(" (")
    return symbols(name) + (f'<span class="unit">{text(unit.rstrip(")"))}</span>' if unit else "")


def _minus(shown: str) -> str:
    return shown.replace("-", "−") if shown[:1] == "-" and shown[1:2].isdigit() else shown


@dataclass(frozen=True)
class PlacedPlot:
    """A figure as the page shows it: drawn in it, or, past a number that a browser bears, only linked."""

    name: str
    title: str
    caption: str
    wide: bool
    svg: bytes | None

    @classmethod
    def of(cls, plot: "Plot", embed: bool) -> "PlacedPlot":
        """Keeps the drawing only if the page shows it."""
        return cls(plot.name, plot.title, plot.caption, plot.wide, plot.svg if embed else None)


def figures(plots: Sequence[PlacedPlot]) -> str:
    """Every figure with its caption and its files."""
    if not plots:
        return '<section id="figures"><h2>Figures</h2><p>No cell has step records yet.</p></section>'
    drawn = []
    explained: set[str] = set()
    for plot in plots:
        files = ", ".join(
            f'<a href="figures/{quote(plot.name)}.{suffix}">{suffix.upper()}</a>' for suffix in ("svg", "pdf", "png")
        )
        if plot.svg is None:
            drawn.append(f'<p id="figure-{text(plot.name)}">{text(plot.title)}: {files}.</p>')
            continue
        repeated = plot.caption in explained
        caption = "Read as the figure of this kind above." if repeated else symbols(plot.caption)
        explained.add(plot.caption)
        source = "data:image/svg+xml;base64," + base64.b64encode(plot.svg).decode("ascii")
        narrow = "" if plot.wide else " narrow"
        drawn.append(
            f'<figure class="card{narrow}" id="figure-{text(plot.name)}"><h3>{text(plot.title)}</h3><div class="paper">'
            f'<button class="zoom" type="button" title="enlarge"><img src="{source}" alt="{text(plot.title)}">'
            f"</button></div><figcaption>{caption} Files: {files}.</figcaption></figure>"
        )
    return (
        '<section id="figures"><h2>Figures</h2><p class="soft screen">Select a figure to enlarge it.</p>'
        f"{''.join(drawn)}</section>"
    )
