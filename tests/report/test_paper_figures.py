"""Figures as the paper draws them, from the committed ledger: batch values, and pathways with the band."""

from pathlib import Path

from rcray.aggregate.collect import collect
from rcray.aggregate.exported import exported_experiments
from rcray.aggregate.figures.curves import draw_batch_likelihoods
from rcray.aggregate.figures.schematic import draw_schematic
from rcray.aggregate.groups import compare
from rcray.store import Store

REAL = Path(__file__).parent / "quickstart-ledger"


def comparisons():
    store = Store.at(REAL)
    return compare(collect(store, [cell for _, cells in exported_experiments(store) for cell in cells]))


def test_likelihoods_of_the_batches_stand_beside_those_of_the_probe_set():
    plot = draw_batch_likelihoods("tiny-neox", comparisons(), "nats")
    assert plot.name == "likelihoods-batch-tiny-neox"
    assert "as the paper draws them" in plot.caption


def test_the_overview_is_drawn_from_real_numbers():
    found = comparisons()
    plot = draw_schematic("tiny-neox", found, "nats")
    assert plot.name == "pathways-and-band-tiny-neox"
    svg = plot.svg.decode()
    assert all(comparison.title in svg for comparison in found)
    assert draw_schematic("tiny-neox", [], "nats") is None
