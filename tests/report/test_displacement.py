"""Cures beside each other: their ratios against the band of the update, a verdict that follows, and a figure."""

import math

import numpy as np
import pyarrow.parquet as pq
import pytest
import runs
from matplotlib.axes import Axes

from rcray.aggregate.collect import collect
from rcray.aggregate.displacement import cures, displacement_table, verdict
from rcray.aggregate.figures.displacement import draw_displacement
from rcray.aggregate.groups import compare
from rcray.aggregate.summary import IN_TRUE_BAND, LOG_R, LOG_R_STAR, OPEN, TRUE_LOWER, TRUE_UPPER, ratio_rows
from rcray.aggregate.tables import to_markdown
from rcray.config import Experiment
from rcray.store import Store

RC = [False, {"enabled": True, "kind": "published"}, {"enabled": True, "kind": "normalised"}]


@pytest.fixture
def comparisons(tmp_path):
    """DPO and DPOP; without calibration winners fall in the made-up runs, with it they do not."""
    usual = runs.quickstart()
    grid = {"objective": ["dpo", "dpop"], "calibration": RC, "train.seed": [42, 43]}
    experiment = Experiment(name="cures", run=usual.run, grid=grid)
    store, cells = Store.open(tmp_path / "store"), runs.cells_of(experiment)
    runs.write_runs(store, cells)
    for cell in cells:
        for part in store.run(cell.run_id).dynamics.glob("*.parquet"):
            table = pq.read_table(part).to_pandas()
            looked = (table.step % 10 == 1).to_numpy()
            table["true_band_lower"] = np.where(looked, -0.5 if cell.config.calibration.enabled else 9.0, np.nan)
            table["true_band_upper"] = np.where(looked, math.inf, np.nan)
            pq.write_table(pq.read_table(part).from_pandas(table, preserve_index=False), part)
    return compare(collect(store, cells))


def test_a_look_stands_for_the_steps_after_it():
    nan, inf = math.nan, math.inf
    records = {
        "log_r": np.array([0.0, 0.0, 1.0, 1.0, 1.0, nan]),
        "log_r_star": np.array([0.5, nan, 0.5, 0.5, 0.5, 0.5]),
        "true_band_lower": np.array([0.5, nan, 0.5, nan, nan, nan]),  # outside for 2 steps, then inside for 4
        "true_band_upper": np.array([inf, nan, 2.0, nan, nan, nan]),
    }
    rows = {row.metric: row for row in ratio_rows("a", records)}
    assert rows[LOG_R].value == pytest.approx(0.6) and rows[LOG_R_STAR].value == 0.5
    assert rows[IN_TRUE_BAND].value == pytest.approx(4 / 6) and rows[IN_TRUE_BAND].n == 2
    assert rows[TRUE_LOWER].value == 0.5 and rows[TRUE_UPPER].value == 2.0
    records["true_band_upper"][2] = inf
    (upper,) = [row for row in ratio_rows("a", records) if row.metric == TRUE_UPPER]
    assert upper.status == OPEN and not upper.ok
    unseen = records | {"true_band_lower": np.full(6, nan)}
    assert {row.metric for row in ratio_rows("a", unseen)} == {LOG_R, LOG_R_STAR}


def test_the_table_has_a_row_for_every_cure_and_the_verdict_follows_from_it(comparisons):
    table = displacement_table(comparisons, "nats")
    text = to_markdown(table)
    assert [(row.entries[0].words, row.entries[1].words) for row in table.rows] == [
        (title, rc) for title in ("DPO", "DPOP") for rc in ("w/o", "w/ (published)", "w/ (normalised)")
    ]
    assert "open" in text and "100.0" in text
    assert table.columns[-1].key == "accuracy_gain_points"
    shares = [row.entries[-2].value for row in table.rows]
    gains = [row.entries[-1].value for row in table.rows]
    assert gains[0] is None and gains[1:] == pytest.approx([share - shares[0] for share in shares[1:]])
    first, second, *rest = verdict(comparisons)
    assert first.endswith(
        "on every seed without calibration in 0 of 2, with published RC in 2 of 2, with normalised gradient in 2 of 2."
    )
    assert second.startswith("None of the objectives did so by itself: DPO (z_w -3.2, z_l -9.6); DPOP")
    assert any("largest margin" in line and "+6.50 nats" in line for line in rest)
    assert any("Most steps inside the band of the update: DPO + published RC" in line for line in rest)


def test_every_cure_has_a_panel(comparisons):
    ((model, rows),) = cures(comparisons).items()
    plot = draw_displacement(model, rows)
    assert plot.name == "displacement-tiny-neox" and len(plot.png) > 10_000


def test_without_a_cure_there_is_nothing_to_compare(tmp_path):
    store, cells = Store.open(tmp_path / "store"), runs.cells_of(runs.quickstart())
    runs.write_runs(store, cells)
    comparisons = compare(collect(store, cells))
    assert displacement_table(comparisons, "nats") is None and not list(verdict(comparisons))


def test_a_cure_that_nobody_looked_at_has_no_share(tmp_path, monkeypatch):
    grid = {"objective": ["dpo"], "calibration": [False, {"enabled": True, "kind": "normalised"}]}
    experiment = Experiment(name="cures", run=runs.quickstart().run, grid=grid)
    store, cells = Store.open(tmp_path / "store"), runs.cells_of(experiment)
    runs.write_runs(store, cells)
    said = []
    monkeypatch.setattr(Axes, "text", lambda axis, x, y, text, **settings: said.append(text))
    ((model, rows),) = cures(compare(collect(store, cells))).items()
    assert draw_displacement(model, rows) is not None
    assert not [text for text in said if "nan" in text]
