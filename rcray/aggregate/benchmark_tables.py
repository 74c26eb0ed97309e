"""Benchmark tables in the paper's layout, from runs or from the published numbers alone."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rcray.aggregate import published
from rcray.aggregate.groups import Setting, comparable, estimate, pair_key
from rcray.aggregate.mixtures import mark
from rcray.aggregate.paper import DIGITS, PUBLISHED_NOTES, RowSpec, TableSpec
from rcray.aggregate.places import NOT_PLANNED, Places
from rcray.aggregate.published import AVERAGE
from rcray.aggregate.repeats import repeat_notes
from rcray.aggregate.student import p_entry, paired_test
from rcray.aggregate.tables import Column, Entry, Row, Table, mark_best
from rcray.config.benchmarks import BENCHMARKS, benchmark_title

_PERCENT = 100.0


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


def table_of_runs(spec: TableSpec, places: Places) -> Table:
    """The table filled from runs: values in percent, standard errors, seeds, differences, paired tests."""
    lines = lines_of(spec, places)
    keys = {name: metric_key(name, lines) for name in spec.benchmarks}
    settings = [line.setting for line in lines]
    marked = mark(settings, [line.spec.group for line in lines], list(keys.values()))
    several = any(setting is not None and len(setting.results) > 1 for setting in settings)
    rows = []
    for i, line in enumerate(lines):
        labels = [Entry(text) for text in line.labels]
        labels[0] = replace(labels[0], mark=marked.rows.get(i, ""))
        scores = [_score(line, key, several, marked.cells.get((i, key), "")) for key in keys.values()]
        average = _average(line, list(keys.values()), several)
        rest = [average]
        if spec.delta:
            rest.append(_delta(line, list(keys.values())))
        if several:
            rest += [_seeds(line), _p(line, list(keys.values()))]
        rows.append(Row(line.spec.group, (*labels, *scores, *rest)))
    columns = (*_columns(spec), *_seed_columns()) if several else _columns(spec)
    return Table(
        title=spec.title,
        notes=(*_notes(several, settings, list(keys.values())), *marked.notes),
        columns=columns,
        rows=tuple(mark_best(rows, range(len(spec.heads), len(spec.heads) + len(spec.benchmarks) + 1))),
        spread_name="std" if several else "stderr",
        name=spec.name,
        subscripts=True,
    )


def table_of_published(spec: TableSpec) -> Table:
    """The same table with the paper's own numbers; the differences are recomputed from its averages."""
    found = published.scores(spec.name)
    rows = []
    for row in spec.rows():
        scores = found[row.place]
        entries = [Entry(text) for text in row.labels]
        entries += [Entry(value=scores[name].value, spread=scores[name].stderr) for name in spec.benchmarks]
        entries.append(Entry(value=scores[AVERAGE].value))
        if spec.delta:
            before = found[row.against][AVERAGE].value if row.against else None
            entries.append(Entry("–", tone="absent") if before is None else Entry(value=scores[AVERAGE].value - before))
        rows.append(Row(row.group, tuple(entries)))
    notes = ["Published numbers, in percent; subscripts and ± are the printed standard errors."]
    notes.append(PUBLISHED_NOTES["stderr"])
    if any(row.place.model == "mistral-7b" and row.place.data == "ultrafeedback" for row in spec.rows()):
        notes.append(PUBLISHED_NOTES["degenerate"])
    notes += repeat_notes(spec)
    return Table(
        title=f"{spec.title} (published)",
        notes=tuple(notes),
        columns=_columns(spec),
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


def _columns(spec: TableSpec) -> tuple[Column, ...]:
    heads = tuple(Column(head.lower(), head, align="left") for head in spec.heads)
    scores = tuple(
        Column(name, benchmark_title(name), f"{benchmark_title(name)}, percent", digits=DIGITS, spread=True)
        for name in spec.benchmarks
    )
    average = Column("average", "Average", "plain mean of the row's benchmarks", digits=DIGITS, spread=not spec.paper)
    delta = Column("delta_average", "Δ", "average with RC minus average without", digits=DIGITS, sign=True)
    return (*heads, *scores, average, delta) if spec.delta else (*heads, *scores, average)


def _seed_columns() -> tuple[Column, ...]:
    return (
        Column("seeds", "Seeds", "seeds with a result, of those planned", digits=0),
        Column("p", "p", "two-sided paired t-test over seeds of the average, with RC against without", digits=3),
    )


def _score(line: Line, key: str, several: bool, letter: str) -> Entry:
    setting = line.setting
    if setting is None:
        return Entry(NOT_PLANNED, tone="absent")
    value = setting.metric(key)
    if value is None:
        reasons = {m.reason for m in setting.measured(key).values() if m.reason}
        return Entry(setting.problem(key), tone="status", tip="; ".join(sorted(reasons)), runs=setting.run_ids)
    spread = value.shown_spread(several)
    return Entry(
        value=_PERCENT * value.value,
        spread=None if spread is None else _PERCENT * spread,
        mark=letter,
        tip=_tip(setting, key),
        runs=setting.run_ids,
    )


def _tip(setting: Setting, key: str) -> str:
    first = next(iter(setting.measured(key).values()))
    parts = [f"n = {first.n}", *(f"{name.replace('_', ' ')} {value}" for name, value in first.protocol)]
    parts += [f"standard error, {name.replace('_', ' ')}: {_PERCENT * value:.2f}" for name, value in first.errors]
    return "; ".join(parts)


def averages(setting: Setting, keys: Sequence[str]) -> dict[int, float]:
    """The mean over benchmarks, by seed, for the seeds that have every one of them as a score."""
    found = {}
    for result in setting.finished:
        values = [result.metrics[key] for key in keys if key in result.metrics]
        if len(values) == len(keys) and all(value.ok for value in values):
            found[result.seed] = _PERCENT * sum(value.value for value in values) / len(values)
    return found


def average_stderr(errors: Sequence[float | None]) -> float | None:
    """Of a mean of independent benchmarks."""
    if not errors or any(error is None or not math.isfinite(error) for error in errors):
        return None
    return math.sqrt(sum(error * error for error in errors if error is not None)) / len(errors)


def _average(line: Line, keys: Sequence[str], several: bool) -> Entry:
    setting = line.setting
    if setting is None:
        return Entry(NOT_PLANNED, tone="absent")
    problems = [problem for key in keys if (problem := setting.problem(key))]
    if problems:
        word = problems[0] if len(set(problems)) == 1 else "incomplete"
        return Entry(word, tone="status", tip="an average needs every benchmark", runs=setting.run_ids)
    found = estimate(list(averages(setting, keys).values()), None)
    assert found is not None
    return Entry(value=found.value, spread=found.std if several else None, runs=setting.run_ids)


def _delta(line: Line, keys: Sequence[str]) -> Entry:
    if line.spec.against is None:
        return Entry("–", tone="absent")
    if line.setting is None:
        return Entry(NOT_PLANNED, tone="absent")
    if line.apart:
        return Entry("settings differ", tone="status", tip="no run without RC differs from this one in RC alone")
    if line.without is None:
        return Entry("no w/o", tone="absent")
    if not all(comparable(line.without, line.setting, key) for key in keys):
        return Entry("protocols differ", tone="status", tip="task versions, shots or templates are not the same")
    found = _differences(line, keys)
    if not found:
        words = [setting.problem(key) for key in keys for setting in (line.setting, line.without)]
        return Entry(next(filter(None, words), "incomplete"), tone="status")
    value = estimate(found, None)
    assert value is not None
    return Entry(value=value.value, spread=value.std)


def _differences(line: Line, keys: Sequence[str]) -> list[float]:
    if line.setting is None or line.without is None:
        return []
    before, after = averages(line.without, keys), averages(line.setting, keys)
    return [after[seed] - before[seed] for seed in sorted(before.keys() & after.keys())]


def _seeds(line: Line) -> Entry:
    if line.setting is None:
        return Entry(NOT_PLANNED, tone="absent")
    finished, planned = len(line.setting.finished), len(line.setting.results)
    return Entry(f"{finished} of {planned}" if finished < planned else str(planned))


def _p(line: Line, keys: Sequence[str]) -> Entry:
    return p_entry(paired_test(_differences(line, keys)))


def _notes(several: bool, settings: Sequence[Setting | None], keys: Sequence[str]) -> list[str]:
    kind = "mean ± sample standard deviation over seeds" if several else "± and subscripts: one standard error"
    notes = [f"In percent; {kind}; average: plain mean of the row's benchmarks. Bold: highest of its model."]
    kinds = {
        dict(m.protocol).get("stderr_kind")
        for setting in settings
        if setting
        for key in keys
        for m in setting.measured(key).values()
    } - {None}
    if kinds and not several:
        notes.append(f"Standard errors of grouped benchmarks: {' and '.join(sorted(map(str, kinds)))}.")
    if several:
        notes.append("p: two-sided paired t-test over seeds of the average, with RC against without.")
    return notes
