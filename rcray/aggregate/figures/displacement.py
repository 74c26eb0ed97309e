"""Every cure in a panel of its own: its ratio over the steps against the band of the update that was made."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rcray.aggregate.displacement import KINDS, Cure
from rcray.aggregate.figures.panels import looked_at
from rcray.aggregate.figures.style import GREEN, VERMILLION, Plot, finish, nothing, running_median, style
from rcray.aggregate.summary import IN_TRUE_BAND, RATIO_COLUMNS

_CAPTION = (
    "log r of the updates (red; thin: each step, bold: running median) and the band of the update that was made "
    "(green), as looks at fresh pairs see it: below it their winners fall, above it their losers rise. A line for each "
    "objective, its first seed; the share is that of the steps inside."
)


def draw_displacement(model: str, rows: Sequence[Cure]) -> Plot | None:
    """The ratio of every cure against the true band; None where nothing was recorded."""
    drawn = {(row.comparison.title, row.kind): result for row in rows if (result := row.setting.drawn()) is not None}
    if not drawn:
        return None
    records = {place: result.dynamics(("step", *RATIO_COLUMNS)) for place, result in drawn.items()}
    low, high = _limits(list(records.values()))
    titles = list(dict.fromkeys(title for title, _ in drawn))
    kinds = [kind for kind in KINDS if any(kind == own for _, own in drawn)]
    with style():
        figure = Figure(figsize=(3.1 * len(kinds), 1.5 * len(titles) + 0.4), layout="constrained")
        axes = figure.subplots(len(titles), len(kinds), squeeze=False, sharex=True, sharey=True)
        for i, title in enumerate(titles):
            for axis, kind in zip(axes[i], kinds, strict=True):
                if (title, kind) not in drawn:
                    axis.set_axis_off()
                    continue
                _panel(axis, records[title, kind], f"{title}, {KINDS[kind]}", low, high)
                if IN_TRUE_BAND in drawn[title, kind].metrics:
                    inside = f"{drawn[title, kind].value(IN_TRUE_BAND):.0%} inside"
                    axis.text(0.98, 0.04, inside, transform=axis.transAxes, ha="right", va="bottom", fontsize=8.5)
            axes[i, 0].set_ylabel(r"$\log\,r$")
        figure.supxlabel("optimizer step", fontsize=9.5)
        return finish(figure, f"displacement-{model}", f"Which ratio each cure chooses on {model}", _CAPTION)


def _panel(axis: Axes, records: dict[str, np.ndarray], title: str, low: float, high: float) -> None:
    steps, ratio = records["step"], records["log_r"]
    if not np.isfinite(ratio).any():
        nothing(axis, title, "no finite ratio")
        return
    axis.set_title(title, loc="left", fontsize=8)
    looks, lower, upper = looked_at(records, (low, high))
    axis.fill_between(looks, lower, upper, where=lower < upper, color=GREEN, alpha=0.3, linewidth=0)
    axis.plot(steps, ratio, color=VERMILLION, linewidth=0.5, alpha=0.35)
    axis.plot(steps, running_median(ratio), color=VERMILLION, linewidth=1.6)
    axis.set_ylim(low, high)


def _limits(records: Sequence[dict[str, np.ndarray]]) -> tuple[float, float]:
    """Room for the ratios but for single steps, and for the edges that lie among them."""
    ratios = np.concatenate([running_median(own["log_r"]) for own in records])
    edges = np.concatenate([own[f"true_band_{end}"] for own in records for end in ("lower", "upper")])
    ratios, edges = ratios[np.isfinite(ratios)], edges[np.isfinite(edges)]
    if not len(ratios):
        return -1.0, 1.0
    ends = [*np.quantile(ratios, (0.02, 0.98)), *(np.quantile(edges, (0.25, 0.75)) if len(edges) else ())]
    return float(min(ends)) - 0.2, float(max(ends)) + 0.2
