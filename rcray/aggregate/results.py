"""The results table: objective by RC, what held-out pairs say and what the step records say."""

from collections.abc import Iterable, Sequence

from rcray.aggregate.collect import CellResult, by_looks
from rcray.aggregate.estimates import Estimate, difference_entry, error_notes, p_entry
from rcray.aggregate.frame import (
    ACCURACY,
    DRIFT_L,
    DRIFT_W,
    MARGIN,
    RANKING,
    RANKING_PER_TOKEN,
    likelihood_unit,
    scores_at,
)
from rcray.aggregate.groups import MIXED, Comparison, Setting, compare, difference, has_seeds, paired_differences
from rcray.aggregate.mixtures import mark
from rcray.aggregate.summary import PREDICTED, REALISED
from rcray.aggregate.tables import Column, Entry, Row, Table, mark_best
from rcray.config.models import table_name
from rcray.records.columns import IN_BAND, PATHWAYS
from rcray.records.states import State

_DELTA, _P = "accuracy_delta_points", "p"


def results_table(title: str, results: Sequence[CellResult], comparisons: Sequence[Comparison] | None = None) -> Table:
    """One row per objective and RC, seeds pooled; the best accuracy of each model is marked."""
    comparisons = compare(results) if comparisons is None else comparisons
    lines = [(c, setting) for c in comparisons for setting in c.settings]
    several = has_seeds(setting for _, setting in lines)
    deltas = {i: delta for i, (c, setting) in enumerate(lines) if (delta := _difference(c, setting)) is not None}
    columns = _columns(results, several, any(delta.paired for delta in deltas.values()))
    marked = mark([setting for _, setting in lines], [c.model for c, _ in lines], [ACCURACY])
    rows = [
        _row(c, setting, columns, several, marked.rows.get(i, "") + marked.cells.get((i, ACCURACY), ""), deltas.get(i))
        for i, (c, setting) in enumerate(lines)
    ]
    if not marked.notes:  # the best of different things would be no best
        rows = mark_best(rows, [[column.metric for column in columns].index(ACCURACY)])
    return Table(
        title=title,
        notes=(*_notes(results, several, list(deltas.values())), *marked.notes),
        columns=columns,
        rows=tuple(rows),
        spread_name="std" if several else "stderr",
    )


def held_out_pairs(results: Iterable[CellResult]) -> list[int]:
    """How many held-out pairs stand behind the metrics; planned numbers where nothing was evaluated."""
    results = list(results)
    measured = {r.metrics[ACCURACY].n for r in results if r.ok and ACCURACY in r.metrics}
    return sorted(measured or {r.cell.config.data.eval_pairs for r in results})


def drift_columns(unit: str, digits: int) -> tuple[Column, Column]:
    """How far both held-out likelihoods went."""
    return (
        Column("drift_w_nats", f"Δz_w ({unit})", "held-out drift of the chosen answers from the reference",
               rf"$\Delta z_w$ ({unit})", metric=DRIFT_W, digits=digits, sign=True, spread=True),
        Column("drift_l_nats", f"Δz_l ({unit})", "held-out drift of the rejected answers from the reference",
               rf"$\Delta z_l$ ({unit})", metric=DRIFT_L, digits=digits, sign=True, spread=True),
    )  # fmt: skip


def _difference(comparison: Comparison, setting: Setting) -> Estimate | None:
    if comparison.without is None or not setting.calibrated:
        return None
    return difference(comparison.without, setting, ACCURACY)


def _columns(results: Sequence[CellResult], several: bool, paired: bool) -> tuple[Column, ...]:
    ranked = {key: any(key in result.metrics for result in results) for key in (RANKING, RANKING_PER_TOKEN)}
    unit = likelihood_unit(result.cell.config for result in results)
    place = scores_at(result.cell.config for result in results)
    digits = 2 if unit == "nats" else 3
    return (
        Column("objective", "Objective", "preference objective", align="left"),
        Column("rc", "RC", "reward calibration: without (w/o) or with it (w/)", align="left"),
        Column("status", "Status", "outcome of the run", align="left", csv_only=True),
        Column("seeds", "Seeds", "seeds with a result, of those planned", digits=0, csv_only=not several),
        Column("accuracy_percent", "Accuracy (%)", "held-out pairs whose margin grew against the reference, m~ > 0",
               metric=ACCURACY, percent=True, spread=True),
        Column(_DELTA, "Δ RC (points)", "accuracy with RC minus accuracy without it",
               r"$\Delta$ RC (points)", percent=True, sign=True, spread=True),
        *drift_columns(unit, digits),
        Column("margin_nats", f"Margin ({unit})", "held-out margin m~ = z~_w - z~_l, against the reference",
               metric=MARGIN, digits=digits, sign=True, spread=True),
        Column("in_band_percent", f"In band, {place} (%)", f"steps inside the paper's band at the {place}",
               metric=IN_BAND, percent=True, spread=several, bar=True),
        *(
            Column(f"pathway_{name}_percent", f"{name} (%)", f"intervals predicted on ({name}): {PATHWAYS[name]}",
                   metric=PREDICTED[name], percent=True, spread=several, bar=True)
            for name in ("i", "ii", "iii")
        ),
        Column("realised_iii_percent", "Realised iii (%)", "intervals of the probe set on pathway (iii)",
               metric=REALISED["iii"], percent=True, spread=several, bar=True),
        *(
            Column(f"{key.partition('/')[2]}_percent", f"Ranking{how} (%)", f"held-out pairs with {what}",
                   metric=key, percent=True, spread=True, csv_only=True)
            for key, how, what in ((RANKING, "", "z_w > z_l"), (RANKING_PER_TOKEN, " per token", "z_w/n_w > z_l/n_l"))
            if ranked[key]
        ),
        *([Column(_P, "p", "two-sided paired t-test over seeds of the accuracy, with RC against without", digits=3)]
          if several else []),
        *([Column(_P, "p", "McNemar's exact test of the accuracy, with RC against without", digits=3, csv_only=True)]
          if paired and not several else []),
    )  # fmt: skip


