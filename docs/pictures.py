"""Draws the pictures of docs/concepts.md from the library's own functions: `python -m docs.pictures`.

Nothing is sketched by hand: incentives come from the objectives, edges and pathways from the band, and the last picture
from optimizer steps of a small network.
"""

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rcray.aggregate.figures.style import (
    BLACK,
    BLUE,
    DASHED,
    GREEN,
    GREY,
    SKY,
    VERMILLION,
    Plot,
    colour_and_marker,
    finish,
    style,
)
from rcray.calibration import (
    Statistics,
    band,
    mean_incentives,
    plain_scores,
    predicted_pathway,
    rates,
    statistics,
    summarise,
)
from rcray.calibration.preview import Coordinates, preview_of
from rcray.calibration.update import Foreseen
from rcray.objectives import PairLogps, objective
from rcray.objectives.base import incentives
from rcray.records.columns import PATHWAYS

HERE = Path(__file__).parent
SHADES = {"i": "#cfe3f2", "ii": "#f8d9c8", "iii": "#cdeadd"}
LIMIT = 1.6  # of log r, either way


def statistics_at(log_r: float, rho: float, log_r_star: float = 0.0) -> Statistics:
    """A batch with this ratio, this cosine, and the band's centre there."""
    return Statistics(log_r / 2, -log_r / 2, 1, 1, -log_r_star / 2, log_r_star / 2, rho)


