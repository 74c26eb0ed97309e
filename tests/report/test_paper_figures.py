"""Figures as the paper draws them: likelihoods of the batches, and the pathways with the band."""

from pathlib import Path

import numpy as np
import runs

from rcray.aggregate.collect import collect
from rcray.aggregate.exported import exported_experiments
from rcray.aggregate.figures.curves import _smoothed, draw_batch_likelihoods
from rcray.aggregate.figures.schematic import _seen, draw_schematic
from rcray.aggregate.groups import compare
from rcray.store import Store

REAL = Path(__file__).parent / "quickstart-ledger"


def of_the_ledger():
    store = Store.at(REAL)
    return compare(collect(store, [cell for _, cells in exported_experiments(store) for cell in cells]))


def test_likelihoods_of_the_batches_stand_beside_those_of_the_probe_set(tmp_path):
    store = Store.open(tmp_path / "store")
    cells = runs.cells_of(runs.quickstart())[:2]
    runs.write_runs(store, cells)
    results = collect(store, cells)
    steps, values = _smoothed("z_w")(results[0])
    assert len(steps) == len(values) == len(results[0].dynamics(["step"])["step"]) > 1
    assert not np.array_equal(values, results[0].dynamics(["probe_z_w"])["probe_z_w"])
    plot = draw_batch_likelihoods("tiny-neox", compare(results), "nats")
    assert plot.name == "likelihoods-batch-tiny-neox"
    assert b"not measured" not in plot.svg and "as the paper draws them" in plot.caption


def test_a_ledger_without_batch_values_has_no_empty_figure():
    assert draw_batch_likelihoods("tiny-neox", of_the_ledger(), "nats") is None


def test_the_overview_is_drawn_from_the_numbers_of_runs():
    panels = of_the_ledger()
    cpo = next(comparison for comparison in panels if comparison.title == "CPO")
    without, with_rc = _seen(cpo.without), _seen(cpo.with_rc[0])
    assert without.log_r > without.upper and with_rc.lower < with_rc.log_r < with_rc.upper, "RC brings it into the band"
    assert without.end[1] > 0 > with_rc.end[1], "and its loser falls"
    plot = draw_schematic("tiny-neox", panels, "nats")
    assert plot.name == "pathways-and-band-tiny-neox"
    assert draw_schematic("tiny-neox", [], "nats") is None
