"""What goes wrong in a sweep: too little memory, processes that die, Ctrl-C. Real Ray, real command line."""

import json
import os
import signal
import subprocess

import pytest

from rcray.config import load_experiment
from rcray.sweep.grid import expand
from rcray.train.dynamics import read_dynamics
from tests.ray.sweeping import environment, run, sweep_command, wait_for, write_experiment
from tests.small_runs import SMALL

pytestmark = pytest.mark.ray


def ledger_of(store):
    return json.loads((store.experiment("small") / "ledger.json").read_text())


def test_out_of_memory_is_tried_once_more_in_smaller_portions(store, tmp_path):
    file = write_experiment(
        tmp_path / "small.yaml",
        grid={"objective": [{"name": "my_objectives:hungry", "params": {"most": most}} for most in (2, 1, 4)]},
    )
    fits_in_halves, never_fits, fits = (store.run(cell.run_id) for cell in expand(load_experiment(file)))
    output = run([*sweep_command(file, store), "--no-tracking"], expect=1)

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

    again = run([*sweep_command(file, store), "--no-tracking"], expect=1)
    assert again.count("cached") >= 2, "what was ok stays ok"


@pytest.mark.slow
def test_a_process_that_always_dies_is_given_up_and_the_others_go_on(store, tmp_path):
    file = write_experiment(tmp_path / "small.yaml", grid={"objective": ["my_objectives:kills_its_process", "cpo"]})
    deadly, harmless = (store.run(cell.run_id) for cell in expand(load_experiment(file)))
    deaths = tmp_path / "deaths"
    output = run([*sweep_command(file, store), "--no-tracking"], expect=1, RCRAY_TEST_DEATHS=str(deaths))

    assert harmless.read_status().status == "ok"
    assert deadly.read_status().status == "failed"
    assert "its process was lost 3 times" in output
    assert deaths.read_text().count("x") == 3, "one attempt and two retries"


@pytest.mark.slow
def test_ctrl_c_stops_cleanly_and_the_same_command_continues(store, tmp_path):
    settings = {**SMALL, "data": {"train_pairs": 640, "eval_pairs": 16}}
    file = write_experiment(tmp_path / "small.yaml", run=settings, grid={"objective": ["dpo", "cpo"]})
    runs = [store.run(cell.run_id) for cell in expand(load_experiment(file))]
    command = [*sweep_command(file, store), "--no-tracking"]
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        wait_for(lambda: any(r.read_status().step >= 6 for r in runs), process)
        os.kill(process.pid, signal.SIGINT)
        output = process.communicate(timeout=90)[0]
    finally:
        process.kill()
    assert process.returncode == 130, output
    assert "Traceback" not in output
    tally = ledger_of(store)["tally"]
    assert tally.get("pending", 0) >= 1
    assert "running" not in tally

    run(command)
    assert {r.read_status().status for r in runs} == {"ok"}
    for found in runs:
        assert read_dynamics(found.dynamics)["step"].to_pylist() == list(range(1, 81)), "every step once"
