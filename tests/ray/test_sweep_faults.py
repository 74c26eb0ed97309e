"""What cells do to a sweep: too little memory, a process that dies, errors, code of one's own. One Ray for them all."""

import json
import os
import shutil
from pathlib import Path

import pytest

from rcray.config import load_experiment
from rcray.errors import RcrayError
from rcray.store import Store
from rcray.sweep.grid import expand
from rcray.train.dynamics import read_dynamics
from tests.ray.sweeping import sweep_here, tracked, write_experiment
from tests.small_runs import SMALL

pytestmark = pytest.mark.ray


def ledger_of(store):
    return json.loads((store.experiment("small") / "ledger.json").read_text())


def test_out_of_memory_is_tried_once_more_in_smaller_portions(one_ray, store, tmp_path):
    file = write_experiment(
        tmp_path / "small.yaml",
        grid={"objective": [{"name": "my_objectives:hungry", "params": {"most": most}} for most in (2, 1, 4)]},
    )
    fits_in_halves, never_fits, fits = (store.run(cell.run_id) for cell in expand(load_experiment(file)))
    output = sweep_here(file, store, "--no-tracking", expect=1)

    assert [r.read_status().status for r in (fits_in_halves, never_fits, fits)] == ["ok", "oom", "ok"]
    adjusted = json.loads(fits_in_halves.adjusted.read_text())
    assert (adjusted["asked"], adjusted["used"]) == (4, 2)
    assert not fits.adjusted.exists()
    rows = read_dynamics(fits_in_halves.dynamics).to_pandas()
    assert rows["step"].tolist() == list(range(1, 9)), "the same number of updates: the same global batch"
    entries = {entry["run_id"]: entry for entry in ledger_of(store)["cells"]}
    assert entries[fits_in_halves.run_id]["note"].startswith("micro-batch 4 -> 2 after running out of memory")
    assert ledger_of(store)["tally"] == {"ok": 2, "oom": 1}
    assert "ok*" in output
    assert "CUDA out of memory" in output

    again = sweep_here(file, store, "--no-tracking", expect=1)
    assert again.count("cached") >= 2, "what was ok stays ok"


@pytest.mark.slow
def test_a_process_that_always_dies_is_given_up_and_the_others_go_on(one_ray, store, tmp_path):
    file = write_experiment(tmp_path / "small.yaml", grid={"objective": ["my_objectives:kills_its_process", "cpo"]})
    deadly, harmless = (store.run(cell.run_id) for cell in expand(load_experiment(file)))
    output = sweep_here(file, store, "--no-tracking", expect=1)

    assert harmless.read_status().status == "ok"
    assert deadly.read_status().status == "failed"
    assert "its process was lost 3 times" in output
    assert Path(os.environ["RCRAY_TEST_DEATHS"]).read_text().count("x") == 3, "one attempt and two retries"


def test_a_gpu_that_fails_under_a_cell_changes_no_table(one_ray, store, tmp_path):
    """The process ends, the cell goes on in another, and the next cell does not meet the dead GPU."""
    file = write_experiment(
        tmp_path / "small.yaml", run={**SMALL, "objective": "my_objectives:on_a_gpu"}, grid={"train.seed": [1, 2]}
    )
    trigger = Path(os.environ["RCRAY_TEST_DEATHS"] + ".gpu")
    other = Store.open(tmp_path / "undisturbed")
    shutil.copytree(store.cache, other.cache)
    sweep_here(file, other, "--no-tracking")
    trigger.touch()
    sweep_here(file, store, "--no-tracking")
    assert not trigger.exists(), "it did not fail"
    first, second = (store.run(cell.run_id) for cell in expand(load_experiment(file)))
    assert [run.read_status().status for run in (first, second)] == ["ok", "ok"]
    assert "illegal memory access" in (first.path / "error.log").read_text()
    assert first.read_status().error == "" and not (second.path / "error.log").exists()
    for name in ("results.md", "pathways.md"):
        tables = [place.experiment("small") / "tables" / name for place in (store, other)]
        assert tables[0].read_bytes() == tables[1].read_bytes()


