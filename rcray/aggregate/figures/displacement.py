"""Every cure in a panel of its own: its ratio over the steps against the band of the update that was made."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rcray.aggregate.displacement import Cure
from rcray.aggregate.figures.style import GREEN, VERMILLION, Plot, finish, nothing, running_median, style
from rcray.aggregate.summary import IN_TRUE_BAND, RATIO_COLUMNS

_ACROSS = 5  # panels of a line
_CAPTION = (
    "log r of the updates (red; thin: each step, bold: running median) and the band of the update that was made "
    "(green), as looks at fresh pairs see it: below it their winners fall, above it their losers rise. The first seed "
    "of each; the share in a title is that of its steps inside."
)


def draw_displacement(model: str, rows: Sequence[Cure]) -> Plot | None:
    """The ratio of every cure against the true band; None where nothing was recorded."""
    drawn = [(row, result) for row in rows if (result := row.setting.drawn()) is not None]
    if not drawn:
        return None
    records = [result.dynamics(("step", *RATIO_COLUMNS)) for _, result in drawn]
    low, high = _limits(records)
    lines = -(-len(drawn) // _ACROSS)
    with style():
        figure = Figure(figsize=(2.7 * _ACROSS, 1.9 * lines), layout="constrained")
        axes = figure.subplots(lines, _ACROSS, squeeze=False, sharex=True, sharey=True).ravel()
        for axis, (row, result), own in zip(axes, drawn, records, strict=False):
            title = f"{_short(row)}\n{result.value(IN_TRUE_BAND):.0%} inside"
            _panel(axis, own, title, low, high)
        for axis in axes[len(drawn) :]:
            axis.set_axis_off()
        for axis in axes[::_ACROSS]:
            axis.set_ylabel(r"$\log\,r$ (nats)")
        figure.supxlabel("optimizer step", fontsize=9.5)
        return finish(figure, f"displacement-{model}", f"Which ratio each cure chooses on {model}", _CAPTION)


def _panel(axis: Axes, records: dict[str, np.ndarray], title: str, low: float, high: float) -> None:
    steps, ratio = records["step"], records["log_r"]
    if not np.isfinite(ratio).any():
        nothing(axis, title, "no finite ratio")
        return
    axis.set_title(title, loc="left", fontsize=8.5)
    seen = ~(np.isnan(records["true_band_lower"]) | np.isnan(records["true_band_upper"]))
    lower, upper = (np.clip(running_median(records[f"true_band_{end}"][seen]), low, high) for end in ("lower", "upper"))
    axis.fill_between(steps[seen], lower, upper, where=lower < upper, color=GREEN, alpha=0.3, linewidth=0)
    axis.plot(steps, ratio, color=VERMILLION, linewidth=0.5, alpha=0.35)
    axis.plot(steps, running_median(ratio), color=VERMILLION, linewidth=1.6)
    axis.set_ylim(low, high)


def _limits(records: Sequence[dict[str, np.ndarray]]) -> tuple[float, float]:
    """Room for every ratio, and for the edges that lie among them."""
    ratios = np.concatenate([running_median(own["log_r"]) for own in records])
    edges = np.concatenate([own[f"true_band_{end}"] for own in records for end in ("lower", "upper")])
    ratios, edges = ratios[np.isfinite(ratios)], edges[np.isfinite(edges)]
    if not len(ratios):
        return -1.0, 1.0
    ends = [ratios.min(), ratios.max(), *(np.quantile(edges, (0.1, 0.9)) if len(edges) else ())]
    return float(min(ends)) - 0.2, float(max(ends)) + 0.2


def _short(row: Cure) -> str:
    """A panel's title has little room."""
    kinds = {"": "", "published": " + RC (published)", "update": " + RC (update)", "normalised": ", normalised"}
    return f"{row.comparison.title}{kinds[row.kind]}"
