"""Our own tables of the step records: band and pathways per cell, prediction against probe set, head against full."""

from collections import Counter
from collections.abc import Callable, Sequence

from rcray.aggregate.collect import CellResult
from rcray.aggregate.estimators import EstimatorPair
from rcray.aggregate.groups import Comparison, Setting
from rcray.aggregate.summary import DynamicsSummary, HeadFull
from rcray.aggregate.tables import Column, Entry, Row, Table
from rcray.config.models import table_name
from rcray.records.columns import PATHWAYS

_HEADS = (Column("objective", "Objective", align="left"), Column("rc", "RC", align="left"))
NO_RECORDS = "no records"
NO_PROBE = "not probed"


def pathways_table(comparisons: Sequence[Comparison]) -> Table:
    """Share of steps inside the band and on each predicted pathway, cell by cell."""
    several = _several(comparisons)
    reads: list[tuple[Column, Callable[[DynamicsSummary], float], float]] = [
        (Column("in_band_percent", "In band (%)", "steps inside the band", share=True, spread=several),
         lambda s: s.in_band, 100.0),
        *((Column(f"pathway_{name}_percent", f"{name} (%)", meaning, share=True, spread=several),
           lambda s, name=name: s.pathways[name], 100.0) for name, meaning in PATHWAYS.items()),  # type: ignore[misc]
        (Column("skipped_percent", "Left alone (%)", "steps that calibration left alone", spread=several),
         lambda s: s.skipped, 100.0),
        (Column("rho", "Median ρ", "median cosine of the scores", digits=3, spread=several), lambda s: s.rho, 1.0),
        (Column("steps", "Steps", "recorded optimizer steps", digits=0), lambda s: float(s.steps), 1.0),
    ]  # fmt: skip

    def entries(setting: Setting) -> list[Entry]:
        return [_entry(setting, read, scale, several) for _, read, scale in reads]

    return Table(
        title="Band and predicted pathways, per cell",
        notes=(
            "Shares of optimizer steps. " + "; ".join(f"{name}: {meaning}" for name, meaning in PATHWAYS.items()) + ".",
            *(["Mean ± sample standard deviation over seeds."] if several else []),
        ),
        columns=(*_HEADS, *(column for column, _, _ in reads)),
        rows=_rows(comparisons, entries),
        spread_name="std" if several else "stderr",
        name="pathways",
    )


def agreement_table(comparisons: Sequence[Comparison]) -> Table:
    """How often the pathway predicted for the updates is the one realised on the probe set."""

    def entries(setting: Setting) -> list[Entry]:
        known = [r.summary for r in setting.finished if r.summary is not None]
        if setting.word != "ok" or not known:
            word = NO_RECORDS if setting.word == "ok" else setting.word
            return [Entry(word, tone="status", runs=setting.run_ids)] * 4
        intervals = sum(s.intervals for s in known)
        if not intervals:
            return [Entry(NO_PROBE, tone="absent")] * 3 + [Entry(value=0.0)]
        agreed = sum(s.agreement * s.intervals for s in known if s.intervals)
        foreseen = sum((Counter({k: sum(v.values()) for k, v in s.confusion.items()}) for s in known), Counter())
        seen = sum((Counter(word) for s in known for word in s.confusion.values()), Counter())
        return [
            Entry(value=100 * agreed / intervals, runs=setting.run_ids),
            Entry(_shares(foreseen)),
            Entry(_shares(seen)),
            Entry(value=float(intervals)),
        ]

    return Table(
        title="Predicted against realised pathways, per cell",
        notes=(
            "Between two looks at the probe set: the pathway predicted most often for the updates, and the one that "
            "the probe set's likelihoods took. Intervals of all seeds together.",
        ),
        columns=(
            *_HEADS,
            Column("agreement_percent", "Agreement (%)", "intervals on which both are the same", share=True),
            Column("predicted", "Predicted", "pathway: intervals", align="left"),
            Column("realised", "Realised", "pathway: intervals", align="left"),
            Column("intervals", "Intervals", digits=0),
        ),
        rows=_rows(comparisons, entries),
        name="pathway-agreement",
    )


