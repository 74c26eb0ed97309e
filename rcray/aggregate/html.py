"""The report page: one self-contained file, from a summary down to the configuration of every cell."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rcray.aggregate.catalogue import Catalogue
from rcray.aggregate.collect import CellResult
from rcray.aggregate.findings import Finding
from rcray.aggregate.html_assets import CSS, SCRIPT
from rcray.aggregate.html_cells import cells, duration
from rcray.aggregate.html_parts import PlacedPlot, chapter, chip, figures, symbols, text
from rcray.aggregate.results import held_out_pairs
from rcray.aggregate.tables import Table
from rcray.records.columns import COLUMNS, PATHWAYS
from rcray.records.states import State

# Nothing may be loaded: what the page needs is in it.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"

_CHIPS = {"held": "✓ held", "unclear": "? unclear", "not held": "✗ not held"}
_UNIQUE = 12  # values of a fact that are spelled out


@dataclass(frozen=True)
class Page:
    """What a page shows. Links are relative to `folder`."""

    folder: Path
    name: str
    title: str
    description: str
    catalogue: Catalogue
    plots: Sequence[PlacedPlot]
    results: Sequence[CellResult] = ()
    findings: Sequence[Finding] = ()
    overall: Sequence[str] = field(default_factory=tuple)


def to_html(page: Page) -> str:
    """The whole page."""
    sections = [
        _findings(page) if page.results else "",
        *(chapter(found) for found in page.catalogue.chapters),
        figures(page.plots) if page.results or page.plots else "",
        cells(page.results, page.folder),
        _glossary(page.catalogue.tables),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(page.title)}</title>\n<style>{CSS}</style>\n</head>\n<body>\n"
        f"{_header(page)}\n<main>\n"
        + "\n".join(filter(None, sections))
        + f"\n</main>\n<footer><div><code>{text(page.name)}</code>, written by <code>rcray report</code>. Numbers are "
        f"those of their sources at that time.</div></footer>\n"
        f'<dialog id="zoomed" aria-label="figure, enlarged"><img alt=""></dialog>\n<script>{SCRIPT}</script>\n'
        "</body>\n</html>\n"
    )


def _header(page: Page) -> str:
    results = page.results
    about = f"<p>{text(page.description)}</p>" if page.description else ""
    links = [("findings", "Findings")] if results else []
    links += [(found.anchor, found.title) for found in page.catalogue.chapters]
    links += [("figures", "Figures")] if results or page.plots else []
    links += [("cells", "Cells")] if results else []
    nav = "".join(f'<a href="#{text(anchor)}">{text(name)}</a>' for anchor, name in (*links, ("glossary", "Glossary")))
    chips = facts = ""
    if results:
        counts = Counter(result.status for result in results)
        cells = f"{len(results)} {'cell' if len(results) == 1 else 'cells'}"
        found = "".join(chip(word, f"{counts[word]} {word}") for word in State if counts[word])
        chips = f'<p><span class="chip">{cells}</span>{found}</p>'
        rows = "".join(f"<div><dt>{text(name)}</dt><dd>{text(value)}</dd></div>" for name, value in _facts(results))
        facts = f'<dl class="facts">{rows}</dl>'
    return (
        f'<header><div><p class="kicker">rcray · {text(page.name)}</p><h1>{text(page.title)}</h1>{about}'
        f'{chips}{facts}<nav aria-label="sections">{nav}</nav></div></header>'
    )


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
    yield "Training time, all runs", duration(sum(result.seconds for result in results))


def _unique(values: Iterable[object]) -> str:
    found = list(dict.fromkeys(map(str, values)))
    rest = f" and {len(found) - _UNIQUE} more" if len(found) > _UNIQUE + 1 else ""
    return ", ".join(found[:_UNIQUE] if rest else found) + rest


def _findings(page: Page) -> str:
    several = len({finding.model for finding in page.findings}) > 1
    lines = "".join(f"<li>{text(line)}</li>" for line in page.overall) or "<li>No cell has a result yet.</li>"
    cards = []
    for finding in page.findings:
        heading = f"{finding.title} on {finding.model}" if several else finding.title
        body = f'<p class="soft">No comparison: {text(finding.missing)}.</p>'
        if finding.checks:
            checks = "".join(
                f"<li><div><strong>{text(check.claim.capitalize())}</strong>"
                f"{chip(check.verdict, _CHIPS[check.verdict])}</div>"
                f'<span class="text">{symbols(check.text)}</span></li>'
                for check in finding.checks
            )
            body = f'<ul class="checks">{checks}</ul>'
        cards.append(f'<article class="card"><h3>{text(heading)}</h3>{body}</article>')
    return (
        '<section id="findings"><h2>What held, and what did not</h2>'
        '<p class="soft">Reward calibration (RC) is meant to keep every update inside the disentanglement band, where '
        "it preserves the likelihood of chosen answers (the winner) and suppresses that of rejected ones (the loser)."
        f'</p><ul class="overall">{lines}</ul><div class="cards">{"".join(cards)}</div>'
        '<p class="soft">Likelihoods and accuracy are those of held-out pairs, as changes against the reference model. '
        "A verdict needs more than two standard errors, and with several seeds the 95% t interval.</p></section>"
    )


def _glossary(tables: Sequence[Table]) -> str:
    def rows(entries: Iterable[tuple[str, str, str]]) -> str:
        return "".join(
            f"<tr><td><code>{text(a)}</code></td><td>{text(b)}</td><td>{text(c)}</td></tr>" for a, b, c in entries
        )

    words = [(f"pathway {name}", "", meaning) for name, meaning in PATHWAYS.items()]
    words += [
        (
            "degenerate",
            "",
            "training or evaluation met non-finite values or answers without content: there is no score",
        ),
        ("oom", "", "the run went out of memory"),
        ("stopped", "", "a search has seen enough of it, and went on without it"),
        ("pending", "", "not started"),
        ("not evaluated", "", "the run is finished, and this was not measured"),
        ("not planned", "", "no experiment of this report contains this training"),
        ("mixed protocols", "", "measured with different task versions, shots or templates: not put into one number"),
    ]
    shown = dict.fromkeys((c.title, "", c.help) for t in tables for i in t.shown() if (c := t.columns[i]).help)
    recorded = [(column.name, column.symbol, column.meaning) for column in COLUMNS]
    head = "<thead><tr><th>Name</th><th>Symbol</th><th>Meaning</th></tr></thead>"
    blocks = "".join(
        f'<details class="cell"><summary>{name}</summary><div class="scroll"><table>{head}<tbody>{rows(entries)}'
        "</tbody></table></div></details>"
        for name, entries in (("Columns of the tables", shown), ("Pathways and status words", words),
                              ("Columns of the step records (dynamics/*.parquet)", recorded))
    )  # fmt: skip
    return f'<section id="glossary"><h2>Glossary</h2>{blocks}</section>'
