"""Benchmark tables in the paper's layout, from runs or from the published numbers alone."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rcray.aggregate import published
from rcray.aggregate.collect import Metric
from rcray.aggregate.estimates import Estimate, error_notes, p_entry
from rcray.aggregate.groups import (
    NOT_PLANNED,
    Setting,
    comparable,
    difference,
    has_seeds,
    pair_key,
    paired_differences,
)
from rcray.aggregate.mixtures import mark
from rcray.aggregate.paper import DIGITS, PUBLISHED_NOTES, RowSpec, TableSpec
from rcray.aggregate.places import Places
from rcray.aggregate.published import AVERAGE
from rcray.aggregate.repeats import repeat_notes
from rcray.aggregate.tables import Column, Entry, Row, Table, mark_best, percent
from rcray.config.benchmarks import BENCHMARKS, benchmark_title, is_share


@dataclass(frozen=True)
class Line:
    """One row of a table from runs: its labels, its setting, and the setting without RC beside it."""

    spec: RowSpec
    labels: tuple[str, ...]
    setting: Setting | None
    without: Setting | None = None
    apart: bool = False  # there are settings without RC, but none that differs in RC alone


def lines_of(spec: TableSpec, places: Places) -> list[Line]:
    """The rows of a table with the runs that fill them; a row that several settings fill becomes several."""
    lines, starts = [], {title: row for title, row in spec.start_rows().items() if places.settings(row.place)}
    for row in _with_starts(spec.rows(), starts):
        settings = places.settings(row.place)
        if not settings and spec.paper:  # elsewhere a row that nobody planned is not missing
            lines.append(Line(row, row.labels, None))
        others = {pair_key(other.config): other for other in (places.settings(row.against) if row.against else ())}
        for setting in settings:
            labels = (*row.labels[:-1], f"{row.labels[-1]} ({setting.variant})") if setting.variant else row.labels
            without = others.get(pair_key(setting.config)) if others else None
            lines.append(Line(row, labels, setting, without, apart=bool(others) and without is None))
    return lines


def _with_starts(rows: Sequence[RowSpec], starts: Mapping[str, RowSpec]) -> Iterator[RowSpec]:
    """Each group's start model before its first row, where there is one."""
    seen: set[str] = set()
    for row in rows:
        if row.group not in seen and row.group in starts:
            yield starts[row.group]
        seen.add(row.group)
        yield row


def metrics_of(spec: TableSpec, lines: Sequence[Line]) -> dict[str, Metric]:
    """The keys of the frame by column; the average is that of shares, the first of each benchmark."""
    keys = {name: metric_key(name, lines) for name in spec.benchmarks}
    first: dict[str, str] = {}
    for key in filter(is_share, keys.values()):
        first.setdefault(key.partition("/")[0], key)
    return {**keys, AVERAGE: tuple(first.values())}


def table_of_runs(spec: TableSpec, places: Places) -> Table:
    """The table filled from runs: scores, standard errors, seeds, differences, paired tests."""
    lines = lines_of(spec, places)
    metrics = metrics_of(spec, lines)
    keys = [key for key in metrics.values() if isinstance(key, str)]
    settings = [line.setting for line in lines]
    marked = mark(settings, [line.spec.group for line in lines], keys)
    several = has_seeds(settings)
    deltas = _differences(lines, metrics[AVERAGE]) if spec.delta else []
    columns = _columns(spec, keys, paired=any(delta.paired for delta in deltas))
    rows = []
    for i, line in enumerate(lines):
        labels = [Entry(text) for text in line.labels]
        labels[0] = replace(labels[0], mark=marked.rows.get(i, ""))
        entries = [_score(line.setting, key, several, marked.cells.get((i, key), "")) for key in keys]
        entries.append(_average(line.setting, metrics[AVERAGE], several))
        if spec.delta:
            entries.append(_delta(line, metrics[AVERAGE]))
        if several:
            seeds = Entry(line.setting.seeds) if line.setting else Entry(NOT_PLANNED, tone="absent")
            entries += [seeds, p_entry(paired_differences(line.without, line.setting, metrics[AVERAGE]))]
        rows.append(Row(line.spec.group, (*labels, *entries)))
    return Table(
        title=spec.title,
        notes=(*_notes(several, settings, keys, metrics[AVERAGE]), *_error_notes(several, deltas), *marked.notes),
        columns=(*columns, *_seed_columns()) if several else columns,
        rows=tuple(mark_best(rows, _where_more_is_better(columns, metrics))),
        spread_name="std" if several else "stderr",
        name=spec.name,
        subscripts=True,
    )


def table_of_published(spec: TableSpec) -> Table:
    """The same table with the paper's own numbers; the differences are recomputed from its averages."""
    printed = published.scores(spec.name)
    rows = []
    for row in spec.rows():
        scores = printed[row.place]
        entries = [Entry(text) for text in row.labels]
        entries += [Entry(value=scores[name].value, spread=scores[name].stderr) for name in (*spec.benchmarks, AVERAGE)]
        if spec.delta:
            before = printed[row.against][AVERAGE].value if row.against else None
            entries.append(Entry("–", tone="absent") if before is None else Entry(value=scores[AVERAGE].value - before))
        rows.append(Row(row.group, tuple(entries)))
    notes = ["Published numbers, in percent; subscripts and ± are the printed standard errors."]
    notes += [PUBLISHED_NOTES[name] for name in spec.published_notes]
    notes += repeat_notes(spec)
    return Table(
        title=f"{spec.title} (published)",
        notes=tuple(notes),
        columns=_columns(spec, [metric_key(name, ()) for name in spec.benchmarks]),
        rows=tuple(mark_best(rows, range(len(spec.heads), len(spec.heads) + len(spec.benchmarks) + 1))),
        name=spec.name,
        subscripts=True,
    )


