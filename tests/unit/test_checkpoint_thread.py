"""Checkpoints written beside the training: each is of its moment, and none outlives the run's own last word."""

import threading
import time
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from rcray.config import run_id
from rcray.errors import DegenerateRunError
from rcray.records.states import State
from rcray.train import checkpoint, loop
from rcray.train.checkpoint import CheckpointWriter, Progress, Resumable, Snapshot, restore_newest
from rcray.train.loop import Job, worker_loop
from tests.small_runs import small_config


@pytest.fixture
def one_worker():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def train(model, optimizer, scheduler):
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    scheduler.step()


def held(model, optimizer):
    """Everything that changes in training, by name, copied."""
    whole = lambda t: getattr(t, "full_tensor", lambda: t)().detach().clone()  # noqa: E731
    moments = {f"{i} {name}": whole(t) for i, s in enumerate(optimizer.state.values()) for name, t in s.items()}
    return {**{name: whole(p) for name, p in model.named_parameters()}, **moments}


def test_a_gathered_checkpoint_is_of_its_moment_too(one_worker, tmp_path):
    """What FSDP leaves whole on each worker goes on changing while a thread writes: head, adapters, moments, rate."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    fully_shard(model[0], mesh=init_device_mesh("cpu", (1,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1))
    state = Resumable(model, optimizer, scheduler)
    train(model, optimizer, scheduler)
    kept, random, go = held(model, optimizer), torch.get_rng_state(), threading.Event()
    writer = CheckpointWriter(beside=True)
    writer.thread.submit(go.wait)  # the disk is slow
    gathered = Snapshot.gather(model, optimizer)
    writer.save(tmp_path, state, Progress(step=1), 2, gathered, then=lambda: None)
    train(model, optimizer, scheduler)
    torch.rand(3)
    go.set()
    writer.wait()
    assert restore_newest(tmp_path, state).step == 1
    assert scheduler.last_epoch == 1
    assert torch.equal(torch.get_rng_state(), random)
    found = held(model, optimizer)
    assert found.keys() == kept.keys()
    assert [name for name in kept if not torch.equal(kept[name], found[name])] == []


@pytest.fixture
def slow_disk(monkeypatch):
    """Every run writes its checkpoints beside the training, and each takes its time; how many are under way."""
    write, under_way = checkpoint.save_checkpoint, []

    def slowly(*args):
        under_way.append(args)
        time.sleep(0.5)
        written = write(*args)
        under_way.pop()
        return written

    monkeypatch.setattr(checkpoint, "save_checkpoint", slowly)
    monkeypatch.setattr(loop, "CheckpointWriter", lambda *, beside: CheckpointWriter(beside=True))
    return under_way


@pytest.mark.parametrize(("error", "state"), [(DegenerateRunError, State.DEGENERATE), (KeyboardInterrupt, None)])
def test_the_last_word_of_a_run_is_its_own(store, monkeypatch, slow_disk, error, state):
    """A checkpoint under way when a run ends says `running` before, not after; the lock is held until then."""
    step = loop.optimizer_step

    def broken(state, batches, number, fresh):
        if number == 3:
            raise error("lost")
        return step(state, batches, number, fresh)

    monkeypatch.setattr(loop, "optimizer_step", broken)
    config = small_config(execution={"checkpoint_every": 2})
    key = run_id(config)
    with pytest.raises(error):
        worker_loop({"job": Job(config, store, key, "first")})
    assert slow_disk == []
    status = store.run(key).read_status()
    assert status.status is (state or State.RUNNING)
    assert status.step == 2, "and it knows of the checkpoint"
    assert len(list(store.run(key).checkpoints.iterdir())) == 1


def test_a_checkpoint_does_not_bring_an_ended_attempt_back(store):
    """Another worker of the group may have said why it ended while this one was writing."""
    config = small_config()
    training = loop.prepare(Job(config, store, run_id(config), "first"), 0, 1)
    training.start()
    run, running = training.job.run, training.job.run.read_status()
    for before in (replace(running, status=State.FAILED), replace(running, attempt="second")):
        run.write_status(before)
        training._push(training._status(State.RUNNING))
        assert run.read_status() == before
    run.write_status(running)
    training.progress.step = 2
    training._push(training._status(State.RUNNING))
    assert run.read_status().step == 2
