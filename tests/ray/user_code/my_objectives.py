"""Objectives as a user would write them: found by import path, nothing else declared."""

import os
import signal
import time

import torch


def squared_hinge(pairs, gamma=1.0):
    """(max(0, gamma - m~))^2 - 3 z_w: the winner is pulled harder than the loser is pushed."""
    return torch.relu(gamma - pairs.mt).square() - 3.0 * pairs.z_w


def broken(pairs):
    raise RuntimeError("this objective always fails")


def not_a_number(pairs):
    return pairs.mt * float("nan")


def hungry(pairs, most=2):
    """Takes more memory than there is as soon as a micro-batch has more than `most` pairs."""
    if len(pairs.z_w) > most:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate more than there is.")
    return torch.nn.functional.softplus(-pairs.mt)


def kills_its_process(pairs):
    """Ends the process without a word, as a kernel short of memory does; counts how often."""
    with open(os.environ["RCRAY_TEST_DEATHS"], "a") as file:
        file.write("x")
    os.kill(os.getpid(), signal.SIGKILL)


_calls, _gpu_is_lost = 0, False


def waits(pairs, beta=0.1, after=30):
    """DPO that stops some steps in, for as long as a file is there."""
    global _calls
    _calls += 1
    while _calls > after and os.path.exists(os.environ.get("RCRAY_TEST_GATE", "")):
        time.sleep(0.05)
    return torch.nn.functional.softplus(-beta * pairs.mt)


def on_a_gpu(pairs):
    """DPO on a GPU that fails once, where a file asks for it, some steps in; nothing works there afterwards."""
    global _calls, _gpu_is_lost
    _calls += 1
    trigger = os.environ["RCRAY_TEST_DEATHS"] + ".gpu"
    if _calls == 10 and os.path.exists(trigger):
        os.remove(trigger)
        _gpu_is_lost = True
    if _gpu_is_lost:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
    return torch.nn.functional.softplus(-0.1 * pairs.mt)


def ends_its_gpu(pairs):
    """A kernel that fails on any GPU."""
    raise torch.AcceleratorError("CUDA error: device-side assert triggered")


def on_a_broken_gpu(pairs):
    """DPO on a GPU that never works, for as long as a file is there."""
    if os.path.exists(os.environ["RCRAY_TEST_DEATHS"] + ".broken"):
        raise torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered")
    return torch.nn.functional.softplus(-0.1 * pairs.mt)
