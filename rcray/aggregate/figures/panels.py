"""Panels of one or two runs: the band, the cosine, likelihoods and margin on the probe set."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes

from rcray.aggregate.collect import CellResult
from rcray.aggregate.figures.style import (
    BLACK,
    BLUE,
    DASHED,
    GREEN,
    GREY,
    SKY,
    VERMILLION,
    legend_below,
    nothing,
    running_median,
    thin,
)
from rcray.aggregate.summary import IN_TRUE_BAND
from rcray.records.columns import IN_BAND

_OWN_SCALE = 3.0  # two band panels share an axis unless one spans this many times the other
_REACH = 0.5  # spans of the other curves that an axis is widened by for the true band
_COLUMNS = (
    "step", "log_r", "log_r_base", "log_r_star", "band_lower", "band_upper", "rho", "probe_z_w", "probe_z_l",
    "true_band_lower", "true_band_upper",
)  # fmt: skip

Limits = tuple[float, float]


@dataclass(frozen=True)
class Drawn:
    """A run with the records that its panels need, read once."""

    result: CellResult
    records: dict[str, np.ndarray]


def read(result: CellResult | None) -> Drawn | None:
    """The records of a run; None where there are none."""
    if result is None or not result.recorded:
        return None
    return Drawn(result, result.dynamics(_COLUMNS))


def band_limits(run: Drawn | None) -> Limits | None:
    """Room for the bold curves, and for the finite part of both bands as long as it does not dwarf them."""
    if run is None:
        return None
    records = run.records
    curves = np.concatenate([running_median(records[name]) for name in ("log_r", "log_r_star")])
    curves = curves[np.isfinite(curves)]
    raw = np.concatenate([records[name] for name in ("log_r", "band_lower", "band_upper")])
    raw = raw[np.isfinite(raw)]
    if len(curves) == 0 or len(raw) == 0:
        return None
    low, high = min(curves.min(), np.percentile(raw, 2)), max(curves.max(), np.percentile(raw, 98))
    reach = _REACH * max(high - low, 1e-3)
    _, *edges = looked_at(records, (low - reach, high + reach))
    near = np.concatenate([edge[edges[0] < edges[1]] for edge in edges])
    near = near[(near > low - reach) & (near < high + reach)]  # not those that were clipped
    return with_room(min([low, *near]), max([high, *near]))


def with_room(low: float, high: float) -> Limits:
    """Limits of an axis around these."""
    room = 0.12 * max(high - low, 1e-3)
    return float(low - room), float(high + room)


def shared_limits(limits: Sequence[Limits | None]) -> Sequence[Limits | None]:
    """One axis for several bands, unless one of them would be squeezed to a line."""
    known = [pair for pair in limits if pair is not None]
    spans = [high - low for low, high in known]
    if not known or max(spans) > _OWN_SCALE * min(spans):
        return limits
    shared = (min(low for low, _ in known), max(high for _, high in known))
    return [None if pair is None else shared for pair in limits]


def shade_band(
    axis: Axes,
    steps: np.ndarray,
    lower: np.ndarray,
    upper: np.ndarray,
    centre: np.ndarray,
    limits: Limits,
    label: str = "band",
) -> None:
    """The band with its edges and its centre, clipped to the axis where it is unbounded."""
    low, high = limits
    every = thin(steps)
    edges = [np.clip(running_median(edge), low, high)[every] for edge in (lower, upper)]
    axis.fill_between(steps[every], *edges, color=SKY, alpha=0.28, linewidth=0, label=label)
    for edge in edges:
        inside = np.where((edge > low) & (edge < high), edge, np.nan)
        axis.plot(steps[every], inside, color=SKY, linewidth=0.9)
    axis.plot(steps[every], running_median(centre)[every], color=BLACK, linewidth=1.0, linestyle=DASHED,
              label=r"centre $\log\,r^\star$")  # fmt: skip
    axis.set_ylim(low, high)


def true_band(axis: Axes, run: Drawn, limits: Limits) -> None:
    """The band of the updates that were made, at the steps where fresh pairs were looked at."""
    steps, lower, upper = looked_at(run.records, limits)
    if not len(steps):
        return
    there = lower < upper
    if not there.any():
        _, lower, upper = looked_at(run.records, (-np.inf, np.inf))
        where = "off this axis" if (lower < upper).any() else "empty"
        axis.text(0.02, 0.02, f"band of the update: {where}", transform=axis.transAxes, color=GREEN, style="italic")
        return
    inside = f" ({run.result.value(IN_TRUE_BAND):.0%})" if IN_TRUE_BAND in run.result.metrics else ""
    axis.fill_between(steps, lower, upper, where=there, color=GREEN, alpha=0.22, linewidth=0,
                      label=f"band of the update{inside}")  # fmt: skip


def looked_at(records: dict[str, np.ndarray], limits: Limits) -> list[np.ndarray]:
    """Steps with a look, and both edges of the band that it saw, clipped to the axis."""
    edges = [records[f"true_band_{end}"] for end in ("lower", "upper")]
    seen = ~(np.isnan(edges[0]) | np.isnan(edges[1]))
    return [records["step"][seen], *(np.clip(running_median(edge[seen]), *limits) for edge in edges)]


def band_panel(axis: Axes, run: Drawn | None, title: str, limits: Limits | None) -> None:
    """The band, and the incentive ratio in it."""
    axis.set_ylabel("log ratio (nats)")
    if run is None or limits is None:
        nothing(axis, title, "no records" if run is None else "no finite ratio recorded")
        return
    records, steps = run.records, run.records["step"]
    every = thin(steps)
    calibration = run.result.cell.config.calibration
    edges = records["band_lower"], records["band_upper"], records["log_r_star"]
    shade_band(axis, steps, *edges, limits, f"band at the {calibration.scores_at}")
    true_band(axis, run, limits)
    if calibration.enabled:
        axis.plot(steps[every], running_median(records["log_r_base"])[every], color=GREY, linewidth=1.1,
                  linestyle=":", label=r"$\log\,r$ before RC")  # fmt: skip
    axis.plot(steps[every], records["log_r"][every], color=VERMILLION, linewidth=0.6, alpha=0.35)
    axis.plot(
        steps[every], running_median(records["log_r"])[every], color=VERMILLION, linewidth=1.8, label=r"$\log\,r$"
    )
    axis.set_title(f"{title}: {run.result.value(IN_BAND):.0%} inside, {calibration.scores_at}", loc="left")
    if not run.result.ok:
        stopped = f"{run.result.status}, {len(steps)} steps recorded"
        axis.text(0.98, 0.98, stopped, transform=axis.transAxes, ha="right", va="top", style="italic")
    legend_below(axis)


def cosine_panel(axis: Axes, run: Drawn) -> None:
    """The cosine of the two scores."""
    title = r"Cosine $\rho$ of the scores"
    values, steps = run.records["rho"], run.records["step"]
    axis.set_ylabel(r"$\rho$")
    if not np.isfinite(values).any():
        nothing(axis, title, "no finite cosine recorded")
        return
    axis.set_title(title, loc="left")
    every = thin(steps)
    axis.axhline(0, color=GREY, linewidth=0.8)
    axis.plot(steps[every], values[every], color=BLUE, linewidth=0.6, alpha=0.35)
    axis.plot(steps[every], running_median(values)[every], color=BLUE, linewidth=1.8, label=r"$\rho$, running median")
    legend_below(axis)


def likelihood_panel(axis: Axes, without: Drawn | None, with_rc: Drawn | None, unit: str) -> None:
    """Changes of z_w and z_l on the probe set."""
    axis.set_ylabel(f"change since first probe ({unit})")
    drawn = 0
    for run, line, suffix in ((without, DASHED, "w/o RC"), (with_rc, "-", "w/ RC")):
        if run is None:
            continue
        curves = (("probe_z_w", BLUE, "o", "$z_w$"), ("probe_z_l", VERMILLION, "s", "$z_l$"))
        for name, colour, marker, label in curves:
            kept = np.isfinite(run.records[name])
            steps, values = run.records["step"][kept], run.records[name][kept]
            if len(values) == 0:
                continue
            drawn += 1
            filled = colour if suffix == "w/ RC" else "white"
            axis.plot(steps, values - values[0], color=colour, linestyle=line, linewidth=1.6, marker=marker,
                      markersize=3.6, markevery=max(1, len(steps) // 8), markerfacecolor=filled,
                      label=f"{label} {suffix}")  # fmt: skip
    if not drawn:
        nothing(axis, "Likelihood change, probe set", "the probe set was not measured")
        return
    axis.set_title("Likelihood change, probe set", loc="left")
    axis.axhline(0, color=GREY, linewidth=0.8)
    legend_below(axis)


def margin_panel(axis: Axes, without: Drawn | None, with_rc: Drawn | None, unit: str) -> None:
    """The margin z_w - z_l on the probe set."""
    axis.set_title("Margin $z_w - z_l$, probe set", loc="left")
    axis.set_ylabel(f"margin ({unit})")
    for run, line, colour, marker, label in (
        (without, DASHED, GREY, "o", "w/o RC"),
        (with_rc, "-", GREEN, "s", "w/ RC"),
    ):
        if run is None:
            continue
        margin = run.records["probe_z_w"] - run.records["probe_z_l"]
        seen = np.isfinite(margin)
        axis.plot(run.records["step"][seen], margin[seen], color=colour, linestyle=line, marker=marker, markersize=4,
                  markevery=max(1, int(seen.sum()) // 10), linewidth=1.8, label=label)  # fmt: skip
    legend_below(axis)
