"""What calibration does to winner and loser on a real model, from the finished cells of experiments/real-control.yaml.

Trains nothing: `rcray sweep experiments/real-control.yaml` does. A row is a reduction of the likelihood; drift is that
of the held-out pairs: over seeds its mean and spread, for a single one its standard error over pairs.
"""

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path

from rcray.config import RunConfig, load_experiment
from rcray.store import Store
from rcray.sweep.grid import expand

ROOT = Path(__file__).parents[1]
KINDS = ("none", "published", "update")
TITLES = {"none": "without calibration", "published": "with the published one", "update": "by the update"}


def kind_of(config: RunConfig) -> str:
    return config.calibration.kind if config.calibration.enabled else "none"


def drifts(store: Store, run: str) -> tuple[tuple[float, float], tuple[float, float]] | None:
    """Of the chosen and the rejected held-out answers, each with its standard error; None: not measured yet."""
    rows = {row.metric: row for row in store.run(run).read_evaluation().rows}
    drifts = [rows.get(name) for name in ("drift_w", "drift_l")]
    if any(row is None or row.value is None for row in drifts):
        return None
    first, second = ((row.value, row.stderr or 0.0) for row in drifts if row is not None and row.value is not None)
    return first, second


def cell_text(measured: Sequence[tuple[tuple[float, float], tuple[float, float]]]) -> str:
    """Both drifts, and how many runs kept the winner and lowered the loser."""
    if not measured:
        return "not run"
    sides = []
    for side in (0, 1):
        values = [drift[side][0] for drift in measured]
        error = statistics.stdev(values) if len(values) > 1 else measured[0][side][1]
        sides.append(f"{statistics.fmean(values):+.2f} ± {error:.2f}")
    both = sum(drift[0][0] >= 0 >= drift[1][0] for drift in measured)
    return f"{' / '.join(sides)}, {both} of {len(measured)}"


def draw(path: Path, store: Store) -> None:
    """Likelihoods of the probe set over the steps, by kind, of the objectives whose cells are all finished."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from rcray.train.dynamics import read_dynamics
    from rcray.train.launch import is_finished

    cells = expand(load_experiment(ROOT / "experiments" / "real.yaml"))
    missing = {cell.config.objective.name for cell in cells if not is_finished(store.run(cell.run_id))}
    cells = [cell for cell in cells if cell.config.objective.name not in missing]
    objectives = list(dict.fromkeys(cell.config.objective.name for cell in cells))
    figure, axes = plt.subplots(
        len(objectives), 3, figsize=(9, 2.2 * len(objectives)), sharex=True, sharey="row", squeeze=False
    )
    for cell in cells:
        kind, name = kind_of(cell.config), cell.config.objective.name
        axis = axes[objectives.index(name)][KINDS.index(kind)]
        columns = ["step", "probe_z_w", "probe_z_l"]
        probe = read_dynamics(store.run(cell.run_id).dynamics, columns).to_pandas().dropna()
        for side, label, colour in (("w", "chosen", "#0072B2"), ("l", "rejected", "#D55E00")):
            change = probe[f"probe_z_{side}"] - probe[f"probe_z_{side}"].iloc[:1].sum()
            axis.plot(probe["step"], change, color=colour, label=label, marker="o", markersize=2.5)
        axis.axhline(0, color="grey", linewidth=0.8)
        axis.set_title(f"{cell.config.objective_title}, {TITLES[kind]}", loc="left", fontsize=9)
    for row in axes:
        row[0].set_ylabel("change (nats)")
    for axis in axes[-1]:
        axis.set_xlabel("step")
    axes[0][0].legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="as ever: nothing is trained")
    parser.add_argument("--store", type=Path, default=Path("rcray-store"))
    parser.add_argument("--figure", type=Path, help="only draw experiments/real.yaml's cells, into this file")
    options = parser.parse_args()
    store = Store.at(options.store)
    if options.figure:
        draw(options.figure, store)
        return
    cells = expand(load_experiment(ROOT / "experiments" / "real-control.yaml"))
    print(
        "Δz_w / Δz_l of held-out pairs (nats; nats per token for means); runs that kept the winner, lowered the loser"
    )
    print("| likelihood | none | published | update |\n|---|---|---|---|")
    for likelihood in ("sum", "mean"):
        texts = []
        for kind in KINDS:
            mine = [c for c in cells if c.config.likelihood == likelihood and kind_of(c.config) == kind]
            measured = [drifts(store, cell.run_id) for cell in mine]
            texts.append(cell_text([drift for drift in measured if drift is not None]))
        print(f"| {likelihood} | " + " | ".join(texts) + " |")


if __name__ == "__main__":
    main()
