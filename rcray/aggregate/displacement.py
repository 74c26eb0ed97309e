"""Cures for a falling chosen likelihood beside each other: which ratio each chooses, and whether it is in the band.

Every cure is a choice of the ratio r = d_w / d_l. The band it is held against is that of the update that was made, at
the looks; the one at the head stands beside it as log r*, its centre. A cure is one of the objectives that were made
as one, or a kind of calibration; the table is there where DPO and at least one of them are.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rcray.aggregate import summary
from rcray.aggregate.estimates import Estimate, difference_entry, error_notes
from rcray.aggregate.frame import ACCURACY, DRIFT_L, DRIFT_W, MARGIN, likelihood_unit
from rcray.aggregate.groups import HEADS, MIXED, OVER_SEEDS, Comparison, Setting, difference, has_seeds
from rcray.aggregate.results import drift_columns
from rcray.aggregate.tables import Column, Entry, Row, Table, number
from rcray.config.models import table_name
from rcray.config.objectives import AlphaPo, BalancedPo, BDpo, CalDpo, Dpo, DpoP, DpoShift, Rpo
from rcray.records.columns import PATHWAYS

CURES = (DpoP, DpoShift, CalDpo, Rpo, AlphaPo, BDpo, BalancedPo)
KINDS = {
    "": "alone",
    "published": "published RC",
    "update": "RC by the update",
    "normalised": "normalised gradient",
}


@dataclass(frozen=True)
class Cure:
    """One row: an objective, alone or calibrated."""

    comparison: Comparison
    setting: Setting

    @property
    def kind(self) -> str:
        """The kind of its calibration; empty for none."""
        return self.setting.config.calibration.kind if self.setting.calibrated else ""

    @property
    def title(self) -> str:
        """As sentences and panels name it."""
        return f"{self.comparison.title} + {KINDS[self.kind]}" if self.kind else self.comparison.title

    @property
    def rc(self) -> str:
        """The RC column; the kind of calibration also where no other stands beside it."""
        named = self.setting.rc
        return named if not self.kind or self.kind in self.setting.variant else f"{named} ({self.kind})"

    @property
    def worked(self) -> bool | None:
        """Whether on every finished seed the winner was kept and the loser lowered; None where nothing was measured."""
        drifts = [[row.value for row in self.setting.measured(m).values()] for m in (DRIFT_W, DRIFT_L)]
        if not all(drifts):
            return None
        return min(drifts[0]) >= 0 and max(drifts[1]) < 0


def cures(comparisons: Sequence[Comparison]) -> dict[str, list[Cure]]:
    """DPO and its cures by model; only models that have both."""
    by_model: dict[str, list[Cure]] = {}
    for comparison in comparisons:
        for setting in comparison.settings:
            if isinstance(setting.config.objective, (Dpo, *CURES)):
                by_model.setdefault(comparison.model, []).append(Cure(comparison, setting))
    return {model: rows for model, rows in by_model.items() if _has_both(rows)}


def _has_both(rows: Sequence[Cure]) -> bool:
    objectives = [row.setting.config.objective for row in rows]
    normalised = any(row.kind == "normalised" for row in rows)
    return any(isinstance(o, Dpo) for o in objectives) and (normalised or any(isinstance(o, CURES) for o in objectives))


def displacement_table(comparisons: Sequence[Comparison], unit: str) -> Table | None:
    """The ratios and what came of them; None where there is nothing to compare."""
    by_model = cures(comparisons)
    if not by_model:
        return None
    several = has_seeds(row.setting for rows in by_model.values() for row in rows)
    deltas = {id(row): delta for rows in by_model.values() for row in rows if (delta := _gain(rows, row)) is not None}
    digits = 2 if unit == "nats" else 3
    columns = (
        Column("log_r", "log r", "mean over the steps, of the update that is made", r"$\log r$",
               digits=2, sign=True, spread=several, metric=summary.LOG_R),
        Column("log_r_star", "log r* at the head", "mean centre of the paper's band", r"$\log r^\star$ at the head",
               digits=2, sign=True, spread=several, metric=summary.LOG_R_STAR),
        Column("true_lower", "Band from", "band of the update: below it fresh winners fall; median over the steps",
               digits=2, sign=True, spread=several, metric=summary.TRUE_LOWER),
        Column("true_upper", "to", "band of the update: above it fresh losers rise; median over the steps",
               digits=2, sign=True, spread=several, metric=summary.TRUE_UPPER),
        Column("in_true_band_percent", "In band (%)", "steps whose log r lies in the band of the update",
               percent=True, spread=several, bar=True, metric=summary.IN_TRUE_BAND),
        Column("realised_iii_percent", "Realised iii (%)", f"probe intervals on pathway (iii): {PATHWAYS['iii']}",
               percent=True, spread=several, bar=True, metric=summary.REALISED["iii"]),
        *drift_columns(unit, digits),
        Column("margin_nats", f"Margin ({unit})", "held-out margin against the reference",
               digits=digits, sign=True, spread=True, metric=MARGIN),
        Column("accuracy_percent", "Accuracy (%)", "held-out pairs whose margin grew against the reference",
               percent=True, spread=True, metric=ACCURACY),
    )  # fmt: skip
    gain = Column("accuracy_gain_points", "Δ DPO (points)", "accuracy minus that of DPO alone, pair by pair",
                  r"$\Delta$ DPO (points)", percent=True, sign=True, spread=True)  # fmt: skip
    return Table(
        title="Cures for a falling chosen likelihood: which ratio, and is it in the band",
        notes=(
            "log r is the logarithm of d_w / d_l after calibration. The band is that of the update that was made, seen "
            "by the looks at fresh pairs; each look stands for the steps until the next. Open: no ratio up to e^6 from "
            "the one at hand makes that side turn.",
            *([OVER_SEEDS] if several else []),
            *error_notes("Δ DPO", several, list(deltas.values())),
        ),
        columns=(*HEADS, *columns, gain),
        rows=tuple(
            Row(
                table_name(model),
                (
                    Entry(row.comparison.title),
                    Entry(row.rc),
                    *(row.setting.entry(column.metric, several) for column in columns),
                    _gain_entry(rows, row, several, deltas.get(id(row))),
                ),
            )
            for model, rows in by_model.items()
            for row in rows
        ),
        spread_name="std" if several else "stderr",
        name="displacement",
    )


def _alone(rows: Sequence[Cure]) -> Cure:
    """What all are held against: DPO without calibration, or the first DPO there is."""
    dpo = [row for row in rows if isinstance(row.setting.config.objective, Dpo)]
    return next((row for row in dpo if not row.kind), dpo[0])


def _gain(rows: Sequence[Cure], row: Cure) -> Estimate | None:
    """The accuracy of a cure minus that of DPO alone, on the same pairs and seeds."""
    alone = _alone(rows)
    return None if row is alone else difference(alone.setting, row.setting, ACCURACY)


def _gain_entry(rows: Sequence[Cure], row: Cure, several: bool, gain: Estimate | None) -> Entry:
    alone = _alone(rows)
    if row is alone:
        return Entry("–", tone="absent")
    if gain is None:
        missing = alone.setting.problem(ACCURACY)
        word = row.setting.problem(ACCURACY) or (f"{alone.title} {missing}" if missing else MIXED)
        return Entry(word, tone="status", runs=row.setting.run_ids)
    return difference_entry(gain, several, row.setting.run_ids)


def verdict(comparisons: Sequence[Comparison]) -> Iterator[str]:
    """What the table says, in sentences: who kept the winner and lowered the loser, and at what margin."""
    for model, rows in cures(comparisons).items():
        judged = [row for row in rows if row.worked is not None]
        if not judged:
            continue
        counts = ", ".join(_count(judged, kind) for kind in KINDS if _of(judged, kind))
        yield f"{table_name(model)}: winner kept and loser lowered on every seed {counts}."
        alone = [row for row in judged if not row.kind]
        if not any(row.worked for row in alone):
            yield f"None of the objectives did so by itself: {'; '.join(_drifts(row) for row in alone)}."
        else:
            yield f"By themselves: {'; '.join(_drifts(row) for row in alone if row.worked)}."
        good = [(value.value, row) for row in judged if row.worked and (value := row.setting.metric(MARGIN))]
        units = dict.fromkeys(likelihood_unit([row.setting.config]) for _, row in good)  # no sum is held against a mean
        for unit in units:
            own = [pair for pair in good if likelihood_unit([pair[1].setting.config]) == unit]
            margin, best = max(own, key=lambda pair: pair[0])
            accuracy = best.setting.metric(ACCURACY)
            scored = f", accuracy {accuracy.value:.1%}" if accuracy else ""
            yield (
                f"Of those that did, the largest margin is that of {best.title}: "
                f"{number(margin, 2, sign=True)} {unit}{scored}."
            )
        inside = [(v.value, row) for row in judged if (v := row.setting.metric(summary.IN_TRUE_BAND))]
        if inside:
            share, most = max(inside, key=lambda pair: pair[0])
            yield f"Most steps inside the band of the update: {most.title}, {share:.0%}."


def _of(rows: Sequence[Cure], kind: str) -> list[Cure]:
    return [row for row in rows if row.kind == kind]


def _count(rows: Sequence[Cure], kind: str) -> str:
    own = _of(rows, kind)
    way = f"with {KINDS[kind]}" if kind else "without calibration"
    return f"{way} in {sum(bool(row.worked) for row in own)} of {len(own)}"


def _drifts(row: Cure) -> str:
    drifts = {symbol: row.setting.metric(metric) for symbol, metric in (("z_w", DRIFT_W), ("z_l", DRIFT_L))}
    shown = (f"{symbol} {number(drift.value, 1, sign=True)}" for symbol, drift in drifts.items() if drift)
    return f"{row.title} ({', '.join(shown)})"
