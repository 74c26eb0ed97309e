"""What an installation weighs: seconds of the processor until it answers, and megabytes that pip downloads.

Each time is the least of five whole processes. Packages are those that pip resolves for the core and for each extra
with constraints.txt, into an empty environment, and their size is that of the wheels; torch and what comes with it
(CUDA) is apart. `--quick`: the least of two, and the core alone.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import tomllib
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import unquote, urlsplit

from benchmarks.interleaved import arguments, machine

ROOT = Path(__file__).parents[1]
RCRAY = [sys.executable, "-m", "rcray"]
PROCESSES = {
    "python": [sys.executable, "-c", "pass"],
    "import rcray": [sys.executable, "-c", "import rcray"],
    "from rcray import load_experiment, RunConfig": [
        sys.executable, "-c", "from rcray import load_experiment, RunConfig",
    ],
    "rcray --help": [*RCRAY, "--help"],
    "rcray plan quickstart": [*RCRAY, "plan", "quickstart"],
}  # fmt: skip
#: Seconds of `import torch`, and of the core's names after it: that one process prints both.
AFTER_TORCH = """
import time
began = time.process_time()
import torch
torch_there = time.process_time()
from rcray import Calibrator, UpdateSteering, calibrate
print(torch_there - began, time.process_time() - torch_there)
"""
APART = ("torch", "triton", "nvidia-", "cuda-")  # beginnings of names
NOT_FOR_USERS = ("dev", "docs")


def cpu_seconds(command: Sequence[str], folder: str) -> float:
    """Of one process and its children."""

    def used() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    before = used()
    run(command, folder)
    return used() - before


def run(command: Sequence[str], folder: str) -> str:
    """What it prints."""
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=True
    )
    return done.stdout


def times(rounds: int) -> dict[str, float]:
    """The least of so many, each of them once a round."""
    least: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            taken = {name: cpu_seconds(command, folder) for name, command in PROCESSES.items()}
            torch, core = map(float, run([sys.executable, "-c", AFTER_TORCH], folder).split())
            taken |= {"import torch": torch, "the core's names, after torch": core}
            least = {name: min(seconds, least.get(name, seconds)) for name, seconds in taken.items()}
    return least


def wheels(extra: str) -> dict[str, str]:
    """The address of each package that pip would install, by name."""
    wanted = f"{ROOT}[{extra}]" if extra else str(ROOT)
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet", "--report", "-"]
    said = run([*command, "-c", str(ROOT / "constraints.txt"), wanted], str(ROOT))
    found = {each["metadata"]["name"].lower(): each["download_info"]["url"] for each in json.loads(said)["install"]}
    return {name: url for name, url in found.items() if name != "rcray"}


def size(url: str) -> int:
    """Bytes of a wheel, here or on a server."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        return Path(unquote(parts.path)).stat().st_size
    with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=60) as answer:
        return int(answer.headers["Content-Length"])


def packages(extras: Sequence[str]) -> dict[str, tuple[int, float]]:
    """Packages of an installation with each extra, rcray among them and torch apart, and the MB of the others."""
    found = {extra: wheels(extra) for extra in extras}
    urls = sorted({url for each in found.values() for name, url in each.items() if not name.startswith(APART)})
    with ThreadPoolExecutor(8) as pool:
        sizes = dict(zip(urls, pool.map(size, urls), strict=True))
    counted = {extra: [sizes[url] for url in each.values() if url in sizes] for extra, each in found.items()}
    return {extra: (1 + len(each), sum(each) / 1e6) for extra, each in counted.items()}


def main() -> None:
    options = arguments(__doc__)
    rounds = 2 if options.quick else 5
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [] if options.quick else [name for name in project["optional-dependencies"] if name not in NOT_FOR_USERS]
    seconds, weights = times(rounds), packages(["", *extras])
    print(f"installation ({machine()}; CPU seconds, the least of {rounds})")
    width = max(map(len, seconds))
    for name, least in seconds.items():
        print(f"  {name:{width}s}  {least:5.2f} s")
    print("wheels beside torch")
    for extra, (count, megabytes) in weights.items():
        print(f"  {f'rcray[{extra}]' if extra else 'rcray':{width}s}  {count:3d} packages  {megabytes:5.0f} MB")
    facts = {
        extra or "core": {"packages": count, "MB": round(megabytes)} for extra, (count, megabytes) in weights.items()
    }
    print(
        json.dumps(
            {
                "benchmark": "installation",
                "cpu_seconds": {name: round(least, 3) for name, least in seconds.items()},
                "wheels": facts,
            }
        )
    )


if __name__ == "__main__":
    main()
