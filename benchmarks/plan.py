"""`rcray plan --measure` beside what a cell of experiments/real.yaml then takes: time and memory.

One micro-batch is timed, then the cell (DPO by the update) is trained and evaluated, each in a process of its own, on
one thread. Both are seconds of the processor: on an idle machine those of the clock, and neighbours do not count.
Downloads the model and the pairs on first use. `--quick`: four steps.
"""

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rcray.config import RunConfig, load_experiment
from rcray.evaluate.stage import evaluate_run
from rcray.store import Store
from rcray.sweep.cost import estimate
from rcray.sweep.grid import expand
from rcray.sweep.measure import measure_apart
from rcray.train.launch import launch

ROOT = Path(__file__).parents[1]


def cell_of(quick: bool) -> RunConfig:
    """DPO by the update: reference, steps, looks, probes, evaluation, all of it."""
    pairs = 16 if quick else 112
    cells = expand(
        load_experiment(ROOT / "experiments" / "real.yaml"),
        {"data.train_pairs": pairs, "data.eval_pairs": 16 if quick else 96},
    )
    configs = (cell.config for cell in cells)
    return next(c for c in configs if c.objective.name == "dpo" and c.calibration.steers_by_update)


def train(config: RunConfig, store: Store) -> None:
    """The cell itself, in a process of its own: its peak memory is nobody else's."""
    begun, wall = time.process_time(), time.perf_counter()
    launch(config, store)
    evaluate_run(config, store)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"{time.process_time() - begun} {time.perf_counter() - wall} {peak}")


def main() -> None:
    quick = "--quick" in sys.argv
    config = cell_of(quick)
    if "--train" in sys.argv:
        train(config, Store.open(sys.argv[sys.argv.index("--train") + 1]))
        return
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(folder)
        seen, guessed = measure_apart(config, store, time.process_time), estimate(config)
        command = [sys.executable, "-m", "benchmarks.plan", "--train", folder, *(["--quick"] if quick else [])]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    seconds, wall, peak = map(float, done.stdout.split()[-3:])
    expected = 3600 * seen.hours(config)
    print(
        f"time    {expected:7.1f} s by plan --measure, {seconds:7.1f} s taken ({expected / seconds - 1:+.0%})", end=""
    )
    print(f"; {wall:.0f} s by the clock")
    print(f"memory  {seen.peak_bytes / 1e9:7.2f} GB by plan --measure, {peak / 1e9:7.2f} GB taken", end="")
    print(f" ({seen.peak_bytes / peak - 1:+.0%})")
    print(f"plan without --measure: {3600 * (guessed.hours or 0):.1f} s of training, {guessed.host_bytes / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
