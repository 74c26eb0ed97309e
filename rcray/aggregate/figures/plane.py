"""The plane of pathways: where the probe set's two likelihoods went, a trajectory per cell."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from rcray.aggregate.collect import CellResult
from rcray.aggregate.figures.style import (
    BLACK,
    DASHED,
    GREY,
    SKY,
    Plot,
    colour_and_marker,
    finish,
    legend_beside,
    style,
)
from rcray.aggregate.groups import Comparison, Setting
from rcray.records.states import State

_SYMLOG = 20.0  # the plane is stretched near 0 if trajectories differ in size by more than this

_CAPTION = (
    "Change of the probe set's mean log-likelihoods since its first measurement, chosen answers against rejected "
    "ones; every trajectory starts at the cross, the start model, and ends at its marker. Dashed and open: without RC; "
    "solid and filled: with RC. The quadrants are the pathways; (iii) is the one aimed at."
)

#: A row of the results table and the probe-set trajectories of its seeds.
PlaneEntry = tuple[Comparison, Setting, list[np.ndarray]]


def draw_plane(comparisons: Sequence[Comparison], unit: str) -> Plot | None:
    """Where the probe set's likelihoods went: a trajectory per cell, a panel per model."""
    by_model: dict[str, list[PlaneEntry]] = {}
    for comparison in comparisons:
        for setting in comparison.settings:
            paths = [path for result in setting.results if len(path := trajectory(result)) > 1]
            if paths:
                by_model.setdefault(comparison.model, []).append((comparison, setting, paths))
    if not by_model:
        return None
    titles = list(dict.fromkeys(comparison.title for comparison in comparisons))
    with style():
        columns = min(len(by_model), 3)
        rows = -(-len(by_model) // columns)
        figure = Figure(figsize=(0.4 + 5.2 * columns, 4.7 * rows), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False).flat
        for axis, (model, entries) in zip(panels, by_model.items(), strict=False):
            _plane_panel(axis, entries, titles, unit)
            if len(by_model) > 1:
                axis.set_title(model)
        for axis in list(panels)[len(by_model) :]:
            axis.set_axis_off()
        shown = [(comparison, setting) for entries in by_model.values() for comparison, setting, _ in entries]
        legend_of_settings(figure, shown, titles)
        return finish(figure, "pathway-plane", "Pathways on the probe set", _CAPTION, wide=len(by_model) > 1)


def _plane_panel(axis: Axes, entries: Sequence[PlaneEntry], titles: Sequence[str], unit: str) -> None:
    extents = []
    for comparison, setting, paths in entries:
        colour, marker = colour_and_marker(titles.index(comparison.title))
        for path in paths:
            w, l = path.T  # noqa: E741  the paper's letter
            extents.append(np.abs(path).max())
            axis.plot(w, l, color=colour, linewidth=1.6, linestyle="-" if setting.calibrated else DASHED, zorder=3)
            axis.plot(w[-1], l[-1], marker=marker, color=colour, markersize=8, zorder=4, linestyle="none",
                      markerfacecolor=colour if setting.calibrated else "white", markeredgewidth=1.5)  # fmt: skip
    axis.plot(0, 0, marker="+", color=BLACK, markersize=10, zorder=5)
    reach = 1.25 * np.max([np.abs(path).max(axis=0) for _, _, paths in entries for path in paths], axis=0)
    linear = min(extents) if max(extents) > _SYMLOG * min(extents) else None
    pathway_axes(axis, np.maximum(reach, 1e-6), linear, unit)
    corners = (("reversed: winner falls, loser rises", 0.02, 0.98), ("(i) both rise", 0.98, 0.98),
               ("(ii) both fall", 0.02, 0.02), ("(iii) winner kept, loser falls", 0.98, 0.02))  # fmt: skip
    for text, x, y in corners:
        axis.text(x, y, text, transform=axis.transAxes, ha="left" if x < 0.5 else "right", fontsize=9,
                  va="bottom" if y < 0.5 else "top", color="#444444",
                  fontweight="bold" if text.startswith("(iii)") else "normal")  # fmt: skip


def pathway_axes(axis: Axes, reach: Sequence[float] | np.ndarray, linear: float | None, unit: str) -> None:
    """Axes of both likelihoods' changes up to `reach`, pathway (iii) shaded; logarithmic beyond `linear`, if given."""
    for which, limit in zip("xy", reach, strict=True):
        if linear is not None:
            getattr(axis, f"set_{which}scale")("symlog", linthresh=max(linear, 1e-3))
        getattr(axis, f"set_{which}lim")(-limit, limit)
    axis.axhline(0, color=GREY, linewidth=0.9)
    axis.axvline(0, color=GREY, linewidth=0.9)
    axis.axvspan(0, 1e12, ymin=0, ymax=0.5, color=SKY, alpha=0.16, linewidth=0)
    scale = "" if linear is None else ", symlog scale"
    axis.set_xlabel(f"Δ$z_w$, chosen ({unit}{scale})")
    axis.set_ylabel(f"Δ$z_l$, rejected ({unit}{scale})")


def legend_of_settings(figure: Figure, shown: Sequence[tuple[Comparison, Setting]], titles: Sequence[str]) -> None:
    """Beside the figure: colour and marker by objective, open and dashed without RC."""
    handles: dict[str, Line2D] = {}
    for comparison, setting in shown:
        colour, marker = colour_and_marker(titles.index(comparison.title))
        style: Any = "-" if setting.calibrated else DASHED
        unfinished = "" if setting.word == State.OK else f" ({setting.word})"
        label = f"{comparison.title} {'w/' if setting.calibrated else 'w/o'} RC{unfinished}"
        handles[label] = Line2D([], [], color=colour, linestyle=style, marker=marker, linewidth=1.6, label=label,
                                markerfacecolor=colour if setting.calibrated else "white")  # fmt: skip
    legend_beside(figure, list(handles.values()))


def trajectory(result: CellResult) -> np.ndarray:
    """Points (change of z_w, change of z_l) on the probe set, one row per measurement."""
    if not result.recorded:
        return np.empty((0, 2))
    records = result.dynamics(["probe_z_w", "probe_z_l"])
    points = np.column_stack([records["probe_z_w"], records["probe_z_l"]])
    points = points[np.isfinite(points).all(axis=1)]
    return points - points[0] if len(points) else points
