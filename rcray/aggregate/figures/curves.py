"""Objectives against each other on one model: the cosine of the scores, likelihoods and margins over steps."""

from collections.abc import Callable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from rcray.aggregate.collect import CellResult
from rcray.aggregate.figures.style import (
    DASHED,
    GREY,
    Plot,
    colour_and_marker,
    finish,
    legend_beside,
    nothing,
    running_median,
    style,
    thin,
)
from rcray.aggregate.groups import Comparison

_SHOWN = 15  # curves of one panel: the whole zoo, and no more than a legend can tell apart

_COSINE_CAPTION = (
    "Cosine ρ of the winner's and the loser's score, running median. The band's width is 2|log ρ|: the larger ρ, the "
    "narrower the band; at or below 0 it is unbounded. Left: without RC; right: with RC."
)
_LIKELIHOOD_CAPTION = (
    "Change of the probe set's mean log-likelihoods since its first measurement, and the margin z_w − z_l of the same "
    "pairs. Upper row: without RC, dashed and open; lower row: with RC, solid and filled. The margin may grow in every "
    "way; only z_w kept and z_l lowered is pathway (iii)."
)

_BATCH_CAPTION = (
    "Mean log-likelihoods of each step's own batch, running median, as the paper draws them: every step sees other "
    "pairs, so a curve has their spread in it. The figure of the probe set follows the same pairs throughout. Upper "
    "row: without RC, dashed and open; lower row: with RC, solid and filled."
)

_DISTRIBUTION_CAPTION = (
    "The next token's distribution in the places of the probe's chosen answers: KL to the start model, change of its "
    "entropy, and of the likeliest token's log-probability, per token. The likeliest token rising while the chosen "
    "answers fall (next figure) is squeezing. Upper row: without RC, dashed and open; lower row: with RC."
)
_MISPLACED_CAPTION = (
    "Change per token since the first probe: the chosen answers, the chosen answer of another prompt, the own one with "
    "its words shuffled. Where the last two rise with the first, the mass goes to no better text. Upper row: without "
    "RC, dashed and open; lower row: with RC, solid and filled."
)
_PER_TOKEN = "change since first probe (nats/token)"

Curve = tuple[np.ndarray, np.ndarray]
Rows = list[tuple[str, CellResult]]  # the title of a comparison, and the run that stands for it
Panels = tuple[tuple[str, str, Callable[[CellResult], Curve]], ...]  # title, unit, how a run is read


def draw_cosines(model: str, comparisons: Sequence[Comparison]) -> Plot | None:
    """rho over steps, one curve per objective, without and with RC."""
    sides = [_side(comparisons, with_rc) for with_rc in (False, True)]
    if not any(sides):
        return None
    titles = _titles(comparisons)
    with style():
        figure = Figure(figsize=(10.2, 4.2), layout="constrained")
        axes = figure.subplots(1, 2, sharey=True)
        for axis, rows, title in zip(axes, sides, ("Without RC", "With RC"), strict=True):
            _panel(axis, rows, titles, _smoothed("rho"), title)
            axis.set_xlabel("optimizer step")
        axes[0].set_ylabel(r"cosine $\rho$ of the scores")
        _legend(figure, titles)
        return finish(figure, f"cosine-{model}", f"Cosine of the scores on {model}", _COSINE_CAPTION)


def draw_likelihoods(model: str, comparisons: Sequence[Comparison], unit: str) -> Plot | None:
    """z_w, z_l and the margin on the probe set, one curve per objective, without and with RC."""
    panels: Panels = (
        ("$z_w$", f"change since first probe ({unit})", _change("probe_z_w")),
        ("$z_l$", f"change since first probe ({unit})", _change("probe_z_l")),
        ("Margin $z_w - z_l$", f"margin ({unit})", lambda result: _finite(result, "probe_z_w", "probe_z_l")),
    )
    title = f"Likelihoods of the objectives on {model}"
    return _draw(comparisons, panels, f"likelihoods-{model}", title, _LIKELIHOOD_CAPTION)


def draw_batch_likelihoods(model: str, comparisons: Sequence[Comparison], unit: str) -> Plot | None:
    """The same of the batches that were trained on; older ledgers do not have them."""
    if not _recorded(comparisons, "z_w"):
        return None
    panels: Panels = (
        ("$z_w$", f"batch mean ({unit})", _smoothed("z_w")),
        ("$z_l$", f"batch mean ({unit})", _smoothed("z_l")),
        ("Margin $z_w - z_l$", f"batch mean ({unit})", _smoothed("margin")),
    )
    title = f"Likelihoods of the objectives on {model}, batches as the paper draws them"
    return _draw(comparisons, panels, f"likelihoods-batch-{model}", title, _BATCH_CAPTION)


