"""Figures: four panels of dynamics per model and objective, and the plane of pathways.

Object-oriented matplotlib only (no pyplot, no global figure), matplotlib's own defaults whatever the user's settings
are, and bytes that depend on the data alone. Without RC is dashed, with RC solid, everywhere; colours are Okabe and
Ito's, and every distinction is also one of line style or marker, for colour-blind and greyscale readers.
"""

import contextlib
import io
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from rcray.aggregate.collect import CellResult
from rcray.aggregate.groups import Comparison, Setting

BLACK, GREY = "#000000", "#6b6b6b"
BLUE, SKY, VERMILLION, ORANGE, GREEN, PURPLE = "#0072B2", "#56B4E9", "#D55E00", "#E69F00", "#009E73", "#CC79A7"
_CYCLE = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, BLACK)
_MARKERS = "osD^vPX*<>"
_DASHED: Any = (0, (4, 2))

_DPI = 150
_DRAWN_POINTS = 2000  # per curve: more only makes the SVG heavy
_OWN_SCALE = 3.0  # the two band panels share an axis unless one spans this many times the other
_SYMLOG = 20.0  # the plane is stretched near 0 if trajectories differ in size by more than this

_STYLE: dict[Any, Any] = {
    "figure.constrained_layout.w_pad": 0.1,
    "svg.hashsalt": "rcray",
    "svg.fonttype": "path",
    "font.size": 9.5,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "legend.handlelength": 2.4,
}


#: A row of the results table and the probe-set trajectories of its seeds.
PlaneEntry = tuple[Comparison, Setting, list[np.ndarray]]


@dataclass(frozen=True)
class Plot:
    """A drawn figure: its file name without suffix, and what to say below it."""

    name: str
    title: str
    caption: str
    svg: bytes
    png: bytes
    wide: bool = True  # takes the whole width of a page


def draw_all(comparisons: Sequence[Comparison], unit: str) -> list[Plot]:
    """Every figure that the records allow; none for cells without records. `unit` is that of likelihoods."""
    plots = [] if (plane := draw_plane(comparisons, unit)) is None else [plane]
    for comparison in comparisons:
        for with_rc in comparison.with_rc or (None,):
            without = comparison.without.drawn() if comparison.without else None
            drawn = draw_dynamics(comparison, without, with_rc.drawn() if with_rc else None, with_rc, unit)
            if drawn is not None:
                plots.append(drawn)
    return plots


def draw_dynamics(
    comparison: Comparison, without: CellResult | None, with_rc: CellResult | None, setting: Setting | None, unit: str
) -> Plot | None:
    """Four panels as in the paper: band without RC, band with RC, likelihoods, margin."""
    if without is None and with_rc is None:
        return None
    variant = f" ({setting.variant})" if setting and setting.variant else ""
    title = f"{comparison.title}{variant} on {comparison.model}"
    with _style():
        figure = Figure(figsize=(13.6, 3.7), layout="constrained")
        axes = figure.subplots(1, 4)
        limits = _shared_limits([_band_limits(without), _band_limits(with_rc)])
        _band_panel(axes[0], without, "Band without RC", limits[0])
        _band_panel(axes[1], with_rc, "Band with RC", limits[1])
        _likelihood_panel(axes[2], without, with_rc, unit)
        _margin_panel(axes[3], without, with_rc, unit)
        last = max(result.summary.steps for result in (without, with_rc) if result and result.summary)
        for axis in axes:
            axis.set_xlabel("optimizer step")
            axis.set_xlim(-0.03 * last, 1.03 * last)
        svg, png = _save(figure)
    seeds = sorted({result.seed for result in (without, with_rc) if result is not None})
    caption = (
        "Shaded: the disentanglement band, log r* ± |log ρ|, inside which the update raises the winner and lowers the "
        "loser; where ρ ≤ 0 it is unbounded and drawn to the edge. Log r is the incentive ratio of the update made. "
        "Faint: every step; bold: running median. Likelihoods are changes on the fixed probe set since its first "
        "measurement, before training; the margin z_w − z_l is that of the same pairs. "
        f"Training seed {', '.join(map(str, seeds))}."
    )
    return Plot(_slug(f"dynamics-{comparison.model}-{comparison.title}{variant}"), title, caption, svg, png)


