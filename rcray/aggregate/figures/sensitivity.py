"""Sensitivity to the EMA momentum: a score over the momenta, with the run without RC as a line."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from rcray.aggregate.figures.style import BLACK, BLUE, DASHED, GREY, VERMILLION, Plot, finish, style

_CAPTION = (
    "The score over EMA momenta β of RC (evenly spaced, not to scale), ± one standard error{spread}; dashed: without "
    "RC. A flat curve says that RC is not sensitive to how strongly it smooths."
)


@dataclass(frozen=True)
class Series:
    """Scores by momentum, and the score without RC."""

    label: str  # ours, published
    betas: tuple[float, ...]
    values: tuple[float, ...]
    errors: tuple[float, ...]  # nan where not known
    without: float | None


def draw_sensitivity(name: str, title: str, score: str, series: Sequence[Series]) -> Plot | None:
    """One curve per series; None without any point."""
    series = [one for one in series if one.values]
    if not series:
        return None
    betas = sorted({beta for one in series for beta in one.betas})
    with style():
        figure = Figure(figsize=(7.2, 4.4), layout="constrained")
        axis = figure.subplots()
        for i, one in enumerate(series):
            colour, marker = ((VERMILLION, "o"), (BLUE, "s"))[i % 2]
            at = np.array([betas.index(beta) for beta in one.betas]) + 0.06 * (i - (len(series) - 1) / 2)
            axis.errorbar(at, one.values, yerr=np.nan_to_num(one.errors), color=colour, marker=marker, markersize=6,
                          linewidth=1.6, capsize=3, label=f"{one.label}, with RC")  # fmt: skip
            if one.without is not None:
                axis.axhline(one.without, color=BLACK if i == 0 else GREY, linestyle=DASHED, linewidth=1.2,
                             label=f"{one.label}, without RC")  # fmt: skip
        axis.set_xticks(range(len(betas)), [f"{beta:g}" for beta in betas])
        axis.set_xlabel(r"EMA momentum $\beta$")
        axis.set_ylabel(score)
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)
        spread = " (of a mean of independent benchmarks)" if score.startswith("average") else ""
        return finish(figure, name, title, _CAPTION.format(spread=spread), wide=False)