@pytest.mark.slow
def test_a_cell_that_ends_every_gpu_is_given_up(one_ray, store, tmp_path):
    file = write_experiment(tmp_path / "small.yaml", grid={"objective": ["my_objectives:ends_its_gpu", "cpo"]})
    sweep_here(file, store, "--no-tracking", expect=1)
    deadly, sound = (store.run(cell.run_id).read_status() for cell in expand(load_experiment(file)))
    assert (deadly.status, sound.status) == ("failed", "ok")
    assert deadly.error == "its process was lost 3 times: AcceleratorError: CUDA error: device-side assert triggered"


def test_a_broken_gpu_ends_the_sweep_and_fails_no_cell(one_ray, store, tmp_path):
    file = write_experiment(
        tmp_path / "small.yaml",
        run={**SMALL, "objective": "my_objectives:on_a_broken_gpu"},
        grid={"train.seed": [1, 2]},
    )
    broken = Path(os.environ["RCRAY_TEST_DEATHS"] + ".broken")
    broken.touch()
    error = sweep_here(file, store, "--no-tracking", expect=1, error=RcrayError)
    assert error.message.endswith("took 3 processes in a row: CUDA error: uncorrectable ECC error encountered")
    assert "CUDA_VISIBLE_DEVICES" in error.fix
    runs = [store.run(cell.run_id) for cell in expand(load_experiment(file))]
    assert {entry["status"] for entry in ledger_of(store)["cells"]} == {"pending"}
    broken.unlink()  # taken out
    sweep_here(file, store, "--no-tracking")
    assert [run.read_status().status for run in runs] == ["ok", "ok"]


def test_a_failing_cell_does_not_stop_the_others(one_ray, store, tmp_path):
    names = ["my_objectives:squared_hinge", "my_objectives:broken", "my_objectives:not_a_number"]
    file = write_experiment(
        tmp_path / "small.yaml",
        run={**SMALL, "calibration": True},
        grid={"objective": [*names, "dpo"]},
    )
    output = sweep_here(file, store, expect=1)

    by_name = {cell.config.objective.name: store.run(cell.run_id) for cell in expand(load_experiment(file))}
    statuses = {name: run.read_status().status for name, run in by_name.items()}
    assert statuses == dict(zip([*names, "dpo"], ["ok", "failed", "degenerate", "ok"], strict=True))
    assert "this objective always fails" in output
    assert "loss nan on training pair" in by_name[names[2]].read_status().error
    assert "Traceback" in (by_name[names[1]].path / "error.log").read_text()
    _, _, cells = tracked(store)
    assert sorted(r.info.status for r in cells.values()) == ["FAILED", "FAILED", "FINISHED", "FINISHED"]


def test_an_objective_of_ones_own_runs_through_the_quickstart_grid(one_ray, store):
    """Named by its import path, and given nothing else: incentives, band and calibration are all there."""
    file = Path(__file__).parents[2] / "experiments" / "quickstart.yaml"
    overrides = {"objective": "my_objectives:squared_hinge", "data.train_pairs": "64", "data.eval_pairs": "16"}
    settings = [part for name, value in overrides.items() for part in ("--set", f"{name}={value}")]
    sweep_here(file, store, *settings, "--no-tracking")

    cells = expand(load_experiment(file), overrides)
    assert [cell.config.calibration.enabled for cell in cells] == [False, True, True]
    without, with_rc, by_update = (read_dynamics(store.run(cell.run_id).dynamics).to_pandas() for cell in cells)
    for rows in (without, with_rc, by_update):
        assert (rows["d_w"] > rows["d_l"]).all()
        assert rows["rho"].between(-1, 1).all()
    assert (without["log_alpha"] == 0).all()
    assert (with_rc["log_alpha"] < 0).all()  # the winner's pull is the stronger one, so it is reined in
    assert with_rc["slack"].mean() > without["slack"].mean()
    assert (by_update["log_alpha"] != 0).any() and by_update["pathway_predicted"].astype(bool).any()
