"""The overview: every cell of every model in one grid, by what it did."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from rcray.aggregate.figures.style import GREY, Plot, finish, style, wrapped
from rcray.aggregate.frame import ACCURACY, DRIFT_L, DRIFT_W, scores_at
from rcray.aggregate.groups import Comparison, Setting
from rcray.aggregate.summary import REALISED
from rcray.records.columns import IN_BAND

_CAPTION = (
    "One box per model, objective and RC. Shade: share of steps inside the paper's band at the {place}, light 0% to "
    "dark 100%, printed first; it is no prediction. Below it the pathway realised in most probe intervals, with its "
    "share; then what held-out pairs say: accuracy, and the changes of z_w and z_l ({unit}). Hatched boxes have no "
    "result and say why. Means over seeds."
)
_MOST = 400  # boxes that a page can show
_LETTER = 0.08  # inches of a title's letter
#: Light to dark in one hue: the order survives in greyscale.
_SHADES = LinearSegmentedColormap.from_list("share", ["#f4f8fb", "#9ecae1", "#08519c"])


def draw_overview(comparisons: Sequence[Comparison], unit: str) -> Plot | None:
    """A column per model and RC, a row per objective; None where nothing is recorded, or far too much."""
    models = list(dict.fromkeys(c.model for c in comparisons))
    titles = list(dict.fromkeys(c.title for c in comparisons))
    boxes: dict[tuple[int, int], Setting] = {}
    columns: list[tuple[str, str]] = []
    for model in models:
        own = [c for c in comparisons if c.model == model]
        names = list(dict.fromkeys(setting.rc for c in own for setting in c.settings))
        columns += [(model, name) for name in sorted(names, key=lambda name: not name.startswith("w/o"))]  # stable
        for comparison in own:
            for setting in comparison.settings:
                boxes[titles.index(comparison.title), columns.index((model, setting.rc))] = setting
    if len(boxes) > _MOST or not any(setting.metric(IN_BAND) for setting in boxes.values()):
        return None
    with style():
        labels = [wrapped(title) for title in titles]
        left = max(2.2, 0.6 + _LETTER * max(len(line) for label in labels for line in label.splitlines()))
        figure = Figure(figsize=(left + 1.75 * len(columns), 1.3 + 0.95 * len(titles)), layout="constrained")
        axis = figure.subplots()
        for (row, column), setting in boxes.items():
            _box(axis, row, column, setting)
        axis.set_xlim(0, len(columns))
        axis.set_ylim(len(titles), 0)
        axis.set_yticks([i + 0.5 for i in range(len(titles))], labels)
        several = len(models) > 1
        heads = [f"{model}\n{rc} RC" if several else f"{rc} RC" for model, rc in columns]
        axis.set_xticks([i + 0.5 for i in range(len(columns))], heads)
        axis.xaxis.tick_top()
        axis.tick_params(length=0)
        axis.grid(False)
        for side in axis.spines.values():
            side.set_visible(False)
        caption = _CAPTION.format(unit=unit, place=scores_at(setting.config for setting in boxes.values()))
        return finish(figure, "overview", "Every cell at a glance", caption, wide=len(columns) > 5)


def _box(axis: Axes, row: int, column: int, setting: Setting) -> None:
    inside = setting.metric(IN_BAND)
    place = (column + 0.03, row + 0.05)
    if inside is None:
        axis.add_patch(Rectangle(place, 0.94, 0.9, facecolor="white", edgecolor=GREY, hatch="///", linewidth=0.6))
        axis.text(column + 0.5, row + 0.5, setting.problem(IN_BAND), ha="center", va="center", fontsize=9,
                  bbox={"facecolor": "white", "edgecolor": "none", "pad": 2})  # fmt: skip
        return
    axis.add_patch(Rectangle(place, 0.94, 0.9, facecolor=_SHADES(inside.value), edgecolor=GREY, linewidth=0.6))
    ink = "white" if inside.value > 0.55 else "black"
    shares = {name: share.value for name, metric in REALISED.items() if (share := setting.metric(metric))}
    most = max(shares.items(), key=lambda share: share[1], default=None)
    lines = [f"realised {most[0]}: {most[1]:.0%}"] if most else []
    if accuracy := setting.metric(ACCURACY):
        lines.append(f"accuracy {accuracy.value:.1%}")
    drift_w, drift_l = setting.metric(DRIFT_W), setting.metric(DRIFT_L)
    if drift_w and drift_l:
        lines.append(f"$z_w$ {drift_w.value:+.2f}, $z_l$ {drift_l.value:+.2f}")
    axis.text(column + 0.5, row + 0.2, f"{inside.value:.0%}", ha="center", va="center", color=ink,
              fontsize=11, fontweight="bold")  # fmt: skip
    axis.text(column + 0.5, row + 0.62, "\n".join(lines), ha="center", va="center", color=ink, fontsize=7.5)