def metric_key(benchmark: str, lines: Sequence[Line]) -> str:
    """`benchmark/metric`: the paper's metric, or the one that the runs have."""
    if "/" in benchmark:
        return benchmark
    if benchmark in BENCHMARKS and (metric := BENCHMARKS[benchmark].metric):
        return f"{benchmark}/{metric}"
    names = [name for line in lines if line.setting for r in line.setting.finished for name in r.metrics]
    return next((name for name in names if name.partition("/")[0] == benchmark), benchmark)


def _differences(lines: Sequence[Line], average: Metric) -> list[Estimate]:
    pairs = [(line.without, line.setting) for line in lines if not line.apart]
    deltas = [difference(without, setting, average) for without, setting in pairs if without and setting]
    return [delta for delta in deltas if delta is not None]


def _error_notes(several: bool, deltas: Sequence[Estimate]) -> list[str]:
    """Differences without items have no error here, and need no note."""
    paired = [delta for delta in deltas if delta.paired]
    return list(error_notes("Δ", several, paired)) if paired else []


def _columns(spec: TableSpec, keys: Sequence[str], *, paired: bool = False) -> tuple[Column, ...]:
    heads = tuple(Column(head.lower(), head, align="left") for head in spec.heads)
    scores = tuple(_score_column(name, is_share(key)) for name, key in zip(spec.benchmarks, keys, strict=True))
    average = Column(AVERAGE, "Average", "plain mean of the row's benchmarks", percent=True, digits=DIGITS,
                     spread=not spec.paper)  # fmt: skip
    delta = Column("delta_average", "Δ", "average with RC minus average without", percent=True, digits=DIGITS,
                   sign=True, spread=paired)  # fmt: skip
    return (*heads, *scores, average, delta) if spec.delta else (*heads, *scores, average)


def _score_column(name: str, share: bool) -> Column:
    title = benchmark_title(name)
    help = f"{title}, percent" if share else title
    return Column(name, title, help, percent=share, digits=DIGITS, spread=True)


def _where_more_is_better(columns: Sequence[Column], metrics: Mapping[str, Metric]) -> list[int]:
    """The columns of shares; of a perplexity the highest would be the worst."""
    return [i for i, column in enumerate(columns) if column.key in metrics and column.percent]


def _seed_columns() -> tuple[Column, ...]:
    return (
        Column("seeds", "Seeds", "seeds with a result, of those planned", digits=0),
        Column("p", "p", "two-sided paired t-test over seeds of the average, with RC against without", digits=3),
    )


def _score(setting: Setting | None, key: str, several: bool, letter: str) -> Entry:
    if setting is None:
        return Entry(NOT_PLANNED, tone="absent")
    rows = list(setting.measured(key).values())
    if not rows:
        return setting.entry(key, several)
    parts = [f"n = {rows[0].n}", *(f"{name.replace('_', ' ')} {value}" for name, value in rows[0].protocol)]
    errors = [(name, percent(value) if is_share(key) else value) for name, value in rows[0].errors]
    parts += [f"standard error, {name.replace('_', ' ')}: {value:.2f}" for name, value in errors]
    return setting.entry(key, several, mark=letter, tip="; ".join(parts))


def _average(setting: Setting | None, average: Metric, several: bool) -> Entry:
    if setting is None:
        return Entry(NOT_PLANNED, tone="absent")
    if not average:
        return Entry("–", tone="absent", tip="no benchmark here is a share")
    entry = setting.entry(average, several)
    if entry.value is None:
        return replace(entry, tip="an average needs every benchmark")
    return entry if several else replace(entry, spread=None)  # as in the paper


def _delta(line: Line, average: Metric) -> Entry:
    if line.spec.against is None or not average:
        return Entry("–", tone="absent")
    if line.setting is None:
        return Entry(NOT_PLANNED, tone="absent")
    if line.apart:
        return Entry("settings differ", tone="status", tip="no run without RC differs from this one in RC alone")
    if line.without is None:
        return Entry("no w/o", tone="absent")
    if not comparable(line.without, line.setting, average):
        return Entry("protocols differ", tone="status", tip="task versions, shots or templates are not the same")
    value = difference(line.without, line.setting, average)
    if value is None:
        word = line.setting.problem(average) or line.without.problem(average)
        return Entry(word or "incomplete", tone="status")
    return Entry(value=value.value, spread=value.stderr if value.paired else value.std)


def _notes(
    several: bool, settings: Sequence[Setting | None], keys: Sequence[str], averaged: Sequence[str]
) -> list[str]:
    kind = "mean ± sample standard deviation over seeds" if several else "± and subscripts: one standard error"
    notes = [f"In percent; {kind}; average: plain mean of the row's benchmarks. Bold: highest of its model."]
    if plain := [key for key in keys if "/" in key and not is_share(key)]:
        notes.append(f"Not in percent, not in the average, never bold: {', '.join(plain)}.")
    if again := [key for key in keys if is_share(key) and key not in averaged]:
        notes.append(f"Of several metrics of a benchmark the average has the first, and not: {', '.join(again)}.")
    rows = (row for setting in settings if setting for key in keys for row in setting.measured(key).values())
    kinds = {value for row in rows for name, value in row.protocol if name == "stderr_kind"}
    if kinds and not several:
        notes.append(f"Standard errors of grouped benchmarks: {' and '.join(sorted(kinds))}.")
    if several:
        notes.append("p: two-sided paired t-test over seeds of the average, with RC against without.")
    return notes
