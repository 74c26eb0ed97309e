"""A diagnosis as tables, a page, JSON and a filter."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rcray.aggregate.catalogue import Catalogue, Chapter
from rcray.aggregate.html import Page, to_html
from rcray.aggregate.report import RENDERERS
from rcray.aggregate.tables import Column, Entry, Row, Table, to_markdown
from rcray.diagnose.diagnosis import CRITERIA, Criterion, Diagnosis
from rcray.files import write_atomic, write_json
from rcray.records.columns import PATHWAYS

SHOWN = 5  # of the worst pairs by each criterion, with their text
_LETTERS = 400  # of a text in the page
_PROXY = (
    "One plain gradient step at the output head on each pair alone, from the start model: a proxy, which knows nothing "
    "of the body, of the optimizer and of the other pairs. What training really does is predicted from the update it "
    "makes, while it makes it (`pathway_predicted` in the records)."
)


def facts(diagnosis: Diagnosis) -> dict[str, float]:
    """What the data is like, in numbers."""
    measures, text = diagnosis.measures, diagnosis.text
    longer = measures.n_w - measures.n_l
    varies = np.std(longer) > 0 and np.std(measures.margin) > 0
    return {
        "pairs": len(diagnosis.pairs),
        "pairs_read": len(diagnosis.sample),
        "ranked_rightly": float(np.mean(measures.sum_w > measures.sum_l)),
        "ranked_rightly_per_token": float(np.mean(measures.margin > 0)),
        "chosen_longer": float(np.mean(longer > 0)),
        "length_ratio": float(measures.n_w.sum() / measures.n_l.sum()),
        "margin_length_correlation": float(np.corrcoef(longer, measures.margin)[0, 1]) if varies else math.nan,
        "duplicates": float(np.mean(text.duplicate)),
        "contradictory": float(np.mean(text.contradictory)),
        "truncated": diagnosis.truncated / len(diagnosis.pairs),
        "ches_per_token_median": float(np.median(measures.ches_per_token)),
        "cosine_median": float(np.median(measures.cosine)),
        "entangled_winner": float(np.mean(measures.entanglement_w < 0)),
        "entangled_loser": float(np.mean(measures.entanglement_l < 0)),
    }


_FACTS = {
    "pairs": "pairs to train on",
    "pairs_read": "of them read by the start model",
    "ranked_rightly": "ranked rightly by the start model, z_w > z_l",
    "ranked_rightly_per_token": "the same per token",
    "chosen_longer": "chosen answer longer",
    "length_ratio": "tokens of chosen answers for one of rejected",
    "margin_length_correlation": "correlation of the start model's margin with the difference in length",
    "duplicates": "duplicates of an earlier row",
    "contradictory": "contradicted by a row of the same prompt",
    "truncated": "cut to max_length",
    "ches_per_token_median": "median CHES per token",
    "cosine_median": "median cosine of the two scores at the head",
    "entangled_winner": "own gradient of DPO lowers the chosen answer (head)",
    "entangled_loser": "own gradient of DPO raises the rejected answer (head)",
}
_SHARES = {
    "ranked_rightly", "ranked_rightly_per_token", "chosen_longer", "duplicates", "contradictory", "truncated",
    "entangled_winner", "entangled_loser",
}  # fmt: skip


def facts_table(diagnosis: Diagnosis) -> Table:
    """The data in one screen."""

    def shown(name: str, value: float) -> Entry:
        words = f"{value:.1%}" if name in _SHARES else f"{value:g}" if float(value).is_integer() else f"{value:.3f}"
        return Entry("–", tone="absent") if math.isnan(value) else Entry(words, value)

    config = diagnosis.config
    return Table(
        title=f"{config.data.name} before {config.model.label} is trained on it",
        notes=(f"Rows: {diagnosis.account}.",),
        columns=(Column("what", "What", align="left"), Column("value", "Value", digits=3)),
        rows=tuple(Row("", (Entry(_FACTS[name]), shown(name, value))) for name, value in facts(diagnosis).items()),
        name="facts",
    )


def foreseen_table(diagnosis: Diagnosis) -> Table:
    """What each objective's own gradient would do to the pairs, at the head."""
    rows = []
    for title, shares in diagnosis.pathways().items():
        if isinstance(shares, str):
            entries = [Entry(f"not predicted: {shares}", tone="absent")] * len(PATHWAYS)
        else:
            entries = [Entry(value=shares[word]) for word in PATHWAYS]
        rows.append(Row("", (Entry(title), *entries)))
    return Table(
        title="Predicted pathways of single pairs, by objective",
        notes=(_PROXY, "; ".join(f"{word}: {meaning}" for word, meaning in PATHWAYS.items()) + "."),
        columns=(
            Column("objective", "Objective", align="left"),
            *(Column(f"{word}_percent", f"{word} (%)", PATHWAYS[word], percent=True, bar=True) for word in PATHWAYS),
        ),
        rows=tuple(rows),
        name="pathways",
    )