def confusion_table(results: Sequence[CellResult]) -> Table | None:
    """Predicted against realised pathways, all finished cells together; None without a probe."""
    counts: dict[str, Counter[str]] = {}
    for result in results:
        if result.ok and result.summary:
            for foreseen, row in result.summary.confusion.items():
                counts.setdefault(foreseen, Counter()).update(row)
    if not counts:
        return None
    words = [word for word in PATHWAYS if word in counts or any(word in row for row in counts.values())]
    rows = []
    for word in words:
        own = counts.get(word, Counter())
        total = sum(own.values())
        entries = [Entry(value=float(own[seen]), best=seen == word and total > 0) for seen in words]
        share = Entry(value=100 * own[word] / total) if total else Entry("–", tone="absent")
        rows.append(Row("", (Entry(word), *entries, Entry(value=float(total)), share)))
    return Table(
        title="Predicted against realised pathways, all cells",
        notes=("Rows: predicted; columns: realised on the probe set; intervals. Bold: both the same.",),
        columns=(
            Column("predicted", "Predicted", align="left"),
            *(Column(f"realised_{word}", word, PATHWAYS[word], digits=0) for word in words),
            Column("intervals", "Intervals", digits=0),
            Column("agreement_percent", "Agreement (%)", share=True),
        ),
        rows=tuple(rows),
        name="pathway-confusion",
    )


def head_full_table(pairs: Sequence[EstimatorPair]) -> Table | None:
    """The band of the head (or last adapters) against that of all parameters; None where no run has both."""
    if not pairs:
        return None
    rows = [Row(table_name(pair.model), (Entry(pair.title), Entry(pair.rc), *_head_full(pair))) for pair in pairs]
    return Table(
        title="The band of the head against the band of all parameters",
        notes=(
            "Both bands at the same steps. Same side: both say inside, or both outside. Gaps are medians of absolute "
            "differences; half-widths only where both bands are bounded (ρ > 0).",
        ),
        columns=(
            *_HEADS,
            Column("same_side_percent", "Same side (%)", share=True),
            Column("in_band_percent", "In band, head (%)", share=True),
            Column("in_band_full_percent", "In band, full (%)", share=True),
            Column("centre_gap", "Centre gap (nats)", "median |log r* - log r* of all parameters|", digits=3),
            Column("width_gap", "Half-width gap (nats)", digits=3),
            Column("rho_correlation", "Correlation of ρ", digits=3),
            Column("steps", "Steps", digits=0),
        ),
        rows=tuple(rows),
        name="head-versus-full",
    )


def _head_full(pair: EstimatorPair) -> list[Entry]:
    found: HeadFull | None = pair.agreement
    if found is None:
        return [Entry(pair.word, tone="status", runs=pair.runs)] * 7
    gaps = [
        Entry(value=value) if value == value else Entry("unbounded", tone="absent")
        for value in (found.centre_gap, found.width_gap)
    ]
    correlation = found.rho_correlation
    return [
        Entry(value=100 * found.same_side, runs=pair.runs),
        Entry(value=100 * pair.inside),
        Entry(value=100 * found.inside_full),
        *gaps,
        Entry(value=correlation) if correlation == correlation else Entry("no spread", tone="absent"),
        Entry(value=float(found.steps)),
    ]


def _several(comparisons: Sequence[Comparison]) -> bool:
    return any(len(setting.results) > 1 for c in comparisons for setting in c.settings)


def _rows(comparisons: Sequence[Comparison], entries: Callable[[Setting], list[Entry]]) -> tuple[Row, ...]:
    return tuple(
        Row(table_name(c.model), (Entry(c.title), Entry(setting.rc), *entries(setting)))
        for c in comparisons
        for setting in c.settings
    )


def _entry(setting: Setting, read: Callable[[DynamicsSummary], float], scale: float, several: bool) -> Entry:
    if setting.word != "ok":
        return Entry(setting.word, tone="status", runs=setting.run_ids)
    value = setting.summary(read)
    if value is None:
        return Entry(NO_RECORDS, tone="status", runs=setting.run_ids)
    spread = value.shown_spread(several)
    return Entry(value=scale * value.value, spread=None if spread is None else scale * spread, runs=setting.run_ids)


def _shares(counts: Counter[str]) -> str:
    return ", ".join(f"{word}: {counts[word]}" for word in PATHWAYS if counts[word])
