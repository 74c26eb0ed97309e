"""The band of the head (or the last adapters) beside the band of all parameters, of the same training."""

import numpy as np
from matplotlib.figure import Figure

from rcray.aggregate.estimators import EstimatorPair
from rcray.aggregate.figures.panels import shade_band, shared_limits, with_room
from rcray.aggregate.figures.style import (
    BLUE,
    DASHED,
    GREY,
    VERMILLION,
    Plot,
    finish,
    legend_below,
    running_median,
    style,
    thin,
)
from rcray.aggregate.summary import FULL, SAME_SIDE

_CAPTION = (
    "The same training with two estimates of the scores: of the output side only (left), as calibration uses them, and "
    "of all trainable parameters (middle). Shaded: the band; log r, the incentive ratio, is the same in both. Right: "
    "the cosine ρ by both estimates. Running medians."
)


def draw_head_full(pair: EstimatorPair) -> Plot | None:
    """Three panels; None where there is nothing to compare."""
    if not pair.metrics:
        return None
    records = pair.records()
    steps = records["step"]
    limits = shared_limits([_limits(records, ""), _limits(records, FULL)])
    with style():
        figure = Figure(figsize=(12.5, 3.9), layout="constrained")
        axes = figure.subplots(1, 3)
        for axis, suffix, name, room in zip(axes, ("", FULL), ("Output side", "All parameters"), limits, strict=False):
            if room is None:
                continue
            lower, upper, centre = (records[f"{edge}{suffix}"] for edge in ("band_lower", "band_upper", "log_r_star"))
            shade_band(axis, steps, lower, upper, centre, room)
            every = thin(steps)
            axis.plot(steps[every], running_median(records["log_r"])[every], color=VERMILLION, linewidth=1.8,
                      label=r"$\log\,r$")  # fmt: skip
            inside = np.mean(records[f"in_band{suffix}"].astype(bool))
            axis.set_title(f"{name}: {inside:.0%} of steps inside", loc="left")
            axis.set_ylabel("log ratio (nats)")
            legend_below(axis)
        every = thin(steps)
        lines = (("rho", BLUE, "-", "output side"), (f"rho{FULL}", GREY, DASHED, "all parameters"))
        for column, colour, line, label in lines:
            axes[2].plot(steps[every], running_median(records[column])[every], color=colour, linestyle=line,
                         linewidth=1.8, label=label)  # fmt: skip
        axes[2].set_title(rf"Cosine $\rho$; same side at {pair.metrics[SAME_SIDE].value:.0%} of steps", loc="left")
        axes[2].set_ylabel(r"$\rho$")
        legend_below(axes[2])
        for axis in axes:
            axis.set_xlabel("optimizer step")
        rc = "with RC" if pair.rc == "w/" else "without RC"
        title = f"Head against full: {pair.title} {rc} on {pair.model}"
        seed = f"-seed{pair.head.seed}"
        return finish(figure, f"head-full-{pair.model}-{pair.title}-{rc}{seed}", title, _CAPTION)


def _limits(records: dict[str, np.ndarray], suffix: str) -> tuple[float, float] | None:
    names = ("log_r", f"band_lower{suffix}", f"band_upper{suffix}")
    curves = np.concatenate([running_median(records[name]) for name in names])
    curves = curves[np.isfinite(curves)]
    if len(curves) == 0:
        return None
    return with_room(*np.percentile(curves, (1, 99)))
