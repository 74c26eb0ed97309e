"""`rcray plan --measure` beside what a cell of experiments/real.yaml then takes: time and memory.

One micro-batch is timed, then a cell of a few steps is trained and evaluated in a process of its own. Downloads the
model and the pairs on first use. `--quick`: four steps.
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
from rcray.sweep.grid import Cell, expand
from rcray.sweep.measure import measure
from rcray.train.launch import launch

ROOT = Path(__file__).parents[1]


def cell_of(quick: bool) -> Cell:
    steps = 4 if quick else 12
    settings = {"objective": "dpo", "calibration.enabled": True, "data.train_pairs": 8 * steps, "data.eval_pairs": 16}
    return expand(load_experiment(ROOT / "experiments" / "real.yaml"), settings)[0]


def train(config: RunConfig, store: Store) -> None:
    """The cell itself, in a process of its own: its peak memory is nobody else's."""
    begun = time.perf_counter()
    launch(config, store)
    evaluate_run(config, store)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"{time.perf_counter() - begun} {peak}")


def main() -> None:
    quick = "--quick" in sys.argv
    config = cell_of(quick).config
    if "--train" in sys.argv:
        train(config, Store.open(sys.argv[sys.argv.index("--train") + 1]))
        return
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(folder)
        measure(config, store)  # fills the cache: building the model is nobody's cell
        seen, guessed = measure(config, store), estimate(config)
        command = [sys.executable, "-m", "benchmarks.plan", "--train", folder, *(["--quick"] if quick else [])]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    seconds, peak = map(float, done.stdout.split()[-2:])
    expected = 3600 * seen.hours(config)
    print(f"time    {expected:7.1f} s by plan --measure, {seconds:7.1f} s taken ({expected / seconds - 1:+.0%})")
    print(f"memory  {seen.peak_bytes / 1e9:7.2f} GB by plan --measure, {peak / 1e9:7.2f} GB taken", end="")
    print(f" ({seen.peak_bytes / peak - 1:+.0%})")
    print(f"plan without --measure: {3600 * (guessed.hours or 0):.1f} s of training, {guessed.host_bytes / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
