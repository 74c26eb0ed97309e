"""One file with everything in it: markup, style, script, and the cells' data or the way to a server that has it."""

import base64
import functools
import hashlib
import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from rcray.aggregate.collect import CellResult
from rcray.aggregate.explore.cells import all_differences, table_of, values_of
from rcray.aggregate.explore.curves import FEWER_POINTS, POINTS, curves_of, offered, step_records
from rcray.aggregate.explore.details import details_of
from rcray.aggregate.frame import likelihood_unit
from rcray.errors import StoreError
from rcray.files import write_atomic
from rcray.records.columns import PATHWAYS
from rcray.records.progress import Progress
from rcray.records.states import State
from rcray.secrets import redact

EXPLORE = "explore.html"
MOST_RUNS = 1000  # that a page holds: 30 MB
_MANY_RUNS = 60  # past which curves have fewer points, so that a page stays at a few megabytes
#: In the order in which they are joined: each uses what stands before it.
SCRIPTS = (
    "format.js", "state.js", "source.js", "view.js", "chart.js", "table.js", "overview.js", "parallel.js", "curves.js",
    "steps.js", "pairs.js", "main.js",
)  # fmt: skip


@dataclass(frozen=True)
class Origin:
    """The command that a page's cells came from, for whoever wants to run some of them again."""

    command: tuple[str, ...]  # up to the choice of cells
    runs: tuple[str, ...]
    searches: bool = False  # it chooses its cells by itself, and takes no --only


@dataclass(frozen=True)
class Subject:
    """What a page is about."""

    name: str
    title: str
    description: str = ""
    origins: tuple[Origin, ...] = ()
    no_command: str = "Nobody wrote down which command these cells came from."  # where there are no origins


def head_of(subject: Subject, results: Sequence[CellResult]) -> dict[str, Any]:
    """Everything but the runs themselves."""
    unit = likelihood_unit(result.cell.config for result in results)
    return {
        "name": subject.name,
        "title": subject.title,
        "description": subject.description,
        "unit": unit,
        "pathways": PATHWAYS,
        "choices": [asdict(choice) for choice in offered(unit)],
        "commands": [
            {
                "text": shlex.join(redact(part) for part in origin.command),
                "runs": list(origin.runs),
                "searches": origin.searches,
            }
            for origin in subject.origins
        ],
        "no_command": "" if subject.origins else subject.no_command,
        **table_of(results, unit),
    }


def run_of(result: CellResult, *, doing: Progress | None = None, points: int = POINTS) -> dict[str, Any]:
    """One run as the page reads it; `doing`: what a living process says of it."""
    state, error = result.status, result.error
    if doing is not None:
        state = State.RUNNING
    elif state is State.RUNNING:  # whoever carried it out is gone since it was read
        state = State.PENDING
    try:
        records = step_records(result.run, live=doing is not None)
        curves = curves_of(records, result.total_steps, result.cell.config.train.probe_every, points)
        recorded = int(records["step"][-1]) if len(records["step"]) else 0
    except StoreError as fault:
        curves, recorded, error = {}, 0, "; ".join(filter(None, [error, fault.message]))
    return {
        "seed": result.seed,
        "label": result.cell.label,
        "unit": likelihood_unit([result.cell.config]),
        "state": str(state),
        "interrupted": state is State.PENDING and result.run.status.is_file(),
        "doing": doing.text if doing else "",
        "error": redact(error),
        "note": result.note,
        "step": max(result.step, recorded),
        "total": result.total_steps,
        "probe_every": result.cell.config.train.probe_every,
        "seconds": result.seconds,
        "values": values_of(result),
        "curves": curves,
    }


def payload_of(subject: Subject, results: Sequence[CellResult]) -> dict[str, Any]:
    """All that a page without a server needs."""
    head = head_of(subject, results)
    points = POINTS if len(results) <= _MANY_RUNS else FEWER_POINTS
    return {
        "head": head,
        "runs": {result.cell.run_id: run_of(result, points=points) for result in results},
        "differences": all_differences(results, head["numbers"]),
        "details": details_of(results),
    }


def write_explore(folder: Path, subject: Subject, results: Sequence[CellResult]) -> Path:
    """Writes the page beside the report; of more runs than it holds, who shows them."""
    target = folder / EXPLORE
    if len(results) > MOST_RUNS:
        text = f"{len(results):,} runs are more than a page holds ({MOST_RUNS:,}): rcray watch serves them."
        title = escape(subject.title)
        write_atomic(target, f"<!doctype html><meta charset=utf-8><title>{title}</title><p>{text}</p>\n")
    else:
        write_atomic(target, to_page(subject.title, payload_of(subject, results)))
    return target


def to_page(title: str, payload: dict[str, Any] | None) -> str:
    """The page; without a payload it asks the server that it came from."""
    script, style = _script(), asset("style.css")
    return templates_in(__package__, "assets").get_template("page.html").render(
        title=title,
        live=payload is None,
        payload=Markup(embedded(payload)),
        script=Markup(script),
        style=Markup(style),
        policy=_policy(script, style, served=payload is None),
    )  # fmt: skip


def embedded(content: Any) -> str:
    """JSON that no browser can take for markup."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _policy(script: str, style: str, *, served: bool) -> str:
    """Only what is written here may run, and only the page's own server may be asked."""

    def source(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    connect = "; connect-src 'self'" if served else ""
    return f"default-src 'none'; script-src {source(script)}; style-src {source(style)}{connect}"


@functools.cache
def _script() -> str:
    return "(() => {\n'use strict';\n" + "\n".join(asset(name) for name in SCRIPTS) + "\n})();\n"


@functools.cache
def asset(name: str) -> str:
    """A file of the page."""
    return (Path(__file__).parent / "assets" / name).read_text(encoding="utf-8")


@functools.cache
def templates_in(package: str, folder: str) -> Environment:
    """Templates that escape every text and refuse a name that nobody gave them."""
    return Environment(
        loader=PackageLoader(package, folder),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
