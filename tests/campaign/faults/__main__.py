"""`python -m tests.campaign.faults [--only NAME]`: every fault, and whether the tables came out the same."""

import argparse
import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.campaign.faults.campaign import Fault, Result

ROOT = Path(__file__).parents[3]
JOBS = 2  # a fault waits for processes to start most of its time


def main() -> int:
    given = _arguments()
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported: sums in one order
    for name in ("MLFLOW_TRACKING_URI", "RAY_ADDRESS"):
        os.environ.pop(name, None)

    from tests.campaign.faults.campaign import BY_NAME, FAULTS, Campaign

    if unknown := set(given.only or ()) - BY_NAME.keys():
        sys.exit(f"no fault {', '.join(sorted(unknown))}; there are {', '.join(BY_NAME)}")
    chosen = [BY_NAME[name] for name in given.only] if given.only else list(FAULTS)
    if given.inside:
        Campaign(given.inside, given.models).run_inside(chosen[0])
        return 0
    if given.job:
        _serve()
        return 0
    began = time.monotonic()
    return _conclude(_side_by_side(chosen, min(given.jobs, len(chosen))), time.monotonic() - began)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", metavar="NAME", action="append", help="a fault by name; repeatable")
    parser.add_argument("--jobs", type=int, default=JOBS, help=f"faults at once ({JOBS})")
    parser.add_argument("--job", action="store_true", help=argparse.SUPPRESS)  # names come in, results go out
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)  # of a mount namespace: the campaign's folder
    parser.add_argument("--models", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def _side_by_side(chosen: "Sequence[Fault]", jobs: int) -> "list[Result]":
    """Jobs take faults in order as they become free; each is a process with an undisturbed sweep of its own."""
    from tests.campaign.faults.campaign import Result

    waiting = queue.SimpleQueue[str]()
    for fault in chosen:
        waiting.put(fault.name)
    results: dict[str, Result] = {}

    def work() -> None:
        command = [sys.executable, "-m", "tests.campaign.faults", "--job"]
        with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as job:
            assert job.stdin and job.stdout
            with contextlib.suppress(queue.Empty, BrokenPipeError):  # all done, or a job that died
                while True:
                    name = waiting.get_nowait()
                    results[name] = Result(name, "", False, 0.0, "its job ended early")
                    print(name, file=job.stdin, flush=True)
                    if answer := job.stdout.readline():
                        results[name] = Result(**json.loads(answer))
                    print(results[name].line(), flush=True)
                    if results[name].problem:
                        print(f"  {results[name].problem}", flush=True)

    threads = [threading.Thread(target=work) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    early = "not tried: the jobs ended early"
    return [results.get(fault.name) or Result(fault.name, "", False, 0.0, early) for fault in chosen]


def _serve() -> None:
    """A job: a fault's name on stdin, its result as JSON on stdout, until there are no more."""
    from rcray.models.tiny import tiny_model_dir
    from tests.campaign.faults.campaign import BY_NAME, Campaign

    with tempfile.TemporaryDirectory(prefix="rcray-faults-") as folder:
        models = Path(folder) / "models-cache"
        tiny_model_dir("tiny-neox", models)
        campaign = Campaign(Path(folder), models)
        for name in sys.stdin:
            print(json.dumps(asdict(campaign.run(BY_NAME[name.strip()]))), flush=True)


def _conclude(results: "Sequence[Result]", seconds: float) -> int:
    width = max(len(result.name) for result in results)
    print(f"\n{'fault':{width}s}  tables  seconds")
    for result in results:
        word = {True: "same", False: "OTHER", None: "-"}[result.same]
        print(f"{result.name:{width}s}  {word:6s}  {result.seconds:7.0f}")
    failed = [result.name for result in results if not result.ok]
    skipped = [result.name for result in results if result.same is None]
    same = len(results) - len(failed) - len(skipped)
    print(
        f"\n{same} of {len(results)} faults: the same command brought the same tables as an undisturbed sweep"
        + (f"; failed: {', '.join(failed)}" if failed else "")
        + (f"; skipped: {', '.join(skipped)}" if skipped else "")
        + f"; {seconds:.0f} s"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
