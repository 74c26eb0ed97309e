"""Our own tables of the step records: band and pathways per cell, prediction against probe set, head against full."""

from collections import Counter
from collections.abc import Sequence

from rcray.aggregate import summary
from rcray.aggregate.collect import CellResult, by_looks
from rcray.aggregate.estimators import EstimatorPair
from rcray.aggregate.frame import scores_at
from rcray.aggregate.groups import HEADS, NO_RECORDS, Comparison, Setting, has_seeds, setting_rows, settings_table
from rcray.aggregate.tables import Column, Entry, Row, Table
from rcray.config.models import table_name
from rcray.records.columns import IN_BAND, PATHWAYS

NO_PROBE = "not probed"


def _share(key: str, title: str, metric: str = "", help: str = "", *, bar: bool = True, spread: bool = False) -> Column:
    return Column(key, title, help, metric=metric, percent=True, bar=bar, spread=spread)


def pathways_table(comparisons: Sequence[Comparison]) -> Table:
    """Share of steps inside the band at the scores and on the pathway it names, cell by cell."""
    settings = [setting for c in comparisons for setting in c.settings]
    several = has_seeds(settings)
    place = scores_at(setting.config for setting in settings)
    inside = f"steps inside the band at the {place}"
    columns = (
        _share("in_band_percent", f"In band, {place} (%)", IN_BAND, inside, spread=several),
        *(
            _share(f"pathway_{name}_percent", f"{name} (%)", summary.AT_HEAD[name], meaning, spread=several)
            for name, meaning in PATHWAYS.items()
        ),
        _share("skipped_percent", "Left alone (%)", summary.SKIPPED, "steps left alone by calibration at these scores",
               bar=False, spread=several),
        Column("rho", "Median ρ", "median cosine of the scores", metric=summary.RHO, digits=3, spread=several),
        Column("steps", "Steps", "recorded optimizer steps", metric=summary.STEPS, digits=0),
    )  # fmt: skip
    meanings = "; ".join(f"{name}: {meaning}" for name, meaning in PATHWAYS.items())

    def other(setting: Setting, column: Column) -> Entry | None:
        # by the update, a factor is applied whatever the scores at the head say
        unsaid = column.metric == summary.SKIPPED and setting.config.calibration.steers_by_update
        return Entry("–", tone="absent") if unsaid else None

    note = (
        "As the paper plots it: scores at the head, or at the last adapters. It is not the prediction: see the next "
        f"table. Shares of optimizer steps. {meanings}."
    )
    return settings_table("pathways", f"The band at the {place}, per cell", note, comparisons, columns, other)


def agreement_table(comparisons: Sequence[Comparison]) -> Table:
    """How often the pathway predicted for the updates is the one realised on the probe set."""

    def entries(setting: Setting) -> list[Entry]:
        recorded = [result for result in setting.finished if result.recorded]
        if not recorded:
            word = NO_RECORDS if setting.finished else setting.word
            return [Entry(word, tone="status", runs=setting.run_ids)] * 5
        counts = summary.confusion(row for result in recorded for row in result.metrics.values())
        intervals = sum(row.total() for row in counts.values())
        if not intervals:
            return [Entry(NO_PROBE, tone="absent")] * 4 + [Entry(value=0.0)]
        agreed = sum(row[foreseen] for foreseen, row in counts.items())
        return [
            Entry(value=agreed / intervals, runs=setting.run_ids),
            setting.entry(summary.AGREEMENT_HEAD, False),
            Entry(_counted(Counter({foreseen: row.total() for foreseen, row in counts.items()}))),
            Entry(_counted(sum(counts.values(), Counter()))),
            Entry(value=float(intervals)),
        ]

    predicted = by_looks(
        (result for comparison in comparisons for setting in comparison.settings for result in setting.results),
        "the first-order move of pairs not yet trained on, under the updates really made",
        "what the paper's band at the head or the last adapters named most often",
    )
    return Table(
        title="Predicted against realised pathways, per cell",
        notes=(
            f"Predicted: {predicted}. Realised: the move of the probe set over the same steps. Head: how often the "
            "paper's band at the head or the last adapters named the realised pathway. Intervals of all seeds "
            "together.",
        ),
        columns=(
            *HEADS,
            Column(
                "agreement_percent", "Agreement (%)", "intervals on which both are the same", percent=True, bar=True
            ),
            _share("agreement_head_percent", "Head (%)", help="intervals whose pathway the band at the head named"),
            Column("predicted", "Predicted", "pathway: intervals", align="left"),
            Column("realised", "Realised", "pathway: intervals", align="left"),
            Column("intervals", "Intervals", digits=0),
        ),
        rows=setting_rows(comparisons, entries),
        name="pathway-agreement",
    )


