"""rcray's optimizer step against TRL's DPOTrainer: same model, LoRA, pairs, batch, cached reference, losses.

trl          trainer.training_step on the batch its own collator makes, clip, AdamW step; no band, no calibration
rcray, off   rcray's step without calibration; the band is recorded
rcray, RC    with calibration

Prompts are as long as a response, and short (an eighth of it). Losses on the same batch are checked to 1e-4 before
anything is timed. Memory is the peak above what the process holds between steps, each in a process of its own.
"""

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.interleaved import arguments, machine, measure, table
from benchmarks.steps import HUNDRED_MILLION, TINY, Setting, Size
from benchmarks.trl_side import trl_batch, trl_trainer
from rcray.train.record import row_of
from rcray.train.step import StepState, optimizer_step

SIZES = {"tiny": TINY, "hundred-million": HUNDRED_MILLION}
RATE = 1e-6


def trl_step(setting: Setting) -> tuple[Callable[[], object], Callable[[], float]]:
    """TRL's step, and its loss without one."""
    trainer = trl_trainer(setting.state(calibrated=False).policy.model, setting.size.vocabulary, setting.pairs, RATE)
    batch = trl_batch(trainer, setting.encoded, setting.reference)
    trainer.create_optimizer()
    model, optimizer = trainer.model, trainer.optimizer
    trained = [p for p in model.parameters() if p.requires_grad]
    model.train()

    def run() -> None:
        optimizer.zero_grad()
        trainer.training_step(model, dict(batch))
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()

    def loss() -> float:
        with torch.no_grad():
            return float(trainer.compute_loss(model, dict(batch)))

    return run, loss


def our_step(state: StepState, setting: Setting) -> Callable[[], dict[str, Any]]:
    """rcray's step on the same batch."""
    return lambda: optimizer_step(state, [setting.batch], 1)


def make(size: Size, prompt: int, answer: int, pairs: int) -> Setting:
    """LoRA on random weights; the reference is a little off, so that the loss is not log 2."""
    setting = Setting.of("lora", size, pairs=pairs, prompt=prompt, answer=answer, sharing="auto")
    setting.reference.sum_w.sub_(torch.linspace(0, 2, pairs, dtype=torch.float64))
    return setting


def check_losses(setting: Setting) -> float:
    """The difference of the two losses on the same batch."""
    _, theirs = trl_step(setting)
    ours = row_of(optimizer_step(setting.state(calibrated=False), [setting.batch], 1))["loss"]
    gap = abs(ours - theirs())
    if gap > 1e-4:
        raise SystemExit(f"losses differ by {gap}: rcray {ours}, TRL {theirs()}")
    return gap


def peak(variant: str, *sizes: object) -> float:
    """MB a variant's steps need above what its process held before."""
    command = [sys.executable, "-m", "benchmarks.against_trl", "--memory", variant, *map(str, sizes)]
    # Freed blocks go back to the system at once: what the process holds is what it uses.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return float(done.stdout.split()[-1])


def measure_memory(variant: str, name: str, prompt: str, answer: str, pairs: str) -> None:
    """In a process of its own, after one step: the peak of two more above what is held between them."""
    setting = make(SIZES[name], int(prompt), int(answer), int(pairs))
    run = trl_step(setting)[0] if variant == "trl" else our_step(setting.state(calibrated=variant == "RC"), setting)
    run()
    for p in setting.base.parameters():
        p.grad = None
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts again
    before = _kilobytes("VmRSS")
    for _ in range(2):
        run()
    print((_kilobytes("VmHWM") - before) / 1024)


def _kilobytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1])


def main() -> None:
    if sys.argv[1:2] == ["--memory"]:
        measure_memory(*sys.argv[2:])
        return
    quick = arguments(__doc__).quick
    import trl

    answer, pairs, rounds = (48, 2, 3) if quick else (128, 2, 9)
    speed: dict[str, dict[str, float]] = {}
    memory: dict[str, dict[str, float]] = {}
    print(f"against_trl (TRL {trl.__version__}; {machine()}; median of {rounds} interleaved rounds)")
    for name, size in SIZES.items():
        if quick and name != "tiny":
            continue
        for kind, prompt in (("prompt as long as a response", answer), ("short prompt", answer // 8)):
            setting = make(size, prompt, answer, pairs)
            gap = check_losses(setting)
            variants: dict[str, Callable[[], object]] = {
                "trl": trl_step(setting)[0],
                "rcray, off": our_step(setting.state(calibrated=False), setting),
                "rcray, RC": our_step(setting.state(calibrated=True), setting),
            }
            times = measure(variants, rounds)
            title = f"{name}, {kind} (P {prompt}, W = L {answer}, {pairs} pairs; losses agree to {gap:.0e})"
            print(table(title, times, "trl"))
            key = f"{name}, {kind}"
            speed[key] = {v: round(times.ratio("trl", v), 3) for v in times if v != "trl"}
            peaks = {v: peak(v, name, prompt, answer, pairs) for v in ("trl", "off", "RC")}
            print("  peak memory of a step: " + ", ".join(f"{v} {mb:.0f} MB" for v, mb in peaks.items()))
            memory[key] = {v: round(mb / peaks["trl"], 3) for v, mb in peaks.items() if v != "trl"}
    ratios = {"pairs per second over TRL's": speed, "peak memory over TRL's": memory}
    print(json.dumps({"benchmark": "against_trl", "ratios": ratios, "trl": trl.__version__}))


if __name__ == "__main__":
    main()