def worst_table(diagnosis: Diagnosis, criterion: Criterion) -> Table | None:
    """The worst pairs by one column, with their text; None where no pair is marked."""
    values = criterion.values(diagnosis)
    places = diagnosis.worst(criterion.name, 1.0)[:SHOWN].tolist()
    if not places:
        return None
    rows = []
    for place in places:
        pair = diagnosis.pairs[int(diagnosis.sample[place])]
        value = Entry(value=float(values[place])) if criterion.ranked else Entry("yes")
        texts = (Entry(_text(diagnosis, ids)) for ids in (pair.prompt, pair.chosen, pair.rejected))
        rows.append(Row("", (Entry(value=float(diagnosis.numbers[place])), value, *texts)))
    return Table(
        title=f"Worst by: {criterion.title}",
        notes=(f"{criterion.help}. Row numbers as data.exclude_rows counts them.",),
        columns=(
            Column("row", "Row", digits=0),
            Column(criterion.name, criterion.title, criterion.help, digits=3),
            *(Column(part.lower(), part, align="left") for part in ("Prompt", "Chosen", "Rejected")),
        ),
        rows=tuple(rows),
        name=f"worst-{criterion.name}",
    )


def _text(diagnosis: Diagnosis, ids: Sequence[int]) -> str:
    text = diagnosis.tokenizer.decode(list(ids), skip_special_tokens=True).strip()
    return text if len(text) <= _LETTERS else f"{text[:_LETTERS]} …"


def catalogue(diagnosis: Diagnosis) -> Catalogue:
    """All tables, for the page."""
    worst = [table for criterion in CRITERIA if (table := worst_table(diagnosis, criterion))]
    intro = "Nothing was trained: one forward of the start model over these pairs."
    return Catalogue(
        (
            Chapter("The data", "results", intro, (facts_table(diagnosis),)),
            Chapter("What objectives would do", "pathways", "By the head's scores.", (foreseen_table(diagnosis),)),
            Chapter("The worst pairs", "worst", "By every column, with their text.", tuple(worst)),
        )
    )


def content(diagnosis: Diagnosis) -> dict[str, Any]:
    """For programs: facts, pathways, and every pair's numbers."""
    columns: dict[str, Any] = {"row": diagnosis.numbers}
    for criterion in CRITERIA:
        columns[criterion.name] = criterion.values(diagnosis).tolist()
    for name in ("sum_w", "sum_l", "n_w", "n_l", "ches", "entanglement_w", "entanglement_l"):
        columns[name] = getattr(diagnosis.measures, name).tolist()
    numbers = {name: None if math.isnan(value) else value for name, value in facts(diagnosis).items()}
    return {
        "model": diagnosis.config.model.label,
        "data": diagnosis.config.data.name,
        "facts": numbers,
        "pathways": diagnosis.pathways(),
        "pairs": columns,
    }


def write(diagnosis: Diagnosis, folder: Path, name: str) -> Path:
    """Writes diagnosis.{html, md, json} and pairs.csv; returns the page."""
    tables = catalogue(diagnosis)
    title = f"{diagnosis.config.data.name} and {diagnosis.config.model.label}: before training"
    summary = content(diagnosis)
    write_json(folder / "diagnosis.json", summary)
    write_atomic(folder / "diagnosis.md", "\n".join(map(to_markdown, tables.tables)))
    write_atomic(folder / "pairs.csv", _csv(summary["pairs"]))
    for table in tables.tables:
        for suffix, render in RENDERERS.items():
            write_atomic(folder / "tables" / f"{table.name}.{suffix}", render(table))
    page = Page(folder, name, title, "Which pairs will hurt, before anything is trained.", tables)
    write_atomic(folder / "diagnosis.html", to_html(page))
    return folder / "diagnosis.html"


def write_filter(path: Path, dropped: Mapping[int, Sequence[str]]) -> None:
    """One row number a line, with the reasons: what `data.exclude_rows` takes."""
    lines = [f"{number}  # {', '.join(reasons)}" for number, reasons in sorted(dropped.items())]
    write_atomic(path, "\n".join([f"# {len(lines)} rows, by rcray diagnose", *lines, ""]))


def _csv(columns: Mapping[str, Sequence[Any]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return out.getvalue()
