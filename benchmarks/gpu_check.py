"""`make gpu-check`: six small cells on a GPU, and one page that says what they did, for you or for a bug report.

Runs `rcray doctor` and experiments/smoke-gpu.yaml, then prints versions, driver, cards, and for each cell its seconds
per step, the precision and attention kernels that ran, and the memory it held beside what `rcray plan` says. Every call
trains them anew, in a store of its own within the one given; weights and data are kept. Whatever doctor finds broken,
the cells are tried: it ends with the worse of both exit codes. On cards that have no bfloat16 the cells are computed in
float32. Without a GPU it says what is missing, and ends with 2. Versions and cards are printed whatever was found.
"""

import argparse
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

import torch

from rcray.config import load_experiment
from rcray.models.cards import computes_bfloat16
from rcray.models.device import why_no_gpu
from rcray.store import Store
from rcray.sweep.cost import estimate
from rcray.sweep.grid import expand

FILE = Path(__file__).parents[1] / "experiments" / "smoke-gpu.yaml"
#: In the place of the bfloat16 that the cells ask for.
WITHOUT_BFLOAT16 = {"train.precision": "auto", "model.dtype": "float32"}
PACKAGES = ("rcray", "torch", "transformers", "peft", "bitsandbytes", "ray")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", default="rcray-store")
    store = fresh_store(Path(parser.parse_args().store))
    rcray = Path(sys.executable).with_name("rcray")
    found = subprocess.run([str(rcray), "doctor", "--store", str(store.root)], check=False).returncode
    if problem := why_no_gpu():
        print(f"no GPU can be used: {problem[0]}\n  fix: {problem[1]}", file=sys.stderr)
        return report(machine(), 2)
    changed = {} if cards_have_bfloat16() else WITHOUT_BFLOAT16
    settings = [word for path, value in changed.items() for word in ("--set", f"{path}={value}")]
    sweep = [str(rcray), "sweep", str(FILE), "--store", str(store.root), *settings]
    code = max(found, subprocess.run(sweep, check=False).returncode)
    return report([*machine(), *cells(store, changed)], code)


def cards_have_bfloat16() -> bool:
    """Whether all of them compute in it by themselves."""
    return all(computes_bfloat16(index) for index in range(torch.cuda.device_count()))


def fresh_store(parent: Path) -> Store:
    """A store without runs: a cell that is done is not done again, and would check nothing."""
    store = Store.open(parent / "gpu-check")
    for found in store.root.iterdir():
        if found != store.cache:
            shutil.rmtree(found) if found.is_dir() else found.unlink()
    return Store.open(store.root)


def report(lines: Sequence[str], code: int) -> int:
    """Prints what a bug report needs."""
    print("\n".join(["", "for a bug report, all of this:", *lines]))
    return code


def machine() -> list[str]:
    """Versions, driver, cards."""
    lines = [f"Python {platform.python_version()}, {platform.platform()}, CUDA {torch.version.cuda}"]
    lines.append(", ".join(f"{name} {metadata.version(name)}" for name in PACKAGES))
    if tool := shutil.which("nvidia-smi"):
        query = "--query-gpu=index,name,driver_version,memory.total,memory.used,ecc.errors.uncorrected.volatile.total"
        seen = subprocess.run([tool, query, "--format=csv,noheader"], capture_output=True, text=True, check=False)
        lines += (seen.stdout or seen.stderr).strip().splitlines()
    return lines


def cells(store: Store, changed: Mapping[str, str] | None = None) -> list[str]:
    """What each cell did, with these settings in the place of its own."""
    lines = []
    for cell in expand(load_experiment(FILE), changed):
        status = store.run(cell.run_id).read_status()
        said = f"{cell.label} [{cell.run_id}]: {status.status}"
        if status.step:
            said += f", {status.seconds / status.step:.2f} s a step"
        if status.device:
            planned = estimate(cell.config).train_bytes or 0.0
            said += f", {status.device.precision}, {status.device.attention}"
            said += f", {status.device.peak_bytes / 1e9:.2f} GB (plan: {planned / 1e9:.2f} with the longest pairs)"
        lines.append(f"{said}{': ' + status.error if status.error else ''}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
