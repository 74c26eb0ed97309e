"""The paper's first figure, the pathways, the band and what RC does, drawn from the numbers of real runs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from rcray.aggregate.figures.plane import pathway_axes, trajectory
from rcray.aggregate.figures.style import BLACK, GREY, SKY, Plot, colour_and_marker, finish, legend_beside, style
from rcray.aggregate.groups import Comparison, Setting

_CAPTION = (
    "The paper's overview from real numbers. Left: where the probe set's likelihoods ended, relative to the start "
    "model at the cross, without RC (open) and with it (filled); an arrow joins the two. Right: each objective's band, "
    "log r* ± log ρ, as medians over its steps with RC, and its incentive ratio log r without and with RC: below the "
    "band both likelihoods fall (ii), above it both rise (i), inside it the loser falls and the winner is kept (iii)."
)
_STRETCH = 5.0  # the plane is stretched near 0 if ends differ in size by more than this


@dataclass(frozen=True)
class Seen:
    """A run in five numbers: its ratio, its band, where its probe set went."""

    log_r: float
    lower: float
    upper: float
    end: tuple[float, float] | None


def draw_schematic(model: str, comparisons: Sequence[Comparison], unit: str) -> Plot | None:
    """Pathways and band of every objective that has runs without and with RC."""
    pairs = {
        comparison.title: (without, with_rc)
        for comparison in comparisons
        if comparison.without and comparison.with_rc
        for without, with_rc in [(_seen(comparison.without), _seen(comparison.with_rc[0]))]
        if without and with_rc
    }
    if not pairs:
        return None
    with style():
        figure = Figure(figsize=(11.2, max(3.8, 0.9 + 0.42 * len(pairs))), layout="constrained")
        left, right = figure.subplots(1, 2)
        _pathways(left, list(pairs.values()), unit)
        _bands(right, pairs)
        handles: list[Artist] = [
            Line2D([], [], color=colour_and_marker(i)[0], marker=colour_and_marker(i)[1], linestyle="none", label=title)
            for i, title in enumerate(pairs)
        ]
        handles += [
            Line2D([], [], color=GREY, marker="o", markerfacecolor="white", linestyle="none", label="open: without RC"),
            Patch(color=SKY, alpha=0.5, label="band"),
        ]
        legend_beside(figure, handles)
        return finish(figure, f"pathways-and-band-{model}", f"Pathways and band on {model}", _CAPTION)


def _pathways(axis: Axes, pairs: Sequence[tuple[Seen, Seen]], unit: str) -> None:
    ends = [(i, a.end, b.end) for i, (a, b) in enumerate(pairs) if a.end is not None and b.end is not None]
    for i, without, with_rc in ends:
        colour, marker = colour_and_marker(i)
        axis.annotate("", with_rc, without, arrowprops={"arrowstyle": "->", "color": colour, "linewidth": 1.0})
        axis.plot(*without, marker=marker, color=colour, markerfacecolor="white", linestyle="none", zorder=3)
        axis.plot(*with_rc, marker=marker, color=colour, linestyle="none", zorder=4)
    axis.plot(0, 0, marker="+", color=BLACK, markersize=11, zorder=5)
    sizes = [max(map(abs, end)) for _, *both in ends for end in both]
    reach = 1.3 * max([1e-6, *sizes])
    linear = min(sizes) if sizes and max(sizes) > _STRETCH * min(sizes) else None
    pathway_axes(axis, (reach, reach), linear, unit)
    for text, x, y in (("(i)", 0.96, 0.96), ("(ii)", 0.04, 0.04), ("(iii)", 0.96, 0.04)):
        axis.text(x, y, text, transform=axis.transAxes, ha="center", va="center", fontweight="bold", color="#444444")
    axis.set_title("Pathways", loc="left")


def _bands(axis: Axes, pairs: dict[str, tuple[Seen, Seen]]) -> None:
    ratios = [value for pair in pairs.values() for seen in pair for value in (seen.log_r, seen.lower, seen.upper)]
    finite = np.array([value for value in ratios if np.isfinite(value)] or [0.0])
    low, high = finite.min() - 0.5, finite.max() + 0.5  # an unbounded edge ends at the frame
    for row, (_, (without, with_rc)) in enumerate(pairs.items()):
        start, end = np.clip(np.nan_to_num([with_rc.lower, with_rc.upper], posinf=high, neginf=low), low, high)
        axis.barh(row, end - start, left=start, height=0.55, color=SKY, alpha=0.5, linewidth=0)
        colour, marker = colour_and_marker(row)
        axis.plot(without.log_r, row, marker=marker, color=colour, markerfacecolor="white", linestyle="none", zorder=4)
        axis.plot(with_rc.log_r, row, marker=marker, color=colour, linestyle="none", zorder=3)
    axis.set_yticks(range(len(pairs)), list(pairs))
    axis.invert_yaxis()
    axis.set_xlim(low, high)
    axis.set_xlabel("log ratio (nats)")
    axis.set_title("Band and incentive ratio", loc="left")


def _seen(setting: Setting) -> Seen | None:
    result = setting.drawn()
    if result is None:
        return None
    records = result.dynamics(("log_r", "band_lower", "band_upper"))
    if not np.isfinite(records["log_r"]).any():
        return None
    log_r = float(np.nanmedian(records["log_r"]))
    lower, upper = (float(np.nanmedian(records[name])) for name in ("band_lower", "band_upper"))
    path = trajectory(result)
    return Seen(log_r, lower, upper, (float(path[-1, 0]), float(path[-1, 1])) if len(path) > 1 else None)
