"""Tables of how far every cell moved, where the probability went, and what was gained for the distance."""

from collections.abc import Sequence

import numpy as np

from rcray.aggregate import movement
from rcray.aggregate.frame import ACCURACY, RANKING, RANKING_PER_TOKEN
from rcray.aggregate.groups import Comparison, Setting, settings_table
from rcray.aggregate.movement import TurningPoint, movement_path, turning_point
from rcray.aggregate.tables import Column, Entry, Table


def movement_table(comparisons: Sequence[Comparison]) -> Table | None:
    """KL, entropy and likelihoods per token at the end of training against its start; None where nobody measured."""
    if not _was_measured(comparisons):
        return None

    def change(column: str, title: str, help: str) -> Column:
        metric = movement.CHANGES[column]
        return Column(metric.rpartition("/")[2], title, help, metric=metric, digits=3, sign=True)

    columns = (
        Column("kl", "KL (nats/token)", "KL to the start model on the probe's chosen answers",
               metric=movement.KL, digits=4),
        change("probe_entropy", "Δ entropy (nats/token)", "change of the next token's entropy in the same places"),
        change("probe_logp_w", "Δ chosen (nats/token)", "change of the chosen answers' log-probability"),
        change("probe_logp_greedy", "Δ greedy (nats/token)", "change of the likeliest token's log-probability there"),
        change("probe_logp_other", "Δ other's (nats/token)", "change of another prompt's chosen answer"),
        change("probe_logp_shuffled", "Δ shuffled (nats/token)", "change of the chosen answer with its words shuffled"),
    )  # fmt: skip
    note = (
        "Probe set, last measurement against the first, per token. The likeliest token rising while the chosen answer "
        "falls is squeezing: mass goes to what the model says anyway. Another prompt's answer or shuffled words rising "
        "with the chosen answer: mass goes to no better text."
    )
    title = "How far it moved, and where the probability went"
    return settings_table("movement", title, note, comparisons, columns)


def frontier_table(comparisons: Sequence[Comparison]) -> Table | None:
    """What every cell gained for its distance, and where that turned; None where nobody measured."""
    if not _was_measured(comparisons):
        return None
    results = [result for c in comparisons for setting in c.settings for result in setting.finished]
    ranked = {
        key: (title, help)
        for key, title, help in (
            (RANKING, "Ranking (%)", "held-out pairs whose chosen answer is the likelier one, z_w > z_l"),
            (RANKING_PER_TOKEN, "Ranking per token (%)", "the same of the means over tokens, z_w/n_w > z_l/n_l"),
        )
        if any(key in result.metrics for result in results)
    }
    columns = (
        Column("root_kl", "√KL", "root of the KL to the start model per token, at the end",
               metric=movement.ROOT_KL, digits=3),
        Column("accuracy_percent", "Accuracy (%)", "held-out pairs whose margin grew against the reference",
               metric=ACCURACY, percent=True, spread=True),
        *(
            Column(f"{key.partition('/')[2]}_percent", title, help, metric=key, percent=True, spread=True)
            for key, (title, help) in ranked.items()
        ),
        Column("probe_accuracy_end_percent", "Probe, end (%)", "the same of the probe set, at the end",
               metric=movement.GREW_END, percent=True),
        Column("probe_accuracy_best_percent", "Probe, best (%)", "at the probe where it was highest",
               metric=movement.GREW_BEST, percent=True),
        Column("root_kl_at_best", "√KL at best", "where the best was first reached",
               metric=movement.ROOT_KL_AT_BEST, digits=3),
        Column("turning_point", "Turns at √KL", "where the fitted gain is largest", digits=3),
    )  # fmt: skip
    note = (
        "Share of pairs whose margin grew, against the root of the KL to the start model. The turning "
        "point is that of the fit gain = d (a − b log d) over the probes of all seeds: it needs six of them, "
        "half of the spread explained, and a maximum between the points."
    )
    title = "What was gained for the distance"
    return settings_table("frontier", title, note, comparisons, columns, _turning_point)


def _was_measured(comparisons: Sequence[Comparison]) -> bool:
    return any(movement.KL in r.metrics for c in comparisons for setting in c.settings for r in setting.finished)


def _turning_point(setting: Setting, column: Column) -> Entry | None:
    """The one column that is no metric."""
    if column.metric:
        return None
    turn = turn_of(setting)
    if isinstance(turn, TurningPoint):
        return Entry(value=turn.at, runs=setting.run_ids)
    return Entry(turn, tone="absent")


def turn_of(setting: Setting) -> TurningPoint | str:
    """The turning point of a setting, over the probes of all its seeds."""
    paths = [path for result in setting.finished if len((path := movement_path(result.run)).distance)]
    if not paths:
        return "not measured"
    distance = np.concatenate([path.distance for path in paths])
    return turning_point(distance, np.concatenate([path.grew - path.grew[0] for path in paths]))