def draw_plane(comparisons: Sequence[Comparison], unit: str) -> Plot | None:
    """Where the probe set's likelihoods went: a trajectory per cell, a panel per model."""
    by_model: dict[str, list[PlaneEntry]] = {}
    for comparison in comparisons:
        for setting in comparison.settings:
            paths = [path for result in setting.results if len(path := _trajectory(result)) > 1]
            if paths:
                by_model.setdefault(comparison.model, []).append((comparison, setting, paths))
    if not by_model:
        return None
    titles = list(dict.fromkeys(comparison.title for comparison in comparisons))
    with _style():
        columns = min(len(by_model), 3)
        rows = -(-len(by_model) // columns)
        figure = Figure(figsize=(2.2 + 5.2 * columns, 4.7 * rows), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False).flat
        for axis, (model, entries) in zip(panels, by_model.items(), strict=False):
            _plane_panel(axis, entries, titles, unit)
            if len(by_model) > 1:
                axis.set_title(model)
        for axis in list(panels)[len(by_model) :]:
            axis.set_axis_off()
        _plane_legend(figure, [entry for entries in by_model.values() for entry in entries], titles)
        svg, png = _save(figure)
    caption = (
        "Change of the probe set's mean log-likelihoods since its first measurement, chosen answers against rejected "
        "ones; every trajectory starts at the cross and ends at its marker. Dashed and open: without RC; solid and "
        "filled: with RC. The quadrants are the pathways; (iii) is the one aimed at."
    )
    return Plot("pathway-plane", "Pathways on the probe set", caption, svg, png, wide=len(by_model) > 1)


def running_median(values: np.ndarray) -> np.ndarray:
    """Median over a window of about a twentieth of the run, at least 5 steps; NaN is left out."""
    window = max(5, len(values) // 20) | 1
    if len(values) < window:
        return values
    padded = np.pad(values.astype(float), window // 2, constant_values=np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # windows without one number stay NaN
        return np.nanmedian(np.lib.stride_tricks.sliding_window_view(padded, window), axis=-1)


def _band_panel(axis: Axes, result: CellResult | None, title: str, limits: tuple[float, float] | None) -> None:
    axis.set_ylabel("log ratio (nats)")
    if result is None or result.summary is None or limits is None:
        _nothing(axis, title, "no records" if result is None else "no finite ratio recorded")
        return
    records = result.dynamics(
        ["step", "log_r", "log_r_base", "log_r_star", "band_lower", "band_upper"]
    )  # fmt: skip
    low, high = limits
    steps = records["step"]
    lower, upper = (np.clip(running_median(records[name]), low, high) for name in ("band_lower", "band_upper"))
    every = _thin(steps)
    axis.fill_between(steps[every], lower[every], upper[every], color=SKY, alpha=0.28, linewidth=0, label="band")
    for edge in (lower, upper):
        inside = np.where((edge > low) & (edge < high), edge, np.nan)
        axis.plot(steps[every], inside[every], color=SKY, linewidth=0.9)
    axis.plot(steps[every], running_median(records["log_r_star"])[every], color=BLACK, linewidth=1.0,
              linestyle=_DASHED, label=r"centre $\log\,r^\star$")  # fmt: skip
    if result.cell.config.calibration.enabled:
        axis.plot(steps[every], running_median(records["log_r_base"])[every], color=GREY, linewidth=1.1,
                  linestyle=":", label=r"$\log\,r$ before RC")  # fmt: skip
    axis.plot(steps[every], records["log_r"][every], color=VERMILLION, linewidth=0.6, alpha=0.35)
    axis.plot(
        steps[every], running_median(records["log_r"])[every], color=VERMILLION, linewidth=1.8, label=r"$\log\,r$"
    )
    axis.set_ylim(low, high)
    axis.set_title(f"{title}: {100 * result.summary.in_band:.0f}% of steps inside", loc="left")
    if not result.ok:
        stopped = f"{result.status}, {result.summary.steps} steps recorded"
        axis.text(0.98, 0.98, stopped, transform=axis.transAxes, ha="right", va="top", style="italic")
    _legend(axis)


def _likelihood_panel(axis: Axes, without: CellResult | None, with_rc: CellResult | None, unit: str) -> None:
    axis.set_title("Likelihood change, probe set", loc="left")
    axis.set_ylabel(f"change since first probe ({unit})")
    axis.axhline(0, color=GREY, linewidth=0.8)
    drawn = 0
    for result, style, suffix in ((without, _DASHED, "w/o RC"), (with_rc, "-", "w/ RC")):
        if result is None:
            continue
        records = result.dynamics(["step", "probe_z_w", "probe_z_l"])
        curves = (("probe_z_w", BLUE, "o", "$z_w$"), ("probe_z_l", VERMILLION, "s", "$z_l$"))
        for name, colour, marker, label in curves:
            kept = np.isfinite(records[name])
            steps, values = records["step"][kept], records[name][kept]
            if len(values) == 0:
                continue
            drawn += 1
            filled = colour if suffix == "w/ RC" else "white"
            axis.plot(steps, values - values[0], color=colour, linestyle=style, linewidth=1.6, marker=marker,
                      markersize=3.6, markevery=max(1, len(steps) // 8), markerfacecolor=filled,
                      label=f"{label} {suffix}")  # fmt: skip
    if drawn:
        _legend(axis)
    else:
        _nothing(axis, "Likelihood change, probe set", "the probe set was not measured")


def _margin_panel(axis: Axes, without: CellResult | None, with_rc: CellResult | None, unit: str) -> None:
    axis.set_title("Margin $z_w - z_l$, probe set", loc="left")
    axis.set_ylabel(f"margin ({unit})")
    for result, style, colour, marker, label in (
        (without, _DASHED, GREY, "o", "w/o RC"),
        (with_rc, "-", GREEN, "s", "w/ RC"),
    ):
        if result is None:
            continue
        records = result.dynamics(["step", "probe_z_w", "probe_z_l"])
        margin = records["probe_z_w"] - records["probe_z_l"]
        seen = np.isfinite(margin)
        axis.plot(records["step"][seen], margin[seen], color=colour, linestyle=style, marker=marker, markersize=4,
                  markevery=max(1, int(seen.sum()) // 10), linewidth=1.8, label=label)  # fmt: skip
    _legend(axis)


def _plane_panel(axis: Axes, entries: Sequence[PlaneEntry], titles: Sequence[str], unit: str) -> None:
    extents = []
    for comparison, setting, paths in entries:
        colour, marker = _identity(titles.index(comparison.title))
        for path in paths:
            w, l = path.T  # noqa: E741  the paper's letter
            extents.append(np.abs(path).max())
            axis.plot(w, l, color=colour, linewidth=1.6, linestyle="-" if setting.calibrated else _DASHED, zorder=3)
            axis.plot(w[-1], l[-1], marker=marker, color=colour, markersize=8, zorder=4, linestyle="none",
                      markerfacecolor=colour if setting.calibrated else "white", markeredgewidth=1.5)  # fmt: skip
    axis.plot(0, 0, marker="+", color=BLACK, markersize=10, zorder=5)
    stretched = max(extents) > _SYMLOG * min(extents)
    for which in ("x", "y"):
        limit = 1.25 * max(np.abs(path[:, "xy".index(which)]).max() for _, _, paths in entries for path in paths)
        if stretched:
            getattr(axis, f"set_{which}scale")("symlog", linthresh=max(min(extents), 1e-3))
        getattr(axis, f"set_{which}lim")(-max(limit, 1e-6), max(limit, 1e-6))
    axis.axhline(0, color=GREY, linewidth=0.9)
    axis.axvline(0, color=GREY, linewidth=0.9)
    axis.axvspan(0, 1e12, ymin=0, ymax=0.5, color=SKY, alpha=0.16, linewidth=0)
    corners = (("reversed: winner falls, loser rises", 0.02, 0.98), ("(i) both rise", 0.98, 0.98),
               ("(ii) both fall", 0.02, 0.02), ("(iii) winner kept, loser falls", 0.98, 0.02))  # fmt: skip
    for text, x, y in corners:
        axis.text(x, y, text, transform=axis.transAxes, ha="left" if x < 0.5 else "right", fontsize=9,
                  va="bottom" if y < 0.5 else "top", color="#444444",
                  fontweight="bold" if text.startswith("(iii)") else "normal")  # fmt: skip
    scale = ", symlog scale" if stretched else ""
    axis.set_xlabel(f"Δ$z_w$, chosen ({unit}{scale})")
    axis.set_ylabel(f"Δ$z_l$, rejected ({unit}{scale})")


def _plane_legend(figure: Figure, entries: Sequence[PlaneEntry], titles: Sequence[str]) -> None:
    handles: dict[str, Line2D] = {}
    for comparison, setting, _ in entries:
        colour, marker = _identity(titles.index(comparison.title))
        style: Any = "-" if setting.calibrated else _DASHED
        unfinished = "" if setting.word == "ok" else f" ({setting.word})"
        label = f"{comparison.title} {'w/' if setting.calibrated else 'w/o'} RC{unfinished}"
        handles[label] = Line2D([], [], color=colour, linestyle=style, marker=marker, linewidth=1.6, label=label,
                                markerfacecolor=colour if setting.calibrated else "white")  # fmt: skip
    figure.legend(handles=list(handles.values()), loc="outside right center")


def _trajectory(result: CellResult) -> np.ndarray:
    """Points (change of z_w, change of z_l) on the probe set, one row per measurement."""
    if result.summary is None:
        return np.empty((0, 2))
    records = result.dynamics(["probe_z_w", "probe_z_l"])
    points = np.column_stack([records["probe_z_w"], records["probe_z_l"]])
    points = points[np.isfinite(points).all(axis=1)]
    return points - points[0] if len(points) else points


def _band_limits(result: CellResult | None) -> tuple[float, float] | None:
    """Room for the bold curves, and for the finite part of the band as long as it does not dwarf them."""
    if result is None or result.summary is None:
        return None
    records = result.dynamics(["log_r", "log_r_star", "band_lower", "band_upper"])
    curves = np.concatenate([running_median(records[name]) for name in ("log_r", "log_r_star")])
    curves = curves[np.isfinite(curves)]
    raw = np.concatenate([records[name] for name in ("log_r", "band_lower", "band_upper")])
    raw = raw[np.isfinite(raw)]
    if len(curves) == 0 or len(raw) == 0:
        return None
    low, high = min(curves.min(), np.percentile(raw, 2)), max(curves.max(), np.percentile(raw, 98))
    room = 0.12 * max(high - low, 1e-3)
    return float(low - room), float(high + room)


def _shared_limits(limits: Sequence[tuple[float, float] | None]) -> Sequence[tuple[float, float] | None]:
    known = [pair for pair in limits if pair is not None]
    spans = [high - low for low, high in known]
    if not known or max(spans) > _OWN_SCALE * min(spans):
        return limits
    shared = (min(low for low, _ in known), max(high for _, high in known))
    return [None if pair is None else shared for pair in limits]


def _identity(index: int) -> tuple[str, str]:
    return _CYCLE[index % len(_CYCLE)], _MARKERS[index % len(_MARKERS)]


def _thin(steps: np.ndarray) -> slice:
    return slice(None, None, -(-len(steps) // _DRAWN_POINTS) or 1)


def _nothing(axis: Axes, title: str, words: str) -> None:
    axis.set_title(title, loc="left")
    axis.text(0.5, 0.5, words, transform=axis.transAxes, ha="center", va="center", color=GREY)


def _legend(axis: Axes) -> None:
    handles, labels = axis.get_legend_handles_labels()
    if handles:
        # Below the axis label: inside, it would lie on a curve sooner or later.
        axis.legend(handles, labels, loc="upper center", bbox_to_anchor=(0.46, -0.2), ncols=2, columnspacing=1.2)


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.=]+", "-", text.lower()).strip("-.")


@contextlib.contextmanager
def _style() -> Iterator[None]:
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


def _save(figure: Figure) -> tuple[bytes, bytes]:
    FigureCanvasAgg(figure)
    svg, png = io.BytesIO(), io.BytesIO()
    no_dates: dict[str, Any] = {"Date": None, "Creator": "rcray"}
    figure.savefig(svg, format="svg", metadata=no_dates)
    figure.savefig(png, format="png", dpi=_DPI, metadata={"Software": None})
    return svg.getvalue(), png.getvalue()
