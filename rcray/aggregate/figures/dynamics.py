"""Four panels of dynamics: a comparison without and with RC, as in the paper, or one run alone."""

import contextlib
from collections.abc import Iterator

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rcray.aggregate.collect import read_run
from rcray.aggregate.figures.panels import (
    Drawn,
    band_limits,
    band_panel,
    cosine_panel,
    likelihood_panel,
    margin_panel,
    read,
    shared_limits,
)
from rcray.aggregate.figures.style import Plot, finish, style
from rcray.aggregate.frame import likelihood_unit, scores_at
from rcray.aggregate.groups import Comparison, Setting
from rcray.config.models import table_name
from rcray.store import RunDir
from rcray.sweep.grid import Cell

_BAND = (
    "Blue: the paper's band at the {place}, log r* ± |log ρ|, inside which the winner rises and the loser falls as far "
    "as these parameters move them; where ρ ≤ 0 it is unbounded and drawn to the edge. Green: the band of the update "
    "that was made, as looks at fresh pairs see it: below it their winners fall, above it their losers rise; nothing "
    "is drawn where it is empty. In brackets: share of steps inside. Log r is the incentive ratio of the update made. "
    "Faint: every step; bold: running median. "
)
_PROBE = (
    "Likelihoods are changes on the fixed probe set since its first measurement, before training; the margin z_w − z_l "
    "is that of the same pairs. "
)


def draw_dynamics(comparison: Comparison, setting: Setting | None) -> Plot | None:
    """Band without RC, band with RC, likelihoods, margin; `setting` is one with RC. None without any records."""
    without = read(comparison.without.drawn() if comparison.without else None)
    with_rc = read(setting.drawn() if setting else None)
    if without is None and with_rc is None:
        return None
    named = comparison.title_of(setting) if setting else comparison.title
    title = f"{named} on {table_name(comparison.model)}"
    limits = shared_limits([band_limits(without), band_limits(with_rc)])
    seeds = sorted({run.result.seed for run in (without, with_rc) if run is not None})
    unit = likelihood_unit(run.result.cell.config for run in (without, with_rc) if run is not None)
    with _four_panels(without, with_rc, unit) as (figure, first, second):
        band_panel(first, without, "Band without RC", limits[0])
        band_panel(second, with_rc, "Band with RC", limits[1])
        place = scores_at(run.result.cell.config for run in (without, with_rc) if run is not None)
        caption = f"{_BAND.format(place=place)}{_PROBE}Training seed {', '.join(map(str, seeds))}."
        name = f"dynamics-{comparison.model}-{named}"
        return finish(figure, name, title, caption)


def draw_run(run: RunDir, cell: Cell) -> Plot | None:
    """One run's own four panels (band, cosine, likelihoods, margin), as SVG and PNG; None without records."""
    drawn = read(result := read_run(run, cell))
    if drawn is None:
        return None
    config = result.cell.config
    rc = "with RC" if config.calibration.enabled else "without RC"
    without, with_rc = (None, drawn) if config.calibration.enabled else (drawn, None)
    with _four_panels(without, with_rc, likelihood_unit([config])) as (figure, first, second):
        band_panel(first, drawn, f"Band {rc}", band_limits(drawn))
        cosine_panel(second, drawn)
        title = f"{result.cell.label}, seed {result.seed}"
        place = scores_at([config])
        caption = (
            f"{_BAND.format(place=place)}The cosine ρ of the two scores decides the band's width, 2|log ρ|. {_PROBE}"
        )
        return finish(figure, "dynamics", title, caption.strip(), pdf=False)


@contextlib.contextmanager
def _four_panels(without: Drawn | None, with_rc: Drawn | None, unit: str) -> Iterator[tuple[Figure, Axes, Axes]]:
    """A row of four: the first two are the caller's, then likelihoods and margin; all on the same steps."""
    last = max(len(run.records["step"]) for run in (without, with_rc) if run)
    with style():
        figure = Figure(figsize=(13.6, 3.7), layout="constrained")
        axes = figure.subplots(1, 4)
        likelihood_panel(axes[2], without, with_rc, unit)
        margin_panel(axes[3], without, with_rc, unit)
        for axis in axes:
            axis.set_xlabel("optimizer step")
            axis.set_xlim(-0.03 * last, 1.03 * last)
        yield figure, axes[0], axes[1]
