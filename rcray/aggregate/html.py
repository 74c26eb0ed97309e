"""The report page: one self-contained file, from a summary down to the configuration of every cell.

Every text that comes from outside (titles, errors, settings) goes through `_text`; the only markup is written here.
"""

import base64
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape
from urllib.parse import quote

import yaml

from rcray import records
from rcray.aggregate.collect import STATUSES, CellResult
from rcray.aggregate.figures import Plot
from rcray.aggregate.findings import Finding
from rcray.aggregate.html_assets import CSS, SCRIPT
from rcray.aggregate.results import held_out_pairs
from rcray.aggregate.tables import Column, Entry, Table, number
from rcray.config import Experiment
from rcray.records import PATHWAYS

# Nothing may be loaded: what the page needs is in it.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"

_CHIPS = {"held": "✓ held", "unclear": "? unclear", "not held": "✗ not held"}


def to_html(
    experiment: Experiment,
    results: Sequence[CellResult],
    table: Table,
    findings: Sequence[Finding],
    overall: Sequence[str],
    plots: Sequence[Plot],
) -> str:
    """The whole page. Links are relative to STORE/experiments/NAME/."""
    title = experiment.title or experiment.name
    sections = [
        _findings(findings, overall),
        _results(table),
        _figures(plots),
        _cells(results),
        _glossary(table),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(title)}</title>\n<style>{CSS}</style>\n</head>\n<body>\n"
        f"{_header(experiment, title, results)}\n<main>\n"
        + "\n".join(sections)
        + f'\n</main>\n<footer><div>Experiment <code>{_text(experiment.name)}</code>, written by '
        f"<code>rcray report</code>. Numbers are those of the run directories at that time.</div></footer>\n"
        f'<dialog id="zoomed" aria-label="figure, enlarged"><img alt=""></dialog>\n<script>{SCRIPT}</script>\n'
        "</body>\n</html>\n"
    )  # fmt: skip


def _text(value: object) -> str:
    return escape(str(value), quote=True)


def _minus(text: str) -> str:
    return text.replace("-", "−") if text[:1] == "-" and text[1:2].isdigit() else text


def _chip(word: str, text: str = "") -> str:
    return f'<span class="chip {_text(word.replace(" ", "-"))}">{_text(text or word)}</span>'