def draw_distributions(model: str, comparisons: Sequence[Comparison]) -> Plot | None:
    """KL to the start model, entropy and the greedy token on the probe set; None where they were not measured."""
    if not _recorded(comparisons, "probe_kl"):
        return None
    panels: Panels = (
        ("KL to the start model", "nats/token", lambda result: _finite(result, "probe_kl")),
        ("Entropy", _PER_TOKEN, _change("probe_entropy")),
        ("Greedy token", _PER_TOKEN, _change("probe_logp_greedy")),
    )
    title = f"The next token's distribution on {model}"
    return _draw(comparisons, panels, f"distribution-{model}", title, _DISTRIBUTION_CAPTION)


def draw_misplaced(model: str, comparisons: Sequence[Comparison]) -> Plot | None:
    """The chosen answers beside answers that belong to nothing; None where they were not measured."""
    if not _recorded(comparisons, "probe_logp_other"):
        return None
    panels: Panels = (
        ("Chosen answer", _PER_TOKEN, _change("probe_logp_w")),
        ("Another prompt's answer", _PER_TOKEN, _change("probe_logp_other")),
        ("Chosen, words shuffled", _PER_TOKEN, _change("probe_logp_shuffled")),
    )
    title = f"Where the probability went on {model}"
    return _draw(comparisons, panels, f"misplaced-{model}", title, _MISPLACED_CAPTION)


def _recorded(comparisons: Sequence[Comparison], column: str) -> bool:
    runs = [result for with_rc in (False, True) for _, result in _side(comparisons, with_rc)]
    return any(len(_finite(result, column)[0]) for result in runs)


def _draw(comparisons: Sequence[Comparison], panels: Panels, name: str, title: str, caption: str) -> Plot | None:
    sides = [_side(comparisons, with_rc) for with_rc in (False, True)]
    if not any(sides):
        return None
    titles = _titles(comparisons)
    kept = [side for side in sides if side]
    with style():
        figure = Figure(figsize=(12.4, 3.5 * len(kept)), layout="constrained")
        axes = figure.subplots(len(kept), 3, squeeze=False)
        for line, rows in zip(axes, kept, strict=True):
            rc = "with RC" if rows[0][1].cell.config.calibration.enabled else "without RC"
            for axis, (what, unit, read) in zip(line, panels, strict=True):
                _panel(axis, rows, titles, read, f"{what}, {rc}", markers=True)
                axis.set_xlabel("optimizer step")
                axis.set_ylabel(unit)
                if unit.startswith("change"):
                    axis.axhline(0, color=GREY, linewidth=0.8)
        _legend(figure, titles)
        return finish(figure, name, title, caption)


def _titles(comparisons: Sequence[Comparison]) -> list[str]:
    return list(dict.fromkeys(comparison.title for comparison in comparisons))[:_SHOWN]


def _side(comparisons: Sequence[Comparison], with_rc: bool) -> Rows:
    """The first run of every objective on one side that recorded anything."""
    rows = []
    for comparison in comparisons[:_SHOWN]:
        settings = comparison.with_rc if with_rc else filter(None, [comparison.without])
        drawn = next((result for setting in settings if (result := setting.drawn())), None)
        if drawn is not None:
            rows.append((comparison.title, drawn))
    return rows


def _panel(
    axis: Axes,
    rows: Rows,
    titles: Sequence[str],
    read: Callable[[CellResult], Curve],
    title: str,
    markers: bool = False,
) -> None:
    drawn = 0
    for name, result in rows:
        steps, values = read(result)  # one run's columns at a time
        if len(steps) == 0:
            continue
        drawn += 1
        colour, marker = colour_and_marker(titles.index(name))
        every = thin(steps)
        calibrated = result.cell.config.calibration.enabled
        axis.plot(steps[every], values[every], color=colour, linewidth=1.5, linestyle="-" if calibrated else DASHED,
                  marker=marker, markersize=4.5 if markers else 5, markerfacecolor=colour if calibrated else "white",
                  markevery=(titles.index(name), max(1, len(steps[every]) // 7)))  # fmt: skip
    if drawn:
        axis.set_title(title, loc="left")
    else:
        nothing(axis, title, "no records" if not rows else "not measured")


def _finite(result: CellResult, *names: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps at which the first column, less the second if there is one, is finite, and its values there."""
    records = result.dynamics(["step", *names])
    values = records[names[0]] - records[names[1]] if len(names) > 1 else records[names[0]]
    known = np.isfinite(values)
    return records["step"][known], values[known]


def _change(name: str) -> Callable[[CellResult], Curve]:
    def read(result: CellResult) -> Curve:
        steps, values = _finite(result, name)
        return steps, values - values[:1]

    return read


def _smoothed(name: str) -> Callable[[CellResult], Curve]:
    def read(result: CellResult) -> Curve:
        steps, values = _finite(result, name)
        return steps, running_median(values)

    return read


def _legend(figure: Figure, titles: Sequence[str]) -> None:
    handles = []
    for i, title in enumerate(titles):
        colour, marker = colour_and_marker(i)
        handles.append(Line2D([], [], color=colour, marker=marker, linewidth=1.5, label=title))
    legend_beside(figure, handles)
