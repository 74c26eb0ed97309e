"""Peak memory and time of log-probabilities: the head in chunks against plain logits.

1,024 answer tokens, forward and backward, trainable head (full fine-tuning) and frozen head (LoRA). Each memory figure
is the growth of the peak resident set in a process of its own; times are interleaved in one process.
"""

import json
import multiprocessing
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import nn

from benchmarks.interleaved import arguments, measure, report
from rcray.models.head import head_logps

TOKENS = 1024


def make(vocabulary: int, hidden: int, frozen: bool) -> tuple[nn.Linear, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    head = nn.Linear(hidden, vocabulary, bias=False).requires_grad_(not frozen)
    return head, torch.randn(TOKENS, hidden, requires_grad=True), torch.randint(0, vocabulary, (TOKENS,))


def plain(head: nn.Linear, states: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return head(states).float().log_softmax(-1).gather(1, targets[:, None]).squeeze(1)


def reset_peak() -> int:
    """Sets the peak resident set of this process back to the present one (Linux), and returns it in kB."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak_kilobytes()


def peak_kilobytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status).group(1))  # type: ignore[union-attr]


PATHS = {"plain": plain, "chunked": head_logps}


def forward_backward(run: Callable[..., torch.Tensor], inputs: tuple) -> None:
    run(*inputs).sum().backward()


def peak_megabytes(path: str, vocabulary: int, hidden: int, frozen: bool) -> float:
    """Growth of this process's peak memory over one forward and backward."""
    forward_backward(PATHS[path], make(vocabulary // 64, hidden, frozen))  # the libraries' own start-up
    inputs = make(vocabulary, hidden, frozen)
    before = reset_peak()
    forward_backward(PATHS[path], inputs)
    return peak_kilobytes() / 1024 - before / 1024


def main() -> None:
    quick = arguments(__doc__).quick
    vocabulary, hidden = (16_384, 256) if quick else (50_304, 512)
    fresh = multiprocessing.get_context("spawn")
    variants, memory = {}, {}
    for frozen in (False, True):
        name = "frozen head" if frozen else "trained head"
        inputs = make(vocabulary, hidden, frozen)
        variants |= {f"{path}, {name}": partial(forward_backward, run, inputs) for path, run in PATHS.items()}
        for path in PATHS:
            with fresh.Pool(1) as pool:  # a peak never falls: each figure needs a process of its own
                memory[f"{path}, {name}"] = pool.apply(peak_megabytes, (path, vocabulary, hidden, frozen))
    times = measure(variants, rounds=3 if quick else 7)
    print("peak memory:", ", ".join(f"{name} {value:.0f} MB" for name, value in memory.items()))
    ratios = {
        name: round(memory[f"chunked, {name}"] / memory[f"plain, {name}"], 4)
        for name in ("trained head", "frozen head")
    }
    print("peak memory, chunked over plain:", json.dumps(ratios))
    sizes = {"vocabulary": vocabulary, "hidden": hidden, "tokens": TOKENS}
    report("chunked_head", times, "plain, trained head", memory_ratios=ratios, **sizes)


if __name__ == "__main__":
    main()