def _header(experiment: Experiment, title: str, results: Sequence[CellResult]) -> str:
    configs = [result.cell.config for result in results]
    counts = Counter(result.status for result in results)
    chips = "".join(_chip(word, f"{counts[word]} {word}") for word in STATUSES if counts[word])
    facts = {
        "Model": _unique(config.model.name for config in configs),
        "Objectives": _unique(config.objective_title for config in configs),
        "Data": _unique(f"{config.data.name}, {config.data.train_pairs or 'all'} pairs" for config in configs),
        "Held-out pairs": ", ".join(map(str, held_out_pairs(results))),
        "Seeds": ", ".join(map(str, sorted({config.train.seed for config in configs}))),
        "Steps per run": _unique(result.total_steps or "not known yet" for result in results),
        "Fidelity preset": _unique(config.fidelity for config in configs),
        "Likelihood": _unique(f"{config.likelihood} over tokens" for config in configs),
        "Training time, all runs": duration(sum(result.seconds for result in results)),
    }
    rows = "".join(f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>" for name, value in facts.items())
    about = f"<p>{_text(experiment.description)}</p>" if experiment.description else ""
    links = (("findings", "Findings"), ("results", "Results"), ("figures", "Figures"), ("cells", "Cells"),
             ("glossary", "Glossary"))  # fmt: skip
    nav = "".join(f'<a href="#{anchor}">{name}</a>' for anchor, name in links)
    cells = f"{len(results)} {'cell' if len(results) == 1 else 'cells'}"
    return (
        f'<header><div><p class="kicker">rcray · {_text(experiment.name)}</p><h1>{_text(title)}</h1>{about}'
        f'<p><span class="chip">{cells}</span>{chips}</p><dl class="facts">{rows}</dl>'
        f'<nav aria-label="sections">{nav}</nav></div></header>'
    )


def _unique(values: Iterable[object]) -> str:
    return ", ".join(dict.fromkeys(map(str, values)))


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _findings(findings: Sequence[Finding], overall: Sequence[str]) -> str:
    several = len({finding.model for finding in findings}) > 1
    lines = "".join(f"<li>{_text(line)}</li>" for line in overall) or "<li>No cell has a result yet.</li>"
    cards = []
    for finding in findings:
        heading = f"{finding.title} on {finding.model}" if several else finding.title
        body = f'<p class="soft">No comparison: {_text(finding.missing)}.</p>'
        if finding.checks:
            checks = "".join(
                f"<li><div><strong>{_text(check.claim.capitalize())}</strong>"
                f"{_chip(check.verdict, _CHIPS[check.verdict])}</div>"
                f'<span class="text">{_symbols(check.text)}</span></li>'
                for check in finding.checks
            )
            body = f'<ul class="checks">{checks}</ul>'
        cards.append(f'<article class="card"><h3>{_text(heading)}</h3>{body}</article>')
    return (
        '<section id="findings"><h2>What held, and what did not</h2>'
        '<p class="soft">Reward calibration (RC) is meant to keep every update inside the disentanglement band, where '
        "it preserves the likelihood of chosen answers (the winner) and suppresses that of rejected ones (the loser)."
        f'</p><ul class="overall">{lines}</ul><div class="cards">{"".join(cards)}</div>'
        '<p class="soft">Likelihoods and accuracy are those of held-out pairs, as changes against the reference model. '
        "A verdict needs more than two standard errors, and with several seeds the 95% t interval.</p></section>"
    )


def _results(table: Table) -> str:
    shown = table.shown()
    heads = "".join(
        f'<th scope="col" class="{table.columns[i].align}" title="{_text(table.columns[i].help)}">'
        f"{_heading(table.columns[i].title)}</th>"
        for i in shown
    )
    bodies = []
    for group in table.groups:
        rows = [row for row in table.rows if row.group == group]
        lines = []
        if len(table.groups) > 1:
            lines.append(f'<tr class="group"><th colspan="{len(shown)}" scope="rowgroup">{_text(group)}</th></tr>')
        for row, after in zip(rows, [*rows[1:], None], strict=True):
            pair = after is not None and after.entries[shown[0]] == row.entries[shown[0]]
            lines.append(f"<tr>{''.join(_cell(table.columns[i], row.entries[i], pair) for i in shown)}</tr>")
        bodies.append(f"<tbody>{''.join(lines)}</tbody>")
    notes = "".join(f"<li>{_symbols(note)}</li>" for note in table.notes)
    files = ", ".join(f'<a href="tables/results.{suffix}">{name}</a>' for suffix, name in
                      (("md", "Markdown"), ("tex", "LaTeX"), ("csv", "CSV")))  # fmt: skip
    return (
        f'<section id="results"><h2>Results</h2><p class="soft">Select a heading to sort. The same table as {files}.'
        f'</p><div class="card scroll"><table class="results sortable"><thead><tr>{heads}</tr></thead>'
        f'{"".join(bodies)}</table></div><ul class="notes">{notes}</ul></section>'
    )


def _cell(column: Column, entry: Entry, pair: bool) -> str:
    classes = [column.align, "pair" if pair else "", "best" if entry.best else "", entry.tone]
    if entry.value is None or not math.isfinite(entry.value):
        words = entry.words or "non-finite"
        if entry.tone == "status":
            classes.append(words.split("/")[0])
        return f'<td class="{_text(" ".join(filter(None, classes)))}">{_text(words)}</td>'
    style = ""
    if column.share:
        classes.append("share")
        style = f' style="--share:{min(max(entry.value, 0.0), 100.0):.1f}"'
    shown = _minus(number(entry.value, column.digits, column.sign))
    if entry.spread is not None and math.isfinite(entry.spread):
        shown += f'<span class="spread"> ± {number(entry.spread, column.digits)}</span>'
    return f'<td class="{" ".join(filter(None, classes))}" data-value="{entry.value:.6g}"{style}>{shown}</td>'


def _heading(title: str) -> str:
    name, _, unit = title.partition(" (")
    return _symbols(name) + (f'<span class="unit">{_text(unit.rstrip(")"))}</span>' if unit else "")


def _symbols(text: str) -> str:
    escaped = _text(text)
    for side in ("w", "l"):
        escaped = escaped.replace(f"z_{side}", f"<i>z</i><sub>{side}</sub>")
    return escaped


def _figures(plots: Sequence[Plot]) -> str:
    if not plots:
        return '<section id="figures"><h2>Figures</h2><p>No cell has step records yet.</p></section>'
    drawn = []
    explained = ""
    for plot in plots:
        caption = "Read as the figure above." if plot.caption == explained else _symbols(plot.caption)
        explained = plot.caption
        source = "data:image/svg+xml;base64," + base64.b64encode(plot.svg).decode("ascii")
        narrow = "" if plot.wide else " narrow"
        files = ", ".join(f'<a href="figures/{quote(plot.name)}.{suffix}">{suffix.upper()}</a>' for suffix in
                          ("svg", "png"))  # fmt: skip
        drawn.append(
            f'<figure class="card{narrow}"><h3>{_text(plot.title)}</h3><div class="paper"><button class="zoom" '
            f'type="button" title="enlarge"><img src="{source}" alt="{_text(plot.title)}"></button></div>'
            f"<figcaption>{caption} Files: {files}.</figcaption></figure>"
        )
    return (
        '<section id="figures"><h2>Figures</h2><p class="soft">Select a figure to enlarge it.</p>'
        f"{''.join(drawn)}</section>"
    )


def _cells(results: Sequence[CellResult]) -> str:
    items = "".join(_one_cell(result) for result in results)
    return (
        '<section id="cells"><h2>Cells</h2><p class="soft">One run each; a run is named by its content, so the same '
        f"cell in another experiment is the same directory.</p>{items}</section>"
    )


def _one_cell(result: CellResult) -> str:
    progress = f"{result.step} of {result.total_steps or '?'} steps"
    parts = []
    if result.error:
        parts.append(f"<pre>{_text(result.error)}</pre>")
    rows = [
        (name, number(m.value, 4), number(m.stderr, 4), f"{number(m.ci_low, 4)} to {number(m.ci_high, 4)}", m.n)
        for name, m in result.metrics.items()
    ]
    if rows and result.ok:
        head = "<tr><th>Metric</th><th>Value</th><th>Std. error</th><th>Interval</th><th>n</th></tr>"
        body = "".join("<tr>" + "".join(f"<td>{_text(field)}</td>" for field in row) + "</tr>" for row in rows)
        parts.append(f'<div class="scroll"><table><thead>{head}</thead><tbody>{body}</tbody></table></div>')
    if result.summary is not None:
        parts.append(f"<p>{_text(_dynamics_sentence(result))}</p>")
    files = [result.run.config, result.run.status, result.run.evaluation, result.run.dynamics, result.run.final]
    base = f"../../runs/{quote(result.run.run_id)}"
    links = ", ".join(f'<a href="{base}/{path.name}">{_text(path.name)}</a>' for path in files if path.exists())
    parts.append(f"<p>Files: {links or 'none yet'}.</p>")
    config = yaml.safe_dump(result.cell.config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    parts.append(f"<details><summary>Configuration</summary><pre>{_text(config)}</pre></details>")
    return (
        f'<details class="cell" id="run-{_text(result.run.run_id)}"><summary>{_chip(result.status)}'
        f"<span>{_text(result.cell.label)}</span>"
        f'<span class="mono">{_text(result.run.run_id)}</span><span class="push">{_text(progress)}, '
        f"{_text(duration(result.seconds))}</span></summary><div>{''.join(parts)}</div></details>"
    )


def _dynamics_sentence(result: CellResult) -> str:
    summary = result.summary
    assert summary is not None
    shares = ", ".join(f"{name} {100 * share:.0f}%" for name, share in summary.pathways.items() if share)
    inside = f"{100 * summary.in_band:.0f}% inside the band"
    text = f"{summary.steps} steps recorded, {inside}; predicted pathways: {shares}."
    if summary.intervals:
        agreed = f"{100 * summary.agreement:.0f}% of {summary.intervals} probe intervals"
        text += f" Prediction and probe set agree in {agreed}."
    if math.isfinite(summary.change_w) and math.isfinite(summary.change_l):
        text += f" Probe set: z_w {summary.change_w:+.2f}, z_l {summary.change_l:+.2f} since its first measurement."
    if summary.skipped:
        text += f" Calibration left {100 * summary.skipped:.0f}% of steps alone."
    return text


def _glossary(table: Table) -> str:
    def rows(entries: Iterable[tuple[str, str, str]]) -> str:
        return "".join(
            f"<tr><td><code>{_text(a)}</code></td><td>{_text(b)}</td><td>{_text(c)}</td></tr>" for a, b, c in entries
        )

    words = [(f"pathway {name}", "", meaning) for name, meaning in PATHWAYS.items()]
    words += [
        ("degenerate", "", "training met a non-finite value: there is no score"),
        ("oom", "", "the run went out of memory"),
        ("pending", "", "not started"),
    ]
    shown = [(table.columns[i].title, "", table.columns[i].help) for i in table.shown()]
    recorded = [(column.name, column.symbol, column.meaning) for column in records.COLUMNS]
    head = "<thead><tr><th>Name</th><th>Symbol</th><th>Meaning</th></tr></thead>"
    blocks = "".join(
        f'<details class="cell"><summary>{name}</summary><div class="scroll"><table>{head}<tbody>{rows(entries)}'
        "</tbody></table></div></details>"
        for name, entries in (("Columns of the results table", shown), ("Pathways and status words", words),
                              ("Columns of the step records (dynamics/*.parquet)", recorded))
    )  # fmt: skip
    return f'<section id="glossary"><h2>Glossary</h2>{blocks}</section>'
