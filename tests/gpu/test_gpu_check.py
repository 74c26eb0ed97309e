"""`make gpu-check`: what it says without a GPU, and of cells that ran on one."""

import sys

from benchmarks import gpu_check
from rcray.config import load_experiment
from rcray.records.states import State
from rcray.records.status import Device, RunStatus
from rcray.sweep.grid import expand

ATTENTION = "sdpa: plain rows by flash, packed rows by efficient"


def test_without_a_gpu_it_says_what_is_missing(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(
        gpu_check, "why_no_gpu", lambda: ("torch is built for CPUs", "install the build for your driver")
    )
    monkeypatch.setattr(sys, "argv", ["gpu_check", "--store", str(tmp_path)])
    assert gpu_check.main() == 2
    assert capsys.readouterr().err == (
        "no GPU can be used: torch is built for CPUs\n  fix: install the build for your driver\n"
    )


def test_the_page_says_what_each_cell_did(store):
    first, second, *others = expand(load_experiment(gpu_check.FILE))
    assert len(others) == 4
    card = Device("L40S", "bfloat16", ATTENTION, 2_500_000_000)
    store.run(first.run_id).write_status(RunStatus(first.run_id, status=State.OK, step=8, seconds=4.0, device=card))
    store.run(second.run_id).write_status(RunStatus(second.run_id, status=State.FAILED, error="CUDA error: unknown"))
    lines = gpu_check.cells(store)
    assert f"ok, 0.50 s a step, bfloat16, {ATTENTION}, 2.50 GB (plan: " in lines[0]
    assert lines[1].endswith("failed: CUDA error: unknown")
    assert all(line.endswith("pending") for line in lines[2:])


def test_the_machine_is_described():
    python, packages, *_ = gpu_check.machine()
    assert python.startswith("Python 3.") and "CUDA" in python
    assert all(name in packages for name in ("torch ", "transformers ", "bitsandbytes ", "ray "))
