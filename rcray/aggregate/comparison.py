"""Ours beside published: for every score that both have, the difference and whether the errors cover it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from rcray.aggregate import published
from rcray.aggregate.benchmark_tables import Line, average_stderr, averages, benchmark_title, lines_of, metric_key
from rcray.aggregate.groups import estimate
from rcray.aggregate.paper import DIGITS, TableSpec
from rcray.aggregate.places import Places
from rcray.aggregate.published import AVERAGE, Score
from rcray.aggregate.repeats import noise_notes
from rcray.aggregate.tables import Column, Entry, Row, Table


@dataclass(frozen=True)
class Beside:
    """A table of ours beside published, and how many differences the errors cover."""

    table: Table
    compared: int
    within: int


def beside_published(spec: TableSpec, places: Places) -> Beside | None:
    """One row per score that both have; None where there is none."""
    found = published.scores(spec.name)
    lines = lines_of(spec, places)
    keys = {name: metric_key(name, lines) for name in spec.benchmarks}
    rows = []
    within = 0
    for line in lines:
        printed = found.get(line.spec.place)
        if printed is None:
            continue
        for name in (*spec.benchmarks, AVERAGE):
            ours = _ours(line, name, keys)
            if ours is None:
                continue
            theirs = _published(printed, name, spec)
            difference = ours.value - theirs.value
            combined = _combined(ours, theirs)
            inside = combined is not None and abs(difference) <= combined
            within += inside
            rows.append(
                Row(
                    line.spec.group,
                    (
                        *(Entry(label) for label in line.labels),
                        Entry("Average" if name == AVERAGE else benchmark_title(name)),
                        Entry(value=ours.value, spread=ours.stderr, runs=line.setting.run_ids if line.setting else ()),
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
            Column("ours", "Ours", "percent", digits=DIGITS, spread=True),
            Column("published", "Published", "percent", digits=DIGITS, spread=True),
            Column("difference", "Difference", "ours minus published, points", digits=DIGITS, sign=True),
            Column("combined_stderr", "Combined error", digits=DIGITS),
            Column("within", "Within", "whether the difference is at most the combined standard error", align="left"),
        ),
        rows=tuple(rows),
        name=f"{spec.name}-beside-published",
    )
    return Beside(table, len(rows), within)


def _ours(line: Line, name: str, keys: Mapping[str, str]) -> Score | None:
    setting = line.setting
    if setting is None:
        return None
    if name != AVERAGE:
        value = setting.metric(keys[name])
        if value is None:
            return None
        return Score(100 * value.value, None if value.stderr is None else 100 * value.stderr)
    if any(setting.problem(key) for key in keys.values()):
        return None
    found = estimate(list(averages(setting, list(keys.values())).values()), None)
    if found is None:
        return None
    if found.seeds > 1:
        return Score(found.value, found.stderr)
    errors = [value.stderr for key in keys.values() if (value := setting.metric(key))]
    of_mean = average_stderr(errors)
    return Score(found.value, None if of_mean is None else 100 * of_mean)


def _published(scores: Mapping[str, Score], name: str, spec: TableSpec) -> Score:
    if name != AVERAGE:
        return scores[name]
    return Score(scores[AVERAGE].value, average_stderr([scores[key].stderr for key in spec.benchmarks]))


def _combined(ours: Score, theirs: Score) -> float | None:
    if ours.stderr is None or theirs.stderr is None or not math.isfinite(ours.stderr):
        return None
    return math.hypot(ours.stderr, theirs.stderr)