def draw_incentives() -> Plot:
    """What each objective asks for, as the margin grows from the reference."""
    margins = torch.linspace(-6, 6, 121, dtype=torch.float64)
    ones, reference = torch.ones_like(margins), torch.full_like(margins, -20.0)
    pairs = PairLogps(reference + margins / 2, reference - margins / 2, 20 * ones, 20 * ones, reference, reference)
    figure = Figure((8.4, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    for i, name in enumerate(("dpo", "simpo", "cpo", "dil-bce", "dpop")):
        sides = incentives(objective(name), pairs)
        colour, _ = colour_and_marker(i)
        left.plot(margins, sides.d_w, color=colour, label=objective(name).params.traits.title)
        left.plot(margins, sides.d_l, color=colour, linestyle=DASHED)
        right.plot(margins, sides.log_d_w - sides.log_d_l, color=colour)
    left.set(title="incentives: d_w (solid), d_l (dashed)", xlabel="margin against the reference (nats)", yscale="log")
    right.set(title="their ratio, log r = log d_w − log d_l", xlabel="margin against the reference (nats)")
    left.legend(fontsize=7.5)
    return finish(figure, "concept-incentives", "Incentives", "", pdf=False)


def draw_scores() -> Plot:
    """The two score directions, and where an update goes for three ratios."""
    rho, angle = 0.8, math.acos(0.8)
    s_w, s_l = np.array([1.0, 0.0]), np.array([math.cos(angle), math.sin(angle)])
    figure = Figure((8.4, 3.4), layout="constrained")
    axes = figure.subplots(1, 3, sharex=True, sharey=True)
    for axis, log_r in zip(axes, (-0.5, 0.0, 0.5), strict=True):
        stats = statistics_at(log_r, rho)
        update = math.exp(stats.log_d_w) * s_w - math.exp(stats.log_d_l) * s_l
        moves, pathway = rates(stats), predicted_pathway(stats)
        for vector, colour, name in ((s_w, BLUE, "s_w"), (s_l, VERMILLION, "s_l"), (update, BLACK, "update")):
            axis.annotate("", vector, (0, 0), arrowprops={"arrowstyle": "-|>", "color": colour, "lw": 2})
            axis.text(*(vector * 1.08 + [0.02, 0.02]), name, color=colour)
        axis.set(xlim=(-0.75, 1.35), ylim=(-1.0, 0.95), aspect="equal")
        axis.set_title(
            f"log r = {log_r:+.1f}: z_w {_way(moves.z_w)}, z_l {_way(moves.z_l)}: ({pathway})",
            fontsize=9, backgroundcolor=SHADES[pathway],
        )  # fmt: skip
        axis.set_xticks([]), axis.set_yticks([])
    return finish(figure, "concept-scores", "Scores", "", pdf=False)


def _way(rate: float) -> str:
    return "rises" if rate > 0 else "falls"


def draw_band() -> Plot:
    """Which ratio gives which pathway, over the cosine of the scores."""
    figure = Figure((8.4, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    cosines, ratios = np.linspace(0.2, 0.999, 160), np.linspace(-LIMIT, LIMIT, 161)
    _shade(left, cosines, ratios, 0.0)
    _shade(right, cosines, ratios, 0.6)
    left.set(title="band around r* = 1", xlabel="ρ: cosine of the scores", ylabel="log r")
    right.set(title="the same, |s_l| larger than |s_w|: log r* = 0.6", xlabel="ρ: cosine of the scores")
    left.plot([0.93], [0], "o", color=BLACK)
    left.annotate("DPO: log r = 0", (0.93, 0), (0.45, -1.2), arrowprops={"arrowstyle": "->"})
    right.plot([0.93], [0], "o", color=BLACK)
    right.annotate("the same loss, now outside", (0.93, 0), (0.35, -1.2), arrowprops={"arrowstyle": "->"})
    return finish(figure, "concept-band", "The band", "", pdf=False)


def _shade(axis: Axes, cosines: np.ndarray, ratios: np.ndarray, log_r_star: float) -> None:
    """Every point by the pathway that the theorem predicts there, and the edges that the band has."""
    names = list(SHADES)
    cells = [[names.index(predicted_pathway(statistics_at(y, x, log_r_star))) for x in cosines] for y in ratios]
    axis.contourf(cosines, ratios, cells, levels=[-0.5, 0.5, 1.5, 2.5], colors=list(SHADES.values()))
    edges = [band(statistics_at(0.0, rho, log_r_star)) for rho in cosines]
    axis.plot(cosines, [edge.lower for edge in edges], color=GREEN)
    axis.plot(cosines, [edge.upper for edge in edges], color=GREEN)
    axis.axhline(log_r_star, color=GREEN, linestyle=DASHED, linewidth=0.8)
    axis.set_ylim(-LIMIT, LIMIT)
    for text, y in (("(i) both rise", 1.35), ("(ii) both fall", -1.5)):
        axis.text(0.98, y, text, ha="right")
    axis.text(0.23, log_r_star + 0.1, "(iii) winner kept, loser suppressed")


def draw_pathways() -> Plot:
    """The plane of the two moves, and how a ratio walks through it."""
    figure = Figure((4.6, 4.2), layout="constrained")
    axis = figure.subplots()
    for name, x, y in (("i", 0, 0), ("ii", -1, -1), ("iii", 0, -1)):
        axis.fill_between([x, x + 1], y, y + 1, color=SHADES[name])
    for i, rho in enumerate((0.5, 0.8, 0.95)):
        moves = [rates(statistics_at(log_r, rho)) for log_r in np.linspace(-LIMIT, LIMIT, 200)]
        colour, _ = colour_and_marker(i)
        axis.plot([move.z_w for move in moves], [move.z_l for move in moves], color=colour, label=f"ρ = {rho}")
        middle = rates(statistics_at(0.0, rho))
        axis.plot([middle.z_w], [middle.z_l], "o", color=colour)
    axis.axhline(0, color=GREY, linewidth=0.8), axis.axvline(0, color=GREY, linewidth=0.8)
    axis.text(0.5, 0.85, "(i) both rise", ha="center")
    axis.text(-0.5, -0.92, "(ii) both fall", ha="center")
    axis.text(0.55, -0.92, "(iii) winner kept,\nloser suppressed", ha="center")
    axis.set(xlabel="move of z_w (chosen)", ylabel="move of z_l (rejected)", xlim=(-1, 1), ylim=(-1, 1), aspect="equal")
    axis.legend(loc="upper left", fontsize=7.5)
    return finish(figure, "concept-pathways", "Pathways", "", pdf=False)


def draw_true_band() -> Plot:
    """One AdamW step of a small network as a function of the ratio: what the head says, and what the update does."""
    figure = Figure((8.4, 3.3), layout="constrained")
    axes = figure.subplots(1, 2)
    for axis, steps in zip(axes, (0, 10), strict=True):
        head, foreseen = _steps_of_dpo(steps)
        edges = band(head)
        ratios = np.linspace(-LIMIT, LIMIT, 121)
        moves = [foreseen.move(log_r / 2) for log_r in ratios]  # DPO's own ratio is 1: log r = 2 log alpha
        scale = max(abs(value) for move in moves for value in (move.w, move.l))
        axis.axvspan(
            max(edges.lower, -LIMIT), min(edges.upper, LIMIT), color=SKY, alpha=0.35, lw=0, label="band at the head"
        )
        lower, upper = (min(max(2 * edge, -LIMIT), LIMIT) for edge in foreseen.band())
        axis.axvspan(lower, upper, color=GREEN, alpha=0.4, lw=0, label="band of the update")
        axis.plot(ratios, [move.w / scale for move in moves], color=BLUE, label="move of z_w, fresh pairs")
        axis.plot(ratios, [move.l / scale for move in moves], color=VERMILLION, label="move of z_l, fresh pairs")
        axis.axhline(0, color=GREY, linewidth=0.8), axis.axvline(0, color=GREY, linewidth=0.8, linestyle=DASHED)
        axis.set(
            title=f"after {steps} steps of DPO" if steps else "the first step", xlabel="log r", xlim=(-LIMIT, LIMIT)
        )
    axes[0].set_ylabel("first-order move, scaled")
    axes[0].legend(loc="lower right", fontsize=7.5)
    return finish(figure, "concept-true-band", "The true band", "", pdf=False)


def _steps_of_dpo(steps: int) -> tuple[Statistics, Foreseen]:
    """The head's statistics of a batch, and the coming AdamW step on it as pairs see it that it does not contain."""
    generator = torch.Generator().manual_seed(5)
    words, hidden = 64, 24

    def weights(*shape: int) -> torch.nn.Parameter:
        return torch.nn.Parameter(torch.randn(*shape, generator=generator) / math.sqrt(shape[-1]))

    body, middle, head = weights(words, hidden), weights(hidden, hidden), weights(words, hidden)
    parameters = [body, middle, head]
    optimizer = torch.optim.AdamW(parameters, lr=2e-3, weight_decay=0.0)
    coordinates = Coordinates(parameters, 0, None)
    dpo = objective("dpo")

    def pairs(prompts: torch.Tensor) -> PairLogps:
        """Two answers that share three words and differ in a fourth, as answers to one prompt share most of theirs."""
        logps = torch.log_softmax(torch.tanh(body[prompts] @ middle.T) @ head.T, -1)
        rows, chosen = torch.arange(len(prompts)), (prompts * 7 + 3) % 16
        shared = sum(logps[rows, 32 + (prompts * 5 + 11 * k) % 32] for k in range(3))
        z_w, z_l = (shared + logps[rows, word] for word in (chosen, 16 + chosen))
        reference = torch.full_like(z_w, -4 * math.log(words))
        return PairLogps(z_w, z_l, torch.ones_like(z_w), torch.ones_like(z_w), reference, reference)

    def draw() -> torch.Tensor:
        return torch.randint(words, (16,), generator=generator)

    for _ in range(steps):
        optimizer.zero_grad()
        dpo.loss(pairs(draw())).mean().backward()
        optimizer.step()
    batch, fresh = pairs(draw()), pairs(draw())
    sides = incentives(dpo, batch)
    at_head = summarise(*plain_scores(batch.z_w, batch.z_l, [head]), pairs=len(batch.z_w))

    def mean_score(z: torch.Tensor) -> torch.Tensor:
        return coordinates.flat(torch.autograd.grad(z.mean(), parameters, retain_graph=True))

    preview = preview_of(optimizer, parameters, coordinates)
    assert preview is not None
    score_w, score_l = mean_score(batch.z_w), mean_score(batch.z_l)
    branches = score_w * -float(sides.d_w.mean()), score_l * float(sides.d_l.mean())
    foreseen = Foreseen(mean_score(fresh.z_w), mean_score(fresh.z_l), *branches, preview, math.inf, coordinates.total)
    return statistics(*mean_incentives(sides), at_head), foreseen


DRAWINGS = (draw_incentives, draw_scores, draw_band, draw_pathways, draw_true_band)


def pictures() -> Iterator[tuple[str, bytes]]:
    """File name and SVG of each."""
    assert set(SHADES) <= set(PATHWAYS)
    with style():
        for draw in DRAWINGS:
            plot = draw()
            yield f"{plot.name}.svg", plot.svg


if __name__ == "__main__":
    for name, svg in pictures():
        (HERE / name).write_bytes(svg)
        print(f"docs/{name}")