def _row(
    comparison: Comparison,
    setting: Setting,
    columns: Sequence[Column],
    several: bool,
    letters: str,
    delta: Estimate | None,
) -> Row:
    without = comparison.without if setting.calibrated else None
    entries = {
        "objective": Entry(comparison.title, mark=letters),
        "rc": Entry(setting.rc),
        "status": Entry(setting.word),
        "seeds": Entry(setting.seeds),
        _DELTA: _delta(without, setting, several, delta),
        _P: _p(without, setting, several, delta),
    }
    shown = (setting.entry(column.metric, several) if column.metric else entries[column.key] for column in columns)
    return Row(table_name(comparison.model), tuple(shown))


def _delta(without: Setting | None, setting: Setting, several: bool, delta: Estimate | None) -> Entry:
    if setting.calibrated and setting.word != State.OK:
        return Entry(setting.word, tone="status", runs=setting.run_ids)
    if without is None:
        return Entry("–", tone="absent")
    if without.word != State.OK:
        return Entry(f"w/o {without.word}", tone="status")
    if delta is None:
        word = setting.problem(ACCURACY) or without.problem(ACCURACY) or MIXED
        return Entry(word, tone="status", runs=setting.run_ids)
    return difference_entry(delta, several, setting.run_ids)


def _p(without: Setting | None, setting: Setting, several: bool, delta: Estimate | None) -> Entry:
    if several:
        return p_entry(paired_differences(without, setting, ACCURACY))
    return Entry("–", tone="absent") if delta is None or delta.p is None else Entry(value=delta.p)


def _notes(results: Sequence[CellResult], several: bool, deltas: Sequence[Estimate]) -> Iterable[str]:
    configs = [result.cell.config for result in results]
    models = list(dict.fromkeys(config.model.name for config in configs))
    if len(models) == 1:
        yield f"Model: {', '.join(dict.fromkeys(config.model.label for config in configs))}."
    pairs = ", ".join(map(str, held_out_pairs(results)))
    seeds = ", ".join(map(str, sorted({config.train.seed for config in configs})))
    kind = "mean ± sample standard deviation over seeds" if several else "± one standard error over held-out pairs"
    yield f"Held-out pairs: n = {pairs}; seeds: {seeds}; {kind}."
    likelihoods = " and ".join(sorted({config.likelihood for config in configs}))
    presets = ", ".join(sorted({config.fidelity for config in configs}))
    yield f"Likelihoods: {likelihoods} of token log-probabilities; fidelity preset: {presets}."
    yield (
        "Accuracy: held-out pairs whose margin grew against the reference. Δz_w, Δz_l: drift of held-out chosen and "
        "rejected answers from the reference. Bold: highest accuracy of a model, whether or not the difference exceeds "
        "its error."
    )
    if several:
        yield "p: two-sided paired t-test over seeds of the accuracy, with RC against without."
    yield from error_notes("Δ RC", several, deltas)
    finished = [result for result in results if result.ok and result.recorded]
    pathways = "; ".join(f"({name}) {PATHWAYS[name]}" for name in ("i", "ii", "iii"))
    at_head = f"by the paper's band at the {scores_at(configs)}"
    predicted = by_looks(results, "for fresh pairs by the updates made", at_head)
    yield (
        f"Pathways: {pathways}; predicted {predicted}, realised on the probe set, in shares of intervals. In "
        f"band: shares of steps, {at_head}."
    )
    shares = {name: [r.value(PREDICTED[name]) for r in finished] for name in ("reversed", "undefined")}
    other = {name: max((v for v in values if v == v), default=0) for name, values in shares.items()}  # no NaN
    if most := ", ".join(f"{name} up to {share:.1%}" for name, share in other.items() if share):
        yield f"Intervals predicted on no pathway of the three: {most}."
