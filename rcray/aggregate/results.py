"""The results table: objective by RC, what held-out pairs say and what the step records say."""

from collections.abc import Iterable, Sequence

from rcray.aggregate.collect import CellResult, likelihood_unit
from rcray.aggregate.groups import MIXED, Comparison, Estimate, Setting, compare, difference, paired_differences
from rcray.aggregate.mixtures import mark
from rcray.aggregate.student import p_entry, paired_test
from rcray.aggregate.tables import Column, Entry, Row, Table, mark_best
from rcray.config.models import table_name
from rcray.records.columns import PATHWAYS

NO_RECORDS = "no records"

_PERCENT = 100.0


def results_table(title: str, results: Sequence[CellResult], comparisons: Sequence[Comparison] | None = None) -> Table:
    """One row per objective and RC, seeds pooled; the best accuracy of each model is marked."""
    comparisons = compare(results) if comparisons is None else comparisons
    several = any(len(setting.results) > 1 for c in comparisons for setting in c.settings)
    columns = _columns(results, several)
    lines = [(c, setting) for c in comparisons for setting in c.settings]
    marked = mark([setting for _, setting in lines], [c.model for c, _ in lines], ["accuracy"])
    rows = [
        _row(c, setting, several, marked.rows.get(i, "") + marked.cells.get((i, "accuracy"), ""))
        for i, (c, setting) in enumerate(lines)
    ]
    if not marked.notes:  # the best of different things would be no best
        rows = mark_best(rows, [[column.key for column in columns].index("accuracy_percent")])
    return Table(
        title=title,
        notes=(*_notes(results, several), *marked.notes),
        columns=columns,
        rows=tuple(rows),
        spread_name="std" if several else "stderr",
    )


def held_out_pairs(results: Iterable[CellResult]) -> list[int]:
    """How many held-out pairs stand behind the metrics; planned numbers where nothing was evaluated."""
    results = list(results)
    measured = {r.metrics["accuracy"].n for r in results if r.ok and "accuracy" in r.metrics}
    return sorted(measured or {r.cell.config.data.eval_pairs for r in results})


def _columns(results: Sequence[CellResult], several: bool) -> tuple[Column, ...]:
    unit = likelihood_unit(results)
    digits = 2 if unit == "nats" else 3
    seeds = Column(
        "seeds", "Seeds", "seeds with a result, of those planned", align="right", digits=0, csv_only=not several
    )
    return (
        Column("objective", "Objective", "preference objective", align="left"),
        Column("rc", "RC", "reward calibration: without (w/o) or with it (w/)", align="left"),
        Column("status", "Status", "outcome of the run", align="left", csv_only=True),
        seeds,
        Column("accuracy_percent", "Accuracy (%)", "held-out pairs whose margin grew against the reference, m~ > 0",
               spread=True),
        Column("accuracy_delta_points", "Δ RC (points)", "accuracy with RC minus accuracy without it",
               r"$\Delta$ RC (points)", sign=True, spread=True),
        Column("drift_w_nats", f"Δz_w ({unit})", "held-out drift of the chosen answers from the reference",
               rf"$\Delta z_w$ ({unit})", digits=digits, sign=True, spread=True),
        Column("drift_l_nats", f"Δz_l ({unit})", "held-out drift of the rejected answers from the reference",
               rf"$\Delta z_l$ ({unit})", digits=digits, sign=True, spread=True),
        Column("margin_nats", f"Margin ({unit})", "held-out margin m~ = z~_w - z~_l, against the reference",
               digits=digits, sign=True, spread=True),
        Column("in_band_percent", "In band (%)", "steps whose incentive ratio lies inside the disentanglement band",
               spread=several, share=True),
        *(
            Column(f"pathway_{name}_percent", f"{name} (%)", f"steps on predicted pathway ({name}): {PATHWAYS[name]}",
                   spread=several, share=True)
            for name in ("i", "ii", "iii")
        ),
        *([Column("p", "p", "two-sided paired t-test over seeds of the accuracy, with RC against without", digits=3)]
          if several else []),
    )  # fmt: skip


