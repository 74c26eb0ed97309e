"""`make gpu-check`: what it says without a GPU, and of cells that ran on one."""

import sys
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from benchmarks import gpu_check
from rcray.config import load_experiment, run_id
from rcray.models.precision import Precision
from rcray.records.states import State
from rcray.records.status import Device, RunStatus
from rcray.sweep.grid import expand

ATTENTION = "sdpa: plain rows by flash, packed rows by efficient"


@pytest.fixture
def called(monkeypatch, tmp_path):
    """The commands it runs, each of which ends as told: well, unless another code is put in."""
    commands, codes = [], {"doctor": 0, "sweep": 0}
    monkeypatch.setattr(gpu_check, "cards_have_bfloat16", lambda: True)

    def run(command, **options):
        if command[1] not in codes:
            return real(command, **options)
        commands.append(command[1])
        return SimpleNamespace(returncode=codes[command[1]])

    real = gpu_check.subprocess.run
    monkeypatch.setattr(gpu_check.subprocess, "run", run)
    monkeypatch.setattr(gpu_check, "why_no_gpu", lambda: None)
    monkeypatch.setattr(sys, "argv", ["gpu_check", "--store", str(tmp_path)])
    return commands, codes


def test_without_a_gpu_it_says_what_is_missing(monkeypatch, capsys, called):
    monkeypatch.setattr(
        gpu_check, "why_no_gpu", lambda: ("torch is built for CPUs", "install the build for your driver")
    )
    assert gpu_check.main() == 2
    said = capsys.readouterr()
    assert said.err == "no GPU can be used: torch is built for CPUs\n  fix: install the build for your driver\n"
    assert "for a bug report, all of this:\nPython 3." in said.out


@pytest.mark.parametrize(("doctor", "sweep", "code"), [(1, 0, 1), (0, 2, 2), (1, 2, 2), (0, 0, 0)])
def test_what_the_doctor_finds_does_not_keep_the_cells_from_being_tried(capsys, called, doctor, sweep, code):
    """A server that is down, a full disk, a card without bfloat16; the worse of both is said in the end."""
    commands, codes = called
    codes |= {"doctor": doctor, "sweep": sweep}
    assert gpu_check.main() == code and commands == ["doctor", "sweep"]
    assert "for a bug report, all of this:\nPython 3." in capsys.readouterr().out


def test_cards_without_bfloat16_are_checked_in_float32(monkeypatch, called, tmp_path):
    """As a T4 is: what the cells ask for would be refused there, one by one."""
    asked, run = [], gpu_check.subprocess.run
    monkeypatch.setattr(
        gpu_check.subprocess, "run", lambda command, **how: asked.append(command) or run(command, **how)
    )
    monkeypatch.setattr(gpu_check, "cards_have_bfloat16", lambda: False)
    assert gpu_check.main() == 0
    (sweep,) = (command for command in asked if command[1] == "sweep")
    assert sweep[-4:] == ["--set", "train.precision=auto", "--set", "model.dtype=float32"]
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    configs = [cell.config for cell in expand(load_experiment(gpu_check.FILE), gpu_check.WITHOUT_BFLOAT16)]
    assert len(configs) == 6 and {config.model.method for config in configs} == {"full", "lora", "qlora"}
    assert {Precision.of(config, torch.device("cuda", 0)).name for config in configs} == {"torch.float32"}
    status = RunStatus(run_id(configs[0]), status=State.OK, step=8, seconds=4.0)
    store = gpu_check.fresh_store(tmp_path)
    store.run(status.run_id).write_status(status)
    assert ": ok, 0.50 s a step" in gpu_check.cells(store, gpu_check.WITHOUT_BFLOAT16)[0]


@pytest.mark.parametrize(("native", "have"), [((True, True), True), ((True, False), False)])
def test_every_card_is_asked(monkeypatch, native, have):
    at = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(native))
    monkeypatch.setattr(torch.cuda, "device", lambda index: at.append(index) or nullcontext())
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: native[at[-1]])
    assert gpu_check.cards_have_bfloat16() == have


def test_a_second_check_finds_nothing_done(called, tmp_path):
    """A cell that is done would be taken as it is."""
    store = gpu_check.fresh_store(tmp_path)
    for folder in (store.root / "runs" / "abc", store.cache):
        folder.mkdir(parents=True)
        (folder / "file").write_text("")
    (tmp_path / "runs").mkdir()
    assert gpu_check.main() == 0 and called[0] == ["doctor", "sweep"]
    assert not (store.root / "runs" / "abc").exists()
    assert (store.cache / "file").exists() and (tmp_path / "runs").exists()


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
