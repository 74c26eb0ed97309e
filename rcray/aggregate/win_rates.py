"""AlpacaEval: how often a judge prefers the answers of a model trained with RC to those of the same without it."""

from collections.abc import Sequence

from rcray.aggregate import published
from rcray.aggregate.groups import Comparison
from rcray.aggregate.paper import objective_title
from rcray.aggregate.tables import Column, Entry, Row, Table
from rcray.config.benchmarks import ALPACA_EVAL
from rcray.config.models import model_title

_PUBLISHED_NOTE = (
    "Published: 805 instructions, one call a pair with the calibrated answer always second, ties and failures 0.5, no "
    "length control; the opponent is the same objective without RC."
)
_COMPARED = "with RC against without"
_METRICS = ((f"{ALPACA_EVAL}/win_rate", "Win rate"), (f"{ALPACA_EVAL}/lc_win_rate", "Length-controlled"))


def win_rates_of_published() -> Table:
    """What the text of the paper says."""
    rows = [
        Row(
            model_title(rate.model),
            (Entry(objective_title(rate.objective)), Entry(rate.judge), Entry(value=rate.rate)),
        )
        for rate in published.win_rates()
    ]
    columns = (
        Column("method", "Method", align="left"),
        Column("judge", "Judge", align="left"),
        Column("win_rate", "Win rate (%)", _COMPARED, percent=True, digits=2),
    )
    return Table(
        "AlpacaEval win rates, with RC against without (published)",
        (_PUBLISHED_NOTE,),
        columns,
        tuple(rows),
        name="alpaca-eval",
    )


def win_rates_of_runs(comparisons: Sequence[Comparison]) -> Table | None:
    """The same from evaluated runs, beside what is published; None where no run was judged."""
    rows = []
    known = {(rate.model, rate.objective): rate for rate in reversed(published.win_rates())}
    for comparison in comparisons:
        for setting in comparison.with_rc:
            if not any(setting.measured(metric) for metric, _ in _METRICS):
                continue
            entries = [Entry(comparison.title_of(setting))]
            for metric, _ in _METRICS:
                said = dict.fromkeys(row.note for row in setting.measured(metric).values() if row.note)
                entries.append(setting.entry(metric, len(setting.results) > 1, tip="; ".join(said)))
            rate = known.get((comparison.model, setting.config.objective.name))
            if rate is None:
                entries.append(Entry("–", tone="absent"))
            else:
                entries.append(Entry(value=rate.rate, tip=f"judge: {rate.judge}"))
            rows.append(Row(model_title(comparison.model), tuple(entries)))
    if not rows:
        return None
    columns = (
        Column("method", "Method", align="left"),
        *(
            Column(metric.partition("/")[2], f"{title} (%)", _COMPARED, percent=True, digits=2, spread=True)
            for metric, title in _METRICS
        ),
        Column("published", "Published (%)", "raw win rate; judge DeepSeek V3.2", percent=True, digits=2),
    )
    notes = ("Share of judged pairs won by the model with RC against the same objective without it.", _PUBLISHED_NOTE)
    return Table("AlpacaEval win rates, with RC against without", notes, columns, tuple(rows), name="alpaca-eval")