def confusion_table(results: Sequence[CellResult]) -> Table | None:
    """Predicted against realised pathways, all finished cells together; None without a probe."""
    counts = summary.confusion(row for result in results if result.ok for row in result.metrics.values())
    if not counts:
        return None
    words = [word for word in PATHWAYS if word in counts or any(word in row for row in counts.values())]
    rows = []
    for word in words:
        own = counts.get(word, Counter())
        entries = [Entry(value=float(own[seen]), best=seen == word and own.total() > 0) for seen in words]
        share = Entry(value=own[word] / own.total()) if own else Entry("–", tone="absent")
        rows.append(Row("", (Entry(word), *entries, Entry(value=float(own.total())), share)))
    return Table(
        title="Predicted against realised pathways, all cells",
        notes=("Rows: predicted; columns: realised on the probe set; intervals. Bold: both the same.",),
        columns=(
            Column("predicted", "Predicted", align="left"),
            *(Column(f"realised_{word}", word, PATHWAYS[word], digits=0) for word in words),
            Column("intervals", "Intervals", digits=0),
            _share("agreement_percent", "Agreement (%)"),
        ),
        rows=tuple(rows),
        name="pathway-confusion",
    )


def head_full_table(pairs: Sequence[EstimatorPair]) -> Table | None:
    """The band of the head (or last adapters) against that of all parameters; None where no run has both."""
    if not pairs:
        return None
    gap = "median |log r* - log r* of all parameters|"
    columns = (
        _share("same_side_percent", "Same side (%)", summary.SAME_SIDE),
        _share("in_band_percent", "In band, head (%)", IN_BAND),
        _share("in_band_full_percent", "In band, full (%)", summary.IN_BAND_FULL),
        Column("centre_gap", "Centre gap (nats)", gap, metric=summary.CENTRE_GAP, digits=3),
        Column("width_gap", "Half-width gap (nats)", metric=summary.WIDTH_GAP, digits=3),
        Column("rho_correlation", "Correlation of ρ", metric=summary.RHO_CORRELATION, digits=3),
        Column("steps", "Steps", digits=0),
    )
    return Table(
        title="The band of the head against the band of all parameters",
        notes=(
            "Both bands at the same steps. Same side: both say inside, or both outside. Gaps are medians of absolute "
            "differences; half-widths only where both bands are bounded (ρ > 0).",
        ),
        columns=(*HEADS, *columns),
        rows=tuple(
            Row(
                table_name(pair.model),
                (Entry(pair.title), Entry(pair.rc), *(_pair_entry(pair, column) for column in columns)),
            )
            for pair in pairs
        ),
        name="head-versus-full",
    )


def _pair_entry(pair: EstimatorPair, column: Column) -> Entry:
    if not pair.metrics:
        return Entry(pair.word, tone="status", runs=pair.runs)
    if not column.metric:
        return Entry(value=float(pair.metrics[summary.SAME_SIDE].n))
    row = pair.head.metrics[IN_BAND] if column.metric == IN_BAND else pair.metrics[column.metric]
    return Entry(value=row.value, runs=pair.runs) if row.ok else Entry(row.status, tone="absent")


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{word}: {counts[word]}" for word in PATHWAYS if counts[word])
