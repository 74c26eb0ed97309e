"""The report page: one self-contained file, from a summary down to the configuration of every cell.

What it says is prepared here; markup, style and script are the files of `templates/`, which escape every text.
"""

import base64
import functools
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jinja2 import Environment
from markupsafe import Markup, escape

from rcray.aggregate.catalogue import Catalogue
from rcray.aggregate.collect import CellResult
from rcray.aggregate.explore.page import templates_in
from rcray.aggregate.findings import Finding
from rcray.aggregate.html_cells import WITH_CONFIGURATION, cell_blocks
from rcray.aggregate.results import held_out_pairs
from rcray.aggregate.sample_tables import samples_of_runs
from rcray.aggregate.tables import Table
from rcray.records.columns import COLUMNS, PATHWAYS
from rcray.records.progress import duration
from rcray.records.samples import WAYS
from rcray.records.states import State

if TYPE_CHECKING:
    from rcray.aggregate.figures import Plot

_VERDICTS = {"held": "✓ held", "unclear": "? unclear", "not held": "✗ not held"}
_UNIQUE = 12  # values of a fact that are spelled out
_SYMBOL = re.compile(r"(?<![A-Za-z0-9_&])(Δ?[A-Za-zλ]\u0303?)_([wl])(?![A-Za-z0-9_])")
_WORDS = (
    *((f"pathway {name}", "", meaning) for name, meaning in PATHWAYS.items()),
    (State.DEGENERATE, "", "non-finite values in training or evaluation, or answers without content: no score"),
    (State.OOM, "", "the run went out of memory"),
    (State.STOPPED, "", "a search has seen enough of it, and went on without it"),
    (State.PENDING, "", "not started"),
    ("not evaluated", "", "the run is finished, and this was not measured"),
    ("not planned", "", "no experiment of this report contains this training"),
    ("mixed protocols", "", "measured with different task versions, shots or templates: not put into one number"),
)


@dataclass(frozen=True)
class Page:
    """What a page shows. Links are relative to `folder`."""

    folder: Path
    name: str
    title: str
    description: str
    catalogue: Catalogue
    results: Sequence[CellResult] = ()
    findings: Sequence[Finding] = ()
    overall: Sequence[str] = ()
    plots: Sequence["Plot"] = ()  # one without its drawing, past a number that a browser bears, is only linked


def to_html(page: Page) -> str:
    """The whole page."""
    counts = Counter(result.status for result in page.results)
    return _templates().get_template("page.html").render(
        page=page,
        statuses=[(word, counts[word]) for word in State if counts[word]],
        facts=_facts(page.results),
        several_models=len({finding.model for finding in page.findings}) > 1,
        verdicts=_VERDICTS,
        cells=cell_blocks(page.results, page.folder),
        samples=samples_of_runs(page.results),
        ways=WAYS,
        spelled_out=len(page.results) <= WITH_CONFIGURATION,
        glossary=_glossary(page.catalogue.tables),
    )  # fmt: skip


@functools.cache
def _templates() -> Environment:
    templates = templates_in("rcray.aggregate", "templates")
    templates.filters |= {"symbols": _symbols, "base64": _base64}
    templates.tests["finite"] = lambda value: value is not None and math.isfinite(value)
    return templates


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _symbols(value: str) -> Markup:
    """Escaped text whose z_w, d_l and so on are set as symbols."""
    return Markup(_SYMBOL.sub(r"<i>\1</i><sub>\2</sub>", str(escape(value))))


def _facts(results: Sequence[CellResult]) -> Iterator[tuple[str, str]]:
    configs = [result.cell.config for result in results]
    yield "Model", _unique(config.model.name for config in configs)
    yield "Objectives", _unique(config.objective_title for config in configs)
    yield "Data", _unique(f"{config.data.name}, {config.data.train_pairs or 'all'} pairs" for config in configs)
    yield "Held-out pairs", _unique(held_out_pairs(results))
    yield "Seeds", _unique(sorted({config.train.seed for config in configs}))
    yield "Steps per run", _unique(result.total_steps or "not known yet" for result in results)
    yield "Fidelity preset", _unique(config.fidelity for config in configs)
    yield "Likelihood", _unique(f"{config.likelihood} over tokens" for config in configs)
    yield "Training time, all runs", duration(sum(result.seconds for result in results), 1)


def _unique(values: Iterable[object]) -> str:
    distinct = list(dict.fromkeys(map(str, values)))
    rest = f" and {len(distinct) - _UNIQUE} more" if len(distinct) > _UNIQUE + 1 else ""
    return ", ".join(distinct[:_UNIQUE] if rest else distinct) + rest


def _glossary(tables: Sequence[Table]) -> Iterator[tuple[str, Iterable[tuple[str, str, str]]]]:
    columns = (table.columns[i] for table in tables for i in table.shown())
    yield "Columns of the tables", dict.fromkeys((column.title, "", column.help) for column in columns if column.help)
    yield "Pathways and status words", _WORDS
    recorded = ((column.name, column.symbol, column.meaning) for column in COLUMNS)
    yield "Columns of the step records (dynamics/*.parquet)", recorded
