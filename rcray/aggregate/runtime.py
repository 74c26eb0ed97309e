"""Training time without and with RC: the paper's runtime table, from runs or from its own numbers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from rcray.aggregate import published
from rcray.aggregate.groups import Comparison, Setting
from rcray.aggregate.paper import PUBLISHED_NOTES, RUNTIME_MODELS, RUNTIME_OBJECTIVES, objective_title
from rcray.aggregate.published import AVERAGE
from rcray.aggregate.tables import Column, Entry, Row, Table
from rcray.config.models import model_title

_METRICS = ("w/o RC Time", "w/ RC Time", "Δ Time", "Δ (%)")


@dataclass(frozen=True)
class Timing:
    """Minutes without and with RC, or the word that stands for them; differences may be printed ones."""

    without: float | str
    with_rc: float | str
    minutes: float | None = None
    percent: float | None = None
    runs: tuple[str, ...] = ()

    @property
    def known(self) -> bool:
        """Whether both were measured."""
        return isinstance(self.without, float) and isinstance(self.with_rc, float)

    @property
    def difference(self) -> float | None:
        """Minutes that RC adds."""
        if self.minutes is not None or not (isinstance(self.without, float) and isinstance(self.with_rc, float)):
            return self.minutes
        return self.with_rc - self.without

    @property
    def relative(self) -> float | None:
        """The same in percent of the time without."""
        if self.percent is not None or self.difference is None or not isinstance(self.without, float):
            return self.percent
        return 100 * self.difference / self.without if self.without else None


def runtime_of_published() -> Table:
    """The paper's table."""
    times = {key: Timing(t.without, t.with_rc, t.minutes, t.percent) for key, t in published.runtimes().items()}
    return _table(
        "Training time without and with RC (published)",
        RUNTIME_MODELS,
        RUNTIME_OBJECTIVES,
        lambda model, objective: times[model, objective],
        [PUBLISHED_NOTES["runtime"]],
    )


def runtime_of_runs(comparisons: Sequence[Comparison]) -> Table | None:
    """The same from finished runs; None where no model has a run both without and with RC."""
    found: dict[tuple[str, str], Timing] = {}
    left_out = []
    for comparison in comparisons:
        for setting in comparison.with_rc[:1]:
            if comparison.without is None:
                continue
            name = (comparison.model, comparison.without.config.objective.name)
            if name in found:
                left_out.append(comparison.title)
                continue
            runs = (comparison.without.run_ids[0], setting.run_ids[0])
            found[name] = Timing(_minutes(comparison.without), _minutes(setting), runs=runs)
    if not any(timing.known for timing in found.values()):
        return None
    models = _ordered(dict.fromkeys(model for model, _ in found), RUNTIME_MODELS)
    objectives = _ordered(dict.fromkeys(objective for _, objective in found), RUNTIME_OBJECTIVES)
    for model in models:
        known = [t for (m, _), t in found.items() if m == model and t.known]
        if known:
            without, with_rc = (fmean(float(getattr(t, side)) for t in known) for side in ("without", "with_rc"))
            found[model, AVERAGE] = Timing(without, with_rc)
    notes = [
        "Wall clock of all optimizer steps, a mean over seeds. Average: over the objectives that have both. Cells that "
        "share a machine slow each other: compare times of one sweep only."
    ]
    if left_out:
        notes.append(f"Not in the table, further settings of an objective: {', '.join(dict.fromkeys(left_out))}.")
    missing = Timing("not planned", "not planned")
    return _table(
        "Training time without and with RC",
        models,
        objectives,
        lambda model, objective: found.get((model, objective), missing),
        notes,
    )


def _minutes(setting: Setting) -> float | str:
    times = [r.summary.seconds for r in setting.finished if r.summary and r.summary.seconds]
    if times:
        return fmean(times) / 60
    return setting.word if setting.word != "ok" else "no records"


def _ordered(names: Sequence[str] | dict[str, None], first: Sequence[str]) -> list[str]:
    return [*(name for name in first if name in names), *(name for name in names if name not in first)]


def _table(
    title: str,
    models: Sequence[str],
    objectives: Sequence[str],
    timing: Callable[[str, str], Timing],
    notes: Sequence[str],
) -> Table:
    rows = []
    for model in models:
        times = [timing(model, objective) for objective in (*objectives, AVERAGE)]
        blocks = (
            [_time(t.without, t.runs[:1]) for t in times],
            [_time(t.with_rc, t.runs[1:]) for t in times],
            [_signed_time(t) for t in times],
            [_percent(t) for t in times],
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
        return Entry(minutes, tone="absent" if minutes == "not planned" else "status")
    return Entry(duration(minutes), value=minutes, runs=runs)


def _signed_time(timing: Timing) -> Entry:
    if timing.difference is None:
        return Entry("–", tone="absent")
    sign = "-" if timing.difference < 0 or (timing.difference == 0 and (timing.relative or 0) < 0) else "+"
    return Entry(f"{sign}{duration(abs(timing.difference))}", value=timing.difference)


def _percent(timing: Timing) -> Entry:
    if timing.relative is None:
        return Entry("–", tone="absent")
    return Entry(f"{timing.relative:+.1f}%", value=timing.relative)


def duration(minutes: float) -> str:
    """Minutes as the paper prints them, `10h 46m`; in seconds below five minutes, unless they are whole minutes."""
    if minutes < 5 and minutes != int(minutes):
        return f"{60 * minutes:.1f}s"
    whole = round(minutes)
    return f"{whole // 60}h {whole % 60:02d}m" if whole >= 60 else f"{whole}m"