def _row(comparison: Comparison, setting: Setting, several: bool, letters: str) -> Row:
    finished, planned = len(setting.finished), len(setting.results)
    head = (
        Entry(comparison.title, mark=letters),
        Entry(setting.rc),
        Entry(setting.word),
        Entry(f"{finished} of {planned}" if finished < planned else str(planned)),
    )
    return Row(table_name(comparison.model), (*head, *_numbers(comparison, setting, several)))


def _numbers(comparison: Comparison, setting: Setting, several: bool) -> list[Entry]:
    def show(estimate: Estimate | None, scale: float, missing: str) -> Entry:
        if setting.word != "ok":
            return Entry(setting.word, tone="status", runs=setting.run_ids)
        if estimate is None:
            return Entry(missing, tone="status", runs=setting.run_ids)
        spread = estimate.shown_spread(several)
        spread = None if spread is None else scale * spread
        return Entry(value=scale * estimate.value, spread=spread, runs=setting.run_ids)

    delta = Entry("–", tone="absent")
    if setting.calibrated:
        without = comparison.without
        if without is not None and without.word == "ok":
            word = setting.problem("accuracy") or without.problem("accuracy") or MIXED
            delta = show(difference(without, setting, "accuracy"), _PERCENT, word)
        elif setting.word != "ok":
            delta = Entry(setting.word, tone="status")
        elif without is not None:
            delta = Entry(f"w/o {without.word}", tone="status")
    entries = [show(setting.metric("accuracy"), _PERCENT, setting.problem("accuracy")), delta]
    entries += [show(setting.metric(name), 1.0, setting.problem(name)) for name in ("drift_w", "drift_l", "margin")]
    entries.append(show(setting.summary(lambda summary: summary.in_band), _PERCENT, NO_RECORDS))
    for name in ("i", "ii", "iii"):
        share = setting.summary(lambda summary, name=name: summary.pathways[name])  # type: ignore[misc]
        entries.append(show(share, _PERCENT, NO_RECORDS))
    if several:
        without = comparison.without
        both = paired_differences(without, setting, "accuracy") if setting.calibrated and without else []
        entries.append(p_entry(paired_test(both)))
    return entries


def _notes(results: Sequence[CellResult], several: bool) -> Iterable[str]:
    configs = [result.cell.config for result in results]
    models = list(dict.fromkeys(config.model.name for config in configs))
    if len(models) == 1:
        yield f"Model: {', '.join(dict.fromkeys(config.model.label for config in configs))}."
    pairs = ", ".join(map(str, held_out_pairs(results)))
    seeds = ", ".join(map(str, sorted({config.train.seed for config in configs})))
    kind = "mean ± sample standard deviation over seeds" if several else "± one standard error over held-out pairs"
    yield f"Held-out pairs: n = {pairs}; seeds: {seeds}; {kind}."
    found = " and ".join(sorted({config.likelihood for config in configs}))
    presets = ", ".join(sorted({config.fidelity for config in configs}))
    yield f"Likelihoods: {found} of token log-probabilities; fidelity preset: {presets}."
    yield (
        "Accuracy: held-out pairs whose margin grew against the reference. Δz_w, Δz_l: drift of held-out chosen and "
        "rejected answers from the reference. Bold: highest accuracy of a model, whether or not the difference exceeds "
        "its error."
    )
    if several:
        yield "p: two-sided paired t-test over seeds of the accuracy, with RC against without."
    else:
        yield "The error of Δ RC adds the two rows' errors as if independent; on the same pairs it is usually smaller."
    pathways = "; ".join(f"({name}) {PATHWAYS[name]}" for name in ("i", "ii", "iii"))
    yield f"Pathways predicted per step: {pathways}. In band and pathways are shares of optimizer steps."
    other = [
        (name, max(r.summary.pathways[name] for r in results if r.ok and r.summary))
        for name in ("reversed", "undefined")
        if any(r.ok and r.summary and r.summary.pathways[name] for r in results)
    ]
    if other:
        most = ", ".join(f"{name} up to {_PERCENT * share:.1f}%" for name, share in other)
        yield f"Steps on no pathway of the three: {most}."
