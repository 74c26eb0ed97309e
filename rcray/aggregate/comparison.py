"""Ours beside published: for every score that both have, the difference and whether the errors cover it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from rcray.aggregate import published
from rcray.aggregate.benchmark_tables import lines_of, metrics_of
from rcray.aggregate.estimates import error_of_mean
from rcray.aggregate.paper import DIGITS, TableSpec
from rcray.aggregate.places import Places
from rcray.aggregate.published import AVERAGE, Score
from rcray.aggregate.repeats import noise_notes
from rcray.aggregate.tables import Column, Entry, Row, Table
from rcray.config.benchmarks import benchmark_title


@dataclass(frozen=True)
class Beside:
    """A table of ours beside published, and how many differences the errors cover."""

    table: Table
    compared: int
    within: int


def beside_published(spec: TableSpec, places: Places) -> Beside | None:
    """One row per score that both have; None where there is none."""
    printed = published.scores(spec.name)
    lines = lines_of(spec, places)
    rows = []
    within = 0
    for line in lines:
        scores = printed.get(line.spec.place)
        if scores is None or line.setting is None:
            continue
        for name, metric in metrics_of(spec, lines).items():
            ours = line.setting.metric(metric)
            if ours is None:
                continue
            theirs = published_score(scores, name, spec)
            difference = ours.value - theirs.value
            known = ours.stderr is not None and theirs.stderr is not None and math.isfinite(ours.stderr)
            combined = math.hypot(ours.stderr or 0.0, theirs.stderr or 0.0) if known else None
            inside = combined is not None and abs(difference) <= combined
            within += inside
            rows.append(
                Row(
                    line.spec.group,
                    (
                        *(Entry(label) for label in line.labels),
                        Entry("Average" if name == AVERAGE else benchmark_title(name)),
                        Entry(value=ours.value, spread=ours.stderr, runs=line.setting.run_ids),
                        Entry(value=theirs.value, spread=theirs.stderr),
                        Entry(value=difference),
                        Entry("not known", tone="absent") if combined is None else Entry(value=combined),
                        Entry("not known", tone="absent") if combined is None else Entry("yes" if inside else "no"),
                    ),
                )
            )
    if not rows:
        return None
    heads = tuple(Column(head.lower(), head, align="left") for head in (*spec.heads, "Benchmark"))
    table = Table(
        title=f"{spec.title}: ours beside published",
        notes=(
            f"{within} of {len(rows)} differences lie within one combined standard error, √(ours² + published²). The "
            "error of an average is that of independent benchmarks. Published errors mix two definitions (see the "
            "published table), and their harness and data order are not known: a difference is no refutation.",
            *noise_notes(),
        ),
        columns=(
            *heads,
            Column("ours", "Ours", "percent", percent=True, digits=DIGITS, spread=True),
            Column("published", "Published", "percent", percent=True, digits=DIGITS, spread=True),
            Column("difference", "Difference", "ours minus published, points", percent=True, digits=DIGITS, sign=True),
            Column("combined_stderr", "Combined error", percent=True, digits=DIGITS),
            Column("within", "Within", "whether the difference is at most the combined standard error", align="left"),
        ),
        rows=tuple(rows),
        name=f"{spec.name}-beside-published",
    )
    return Beside(table, len(rows), within)


def published_score(scores: Mapping[str, Score], name: str, spec: TableSpec) -> Score:
    """A printed score; the error of an average, which the paper does not print, is that of independent benchmarks."""
    if name != AVERAGE:
        return scores[name]
    return Score(scores[AVERAGE].value, error_of_mean([scores[key].stderr for key in spec.benchmarks]))
