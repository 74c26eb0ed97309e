"""Training time without and with RC: the paper's runtime table, from runs or from its own numbers."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from rcray.aggregate import published
from rcray.aggregate.groups import NO_RECORDS, NOT_PLANNED, Comparison, Setting
from rcray.aggregate.paper import PUBLISHED_NOTES, RUNTIME_MODELS, RUNTIME_OBJECTIVES, objective_title
from rcray.aggregate.published import AVERAGE, Overhead
from rcray.aggregate.summary import SECONDS
from rcray.aggregate.tables import Column, Entry, Row, Table, percent
from rcray.config.models import model_title

_METRICS = ("w/o RC Time", "w/ RC Time", "Δ Time", "Δ (%)")
_NOT_PLANNED = Overhead(NOT_PLANNED, NOT_PLANNED)
_UNKNOWN = Entry("–", tone="absent")


def runtime_of_published() -> Table:
    """The paper's table."""
    title = "Training time without and with RC (published)"
    return _table(title, RUNTIME_MODELS, RUNTIME_OBJECTIVES, published.runtimes(), [PUBLISHED_NOTES["runtime"]])


def runtime_of_runs(comparisons: Sequence[Comparison]) -> Table | None:
    """The same from finished runs; None where no model has a run both without and with RC."""
    times: dict[tuple[str, str], Overhead] = {}
    left_out = []
    for comparison in comparisons:
        if comparison.without is None or not comparison.with_rc:
            continue
        without, with_rc = comparison.without, comparison.with_rc[0]
        name = (comparison.model, without.config.objective.name)
        if name in times:
            left_out.append(comparison.title)
        else:
            times[name] = _overhead(_minutes(without), _minutes(with_rc), (without.run_ids[0], with_rc.run_ids[0]))
    if not any(time.minutes is not None for time in times.values()):
        return None
    models = _ordered([model for model, _ in times], RUNTIME_MODELS)
    objectives = _ordered([objective for _, objective in times], RUNTIME_OBJECTIVES)
    for model in models:
        known = [time for (m, _), time in times.items() if m == model and time.minutes is not None]
        if known:
            before, after = (fmean(float(getattr(time, side)) for time in known) for side in ("without", "with_rc"))
            times[model, AVERAGE] = _overhead(before, after)
    notes = [
        "Wall clock of all optimizer steps, a mean over seeds. Average: over the objectives that have both. Cells that "
        "share a machine slow each other: compare times of one sweep only."
    ]
    if left_out:
        notes.append(f"Not in the table, further settings of an objective: {', '.join(dict.fromkeys(left_out))}.")
    return _table("Training time without and with RC", models, objectives, times, notes)


def _overhead(without: float | str, with_rc: float | str, runs: tuple[str, ...] = ()) -> Overhead:
    if isinstance(without, str) or isinstance(with_rc, str):
        return Overhead(without, with_rc, runs=runs)
    minutes = with_rc - without
    return Overhead(without, with_rc, minutes, minutes / without if without else None, runs)


def _minutes(setting: Setting) -> float | str:
    times = [row.value for row in setting.measured(SECONDS).values() if row.value]
    return fmean(times) / 60 if times else setting.problem(SECONDS) or NO_RECORDS


def _ordered(names: Sequence[str], first: Sequence[str]) -> list[str]:
    return [*(name for name in first if name in names), *dict.fromkeys(name for name in names if name not in first)]


def _table(
    title: str,
    models: Sequence[str],
    objectives: Sequence[str],
    overheads: Mapping[tuple[str, str], Overhead],
    notes: Sequence[str],
) -> Table:
    rows = []
    for model in models:
        times = [overheads.get((model, objective), _NOT_PLANNED) for objective in (*objectives, AVERAGE)]
        blocks = (
            [_time(time.without, time.runs[:1]) for time in times],
            [_time(time.with_rc, time.runs[1:]) for time in times],
            [_signed_time(time) for time in times],
            [_percent(time) for time in times],
        )
        rows += [
            Row(model_title(model), (Entry(metric), *entries)) for metric, entries in zip(_METRICS, blocks, strict=True)
        ]
    return Table(
        title=title,
        notes=("In CSV: minutes and percent.", *notes),
        columns=(
            Column("metric", "Metric", align="left"),
            *(Column(name, objective_title(name), digits=1) for name in objectives),
            Column(AVERAGE, "Average", digits=1),
        ),
        rows=tuple(rows),
        name="runtime",
    )


def _time(minutes: float | str, runs: tuple[str, ...]) -> Entry:
    if isinstance(minutes, str):
        return Entry(minutes, tone="absent" if minutes == NOT_PLANNED else "status")
    return Entry(hours_and_minutes(minutes), value=minutes, runs=runs)


def _signed_time(time: Overhead) -> Entry:
    if time.minutes is None:
        return _UNKNOWN
    sign = "-" if time.minutes < 0 or (time.minutes == 0 and (time.share or 0) < 0) else "+"
    return Entry(f"{sign}{hours_and_minutes(abs(time.minutes))}", value=time.minutes)


def _percent(time: Overhead) -> Entry:
    return _UNKNOWN if time.share is None else Entry(f"{percent(time.share):+.1f}%", value=percent(time.share))


def hours_and_minutes(minutes: float) -> str:
    """Minutes as the paper prints them, `10h 46m`; in seconds below five minutes, unless they are whole minutes."""
    if minutes < 5 and minutes != int(minutes):
        return f"{60 * minutes:.1f}s"
    whole = round(minutes)
    return f"{whole // 60}h {whole % 60:02d}m" if whole >= 60 else f"{whole}m"
