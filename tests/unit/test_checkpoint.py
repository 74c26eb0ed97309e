"""Checkpoints are whole or absent, verified before use, and restore every bit."""

import json
import logging
import os
import shutil

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from rcray.errors import CheckpointError
from rcray.train import checkpoint
from rcray.train.checkpoint import Progress, Resumable, checkpoints, restore_newest, save_checkpoint, verify


class Setup:
    """A small model with optimizer and scheduler, a few steps along."""

    def __init__(self, seed: int):
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-2)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1 / (1 + step))
        self.state = Resumable(self.model, self.optimizer, self.scheduler)

    def train(self, steps: int) -> None:
        for _ in range(steps):
            loss = (self.model(torch.randn(8, 6)) ** 2).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()

    def save(self, directory, step, keep=2, **known):
        return save_checkpoint(directory, self.state, Progress(step, **known), keep)

    def restore(self, directory):
        return restore_newest(directory, self.state)


@pytest.fixture
def setup():
    trained = Setup(0)
    trained.train(3)
    return trained


def assert_same_state(a: Setup, b: Setup) -> None:
    for name, tensor in a.model.state_dict().items():
        assert torch.equal(tensor, b.model.state_dict()[name]), name
    assert a.scheduler.state_dict() == b.scheduler.state_dict()
    left, right = a.optimizer.state_dict(), b.optimizer.state_dict()
    assert left["param_groups"] == right["param_groups"]
    assert left["state"].keys() == right["state"].keys() != set()
    for key, moments in left["state"].items():
        for name, value in moments.items():
            assert torch.equal(value, right["state"][key][name]), (key, name)


def test_restore_gives_every_bit_back(setup, tmp_path):
    known = {"calibrator": {"log_s_w": 0.1 + 0.2}, "last_probe": [-1.5, -2.5], "seconds": 1 / 3, "tokens": 7}
    setup.save(tmp_path, 3, **known)
    random_state = torch.get_rng_state()
    other = Setup(99)
    progress = other.restore(tmp_path)
    assert progress == Progress(3, **known)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert_same_state(setup, other)


def test_training_goes_on_as_if_never_interrupted(setup, tmp_path):
    setup.save(tmp_path, 3)
    setup.train(4)
    other = Setup(99)
    other.restore(tmp_path)
    other.train(4)
    assert_same_state(setup, other)


def test_nothing_to_restore(setup, tmp_path):
    assert setup.restore(tmp_path) is None
    assert setup.restore(tmp_path / "not made yet") is None


def test_the_newest_k_are_kept(setup, tmp_path):
    for step in (5, 10, 15, 100):
        setup.save(tmp_path, step, keep=2)
    assert [path.name for path in checkpoints(tmp_path)] == ["step-00000015", "step-00000100"]
    assert Setup(1).restore(tmp_path).step == 100


def test_saving_a_step_again_replaces_it(setup, tmp_path):
    setup.save(tmp_path, 5, seconds=1.0)
    setup.train(1)
    setup.save(tmp_path, 5, seconds=2.0)
    other = Setup(1)
    assert other.restore(tmp_path).seconds == 2.0
    assert_same_state(setup, other)
    assert len(checkpoints(tmp_path)) == 1


class Killed(BaseException):
    """Stands for the process ending here."""


@pytest.mark.parametrize("where", ["save_model", "write_json", "measured", "_sync", "replace"])
def test_a_crash_in_the_middle_leaves_no_half_checkpoint(setup, tmp_path, monkeypatch, where):
    setup.save(tmp_path, 5)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    setup.train(1)

    def die(*_args, **_kwargs):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(*((os, "replace") if where == "replace" else (checkpoint, where)), die)
        with pytest.raises(Killed):
            setup.save(tmp_path, 10)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000005"]
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert Setup(1).restore(tmp_path).step == 5


def test_a_kill_that_runs_no_clean_up_is_cleaned_up_at_the_next_start(setup, tmp_path, monkeypatch):
    """`kill -9` runs no `finally`: the half-written directory stays, and is not taken for a checkpoint."""
    setup.save(tmp_path, 5)

    def die(*_args, **_kwargs):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_json", die)
        patch.setattr(shutil, "rmtree", lambda *_args, **_kwargs: None)
        with pytest.raises(Killed):
            setup.save(tmp_path, 10)
    assert len(list(tmp_path.glob(".writing-*"))) == 1
    assert [path.name for path in checkpoints(tmp_path)] == ["step-00000005"]
    assert Setup(1).restore(tmp_path).step == 5
    assert list(tmp_path.glob(".writing-*")) == []


