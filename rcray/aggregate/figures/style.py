"""What every figure shares: matplotlib's own defaults, colours, line styles, and bytes that depend on the data alone.

Object-oriented matplotlib only (no pyplot, no global figure). Without RC is dashed and open, with RC solid and filled,
everywhere; colours are Okabe and Ito's, and every distinction is also one of line style or marker, for colour-blind
and greyscale readers.
"""

import contextlib
import io
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from rcray.aggregate.tables import slug

BLACK, GREY = "#000000", "#6b6b6b"
BLUE, SKY, VERMILLION, ORANGE, GREEN, PURPLE = "#0072B2", "#56B4E9", "#D55E00", "#E69F00", "#009E73", "#CC79A7"
DASHED: Any = (0, (4, 2))

_CYCLE = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, BLACK)
_MARKERS = "osD^vPX*<>"
_DPI = 150
_LINE_LETTERS = 48
_DRAWN_POINTS = 2000  # per curve: more only makes the files heavy

_STYLE: dict[Any, Any] = {
    "figure.constrained_layout.w_pad": 0.1,
    "svg.hashsalt": "rcray",
    "svg.fonttype": "path",
    "pdf.fonttype": 42,
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


@dataclass(frozen=True)
class Plot:
    """A drawn figure: its file name without suffix, and what to say below it."""

    name: str
    title: str
    caption: str
    svg: bytes
    png: bytes
    pdf: bytes  # empty where it was not asked for
    wide: bool = True  # takes the whole width of a page

    @property
    def files(self) -> dict[str, bytes]:
        """Content by suffix."""
        return {"png": self.png, "svg": self.svg, **({"pdf": self.pdf} if self.pdf else {})}


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Our settings on top of matplotlib's defaults, whatever the user's are; the user's come back afterwards."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        yield


def finish(figure: Figure, name: str, title: str, caption: str, *, wide: bool = True, pdf: bool = True) -> Plot:
    """The figure in its formats; no dates, no random ids. PDF takes as long as the two others together."""
    svg, png, print_ready = io.BytesIO(), io.BytesIO(), io.BytesIO()
    # Not `savefig`, which draws everything twice: the same bytes, a third faster.
    figure.dpi = _DPI
    FigureCanvasAgg(figure).print_png(png, metadata={"Software": None})
    figure.set_layout_engine("none")  # solved above; the next two keep it, and equal places
    FigureCanvasSVG(figure).print_svg(svg, metadata={"Date": None, "Creator": "rcray"})
    if pdf:
        metadata = {"CreationDate": None, "Creator": "rcray", "Producer": None}
        FigureCanvasPdf(figure).print_pdf(print_ready, metadata=metadata)
    return Plot(slug(name), title, caption, svg.getvalue(), png.getvalue(), print_ready.getvalue(), wide)


def colour_and_marker(index: int) -> tuple[str, str]:
    """Colour and marker of the n-th of several things; 70 differ."""
    return _CYCLE[index % len(_CYCLE)], _MARKERS[index % len(_MARKERS)]


def running_median(values: np.ndarray) -> np.ndarray:
    """Median over a window of about a twentieth of the run, at least 5 steps; NaN is left out."""
    window = max(5, len(values) // 20) | 1
    if len(values) < window:
        return values
    padded = np.pad(values.astype(float), window // 2, constant_values=np.nan)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # windows without one number stay NaN
        return np.nanmedian(np.lib.stride_tricks.sliding_window_view(padded, window), axis=-1)


def thin(steps: np.ndarray) -> slice:
    """Every n-th point, so that a curve of any length stays a small drawing."""
    return slice(None, None, -(-len(steps) // _DRAWN_POINTS) or 1)


def nothing(axis: Axes, title: str, words: str) -> None:
    """An empty panel that says why it is empty."""
    axis.set_title(title, loc="left")
    axis.text(0.5, 0.5, words, transform=axis.transAxes, ha="center", va="center", color=GREY)


def legend_below(axis: Axes) -> None:
    """Below the axis label: inside, it would lie on a curve sooner or later."""
    handles, labels = axis.get_legend_handles_labels()
    if handles:
        axis.legend(handles, labels, loc="upper center", bbox_to_anchor=(0.46, -0.2), ncols=2, columnspacing=1.2)


def legend_beside(figure: Figure, handles: Sequence[Artist]) -> None:
    """On the right; the figure becomes as much wider as it needs, so that panels keep the size they were given."""
    for handle in handles:
        handle.set_label(wrapped(str(handle.get_label())))
    width, height = figure.get_size_inches()
    renderer = FigureCanvasAgg(figure).get_renderer()
    for columns in range(1, len(handles) + 1):
        legend = figure.legend(handles=handles, loc="outside right center", ncols=columns, columnspacing=1.2)
        extent = legend.get_window_extent(renderer)
        if extent.height < height * figure.dpi or columns == len(handles):
            break
        legend.remove()
    figure.set_size_inches(width + extent.width / figure.dpi, height)


def wrapped(title: str) -> str:
    """A title that names many fields, on several lines."""
    return textwrap.fill(title, _LINE_LETTERS)
