"""Cells of the quickstart, trained again, beside the records of the first version (report/quickstart-ledger)."""

from pathlib import Path

import numpy as np
import pytest

from rcray.aggregate.exported import exported_experiments
from rcray.store import Store
from rcray.train.dynamics import read_dynamics
from rcray.train.launch import launch

LEDGER = Store.at(Path(__file__).parents[1] / "report" / "quickstart-ledger")
#: What tables and figures read, in nats: half of the last digit that they print.
COLUMNS, HALF_A_DIGIT = ["log_r", "log_r_star", "band_lower", "band_upper", "probe_z_w", "probe_z_l"], 0.005


def cells():
    """DPO without calibration, and with the published one."""
    ((_, planned),) = exported_experiments(LEDGER)
    return [cell for cell in planned if cell.config.objective.name == "dpo"]


@pytest.mark.slow
@pytest.mark.parametrize("cell", cells(), ids=lambda cell: cell.config.calibration.title)
def test_a_cell_comes_back_to_the_digit(cell, store):
    launch(cell.config, store)
    again, first = (
        read_dynamics(here.run(cell.run_id).dynamics, COLUMNS).to_pandas().reset_index(drop=True)
        for here in (store, LEDGER)
    )
    assert len(again) == len(first) == 200
    for name in COLUMNS:
        np.testing.assert_allclose(again[name], first[name], rtol=0, atol=HALF_A_DIGIT, err_msg=name)
