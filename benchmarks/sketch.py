"""What a sketch of the head's scores buys at a vocabulary of 152k words.

direct   the head's scores summed exactly, [vocabulary, hidden] per side: what several workers or micro-batches need,
         because a Gram matrix of one micro-batch's tokens does not add up
sketch   the same sums through 32 random columns

A process of its own measures the memory of each, beyond that of the likelihoods alone. All-reduce bytes are those of
one window: both sides' sums in float32.
"""

import json
import multiprocessing
import resource

import torch

from benchmarks.interleaved import arguments, machine, measure, table
from rcray.calibration.head_scores import HeadSums
from rcray.models.head import SKETCH_COLUMNS, head_pass, sketch_projection

VOCABULARY = 152_064  # Qwen2.5-7B's
AT_7B = {"direct": 3584, "sketch": SKETCH_COLUMNS}  # columns


def scoring(hidden: int, tokens: int, columns: int | None):
    """One pass of a trained head, its scores summed on the way; `columns` 0: no scores."""
    torch.manual_seed(0)
    head = torch.nn.Linear(hidden, VOCABULARY, bias=False)
    states = torch.randn(tokens, hidden, requires_grad=True)
    targets = torch.randint(0, VOCABULARY, (tokens,))
    projection = sketch_projection(head.weight, columns) if columns else None

    def run() -> None:
        sums = None if columns == 0 else HeadSums(torch.ones(tokens), tokens // 2, projection)
        head_pass(head, states, targets, scores=True, on_residuals=sums)

    return run


def _peak(hidden: int, tokens: int, columns: int | None, answer) -> None:
    scoring(hidden, tokens, columns)()
    answer.put(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def peak_mb(hidden: int, tokens: int, columns: int | None) -> float:
    """Peak memory of a fresh process that scores once, MB."""
    context = multiprocessing.get_context("spawn")
    answer = context.Queue()
    process = context.Process(target=_peak, args=(hidden, tokens, columns, answer))
    process.start()
    peak = answer.get()
    process.join()
    return float(peak)


def main() -> None:
    quick = arguments(__doc__).quick
    hidden, tokens, rounds = (128, 32, 3) if quick else (512, 128, 9)
    ways = {"none": 0, "direct": None, "sketch": SKETCH_COLUMNS}
    times = measure({name: scoring(hidden, tokens, columns) for name, columns in ways.items()}, rounds)
    print(f"sketch ({machine()}; median of {rounds} interleaved rounds)")
    print(table(f"the head's pass, {VOCABULARY:,} words x {hidden}, {tokens} answer tokens", times, "none"))
    peaks = {name: peak_mb(hidden, tokens, columns) for name, columns in ways.items()}
    memory = {name: peaks[name] - peaks["none"] for name in ("direct", "sketch")}
    for name, mb in memory.items():
        print(f"  memory of the scores, {name}: {mb:.0f} MB")
    reduced = {name: 2 * 4 * VOCABULARY * columns for name, columns in AT_7B.items()}
    print("  held and all-reduced for every window by a 7B model of this vocabulary:")
    print("  " + ", ".join(f"{name} {count / 2**20:,.0f} MB" for name, count in reduced.items()))
    ratios = {
        "time": round(times.ratio("sketch", "direct"), 4),
        "memory": round(memory["sketch"] / memory["direct"], 4),
        "all-reduce bytes at 7B": round(reduced["sketch"] / reduced["direct"], 5),
    }
    print(json.dumps({"benchmark": "sketch", "sketch over direct": ratios, "vocabulary": VOCABULARY, "hidden": hidden}))


if __name__ == "__main__":
    main()