def flip_a_byte(path):
    content = bytearray((path / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (path / "model.safetensors").write_bytes(content)


def truncate_the_optimizer(path):
    (path / "optimizer.pt").write_bytes((path / "optimizer.pt").read_bytes()[:100])


def lose_the_state(path):
    (path / "state.json").unlink()


def change_the_state(path):
    state = json.loads((path / "state.json").read_text())
    (path / "state.json").write_text(json.dumps({**state, "step": 3}))


def lose_the_manifest(path):
    (path / "manifest.json").unlink()


def halve_the_manifest(path):
    (path / "manifest.json").write_text((path / "manifest.json").read_text()[:30])


DAMAGES = [
    flip_a_byte,
    truncate_the_optimizer,
    lose_the_state,
    change_the_state,
    lose_the_manifest,
    halve_the_manifest,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_newest_falls_back_with_a_warning(setup, tmp_path, caplog, damage):
    setup.save(tmp_path, 5)
    at_five = Setup(1)
    at_five.restore(tmp_path)
    setup.train(2)
    damage(setup.save(tmp_path, 10))
    other = Setup(2)
    with caplog.at_level(logging.WARNING):
        progress = other.restore(tmp_path)
    assert progress.step == 5
    assert "step-00000010" in caplog.text and "damaged" in caplog.text
    assert_same_state(at_five, other)


@pytest.mark.parametrize("damage", DAMAGES)
def test_all_damaged_is_a_fresh_start(setup, tmp_path, damage):
    damage(setup.save(tmp_path, 5))
    untouched, other = Setup(2), Setup(2)
    assert other.restore(tmp_path) is None
    for name, tensor in untouched.model.state_dict().items():
        assert torch.equal(tensor, other.model.state_dict()[name])


def test_verify_names_the_file(setup, tmp_path):
    path = setup.save(tmp_path, 5)
    verify(path)
    flip_a_byte(path)
    with pytest.raises(CheckpointError, match=r"step-00000005: model\.safetensors is damaged"):
        verify(path)


def test_the_optimizer_file_cannot_run_code(setup, tmp_path):
    """Read with weights_only: a pickle that calls something is refused."""
    path = setup.save(tmp_path, 5)

    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "made"),))

    torch.save({"optimizer": Evil()}, path / "optimizer.pt")
    manifest = {name: checkpoint.measured(path / name) for name in ("model.safetensors", "optimizer.pt", "state.json")}
    (path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(Exception, match="eights"):
        Setup(1).restore(tmp_path)
    assert not (tmp_path / "made").exists()


# -- adapters


class Adapted(Setup):
    """Only the last layer is trained, as with LoRA."""

    def __init__(self, seed: int, width: int = 1):
        super().__init__(seed)
        torch.manual_seed(0)
        self.model[0] = nn.Linear(6, 5).requires_grad_(False)  # the base is the same in every process
        torch.manual_seed(seed)
        self.model[2] = nn.Linear(5, width)
        self.optimizer = torch.optim.AdamW(self.model[2].parameters(), 1e-2)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda step: 1 / (1 + step))
        self.state = Resumable(self.model, self.optimizer, self.scheduler)


def test_only_what_is_trained_is_saved_and_restored(tmp_path):
    trained = Adapted(0)
    trained.train(3)
    path = trained.save(tmp_path, 3)
    assert set(load_file(path / "model.safetensors")) == {"2.weight", "2.bias"}
    trained.train(4)
    other = Adapted(99)
    assert other.restore(tmp_path).step == 3
    other.train(4)
    assert_same_state(trained, other)


def test_adapters_of_another_model_are_refused(tmp_path):
    Adapted(0).save(tmp_path, 3)
    with pytest.raises(CheckpointError, match="step-00000003: its weights are not those of this model"):
        Adapted(0, width=2).restore(tmp_path)


def test_a_crash_while_saving_adapters_leaves_nothing(tmp_path, monkeypatch):
    def die(*_args, **_kwargs):
        raise Killed

    monkeypatch.setattr(checkpoint, "save_file", die)
    with pytest.raises(Killed):
        Adapted(0).save(tmp_path, 3)
    assert list(tmp_path.iterdir()) == []
