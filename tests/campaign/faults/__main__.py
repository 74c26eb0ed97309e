"""`python -m tests.campaign.faults [--only NAME]`: every fault, and whether the tables came out the same."""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", metavar="NAME", action="append", help="a fault by name; repeatable")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)  # of a mount namespace: the campaign's folder
    parser.add_argument("--models", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported: sums in one order
    for name in ("MLFLOW_TRACKING_URI", "RAY_ADDRESS"):
        os.environ.pop(name, None)

    from tests.campaign.faults.campaign import BY_NAME, FAULTS, Campaign, Result

    if unknown := set(given.only or ()) - BY_NAME.keys():
        parser.error(f"no fault {', '.join(sorted(unknown))}; there are {', '.join(BY_NAME)}")
    chosen = [BY_NAME[name] for name in given.only] if given.only else list(FAULTS)
    if given.inside:
        Campaign(given.inside, given.models).run_inside(chosen[0])
        return 0
    began = time.monotonic()
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="rcray-faults-") as folder:
        from rcray.models.tiny import tiny_model_dir

        models = Path(folder) / "models-cache"
        tiny_model_dir("tiny-neox", models)
        campaign = Campaign(Path(folder), models)
        for fault in chosen:
            results.append(campaign.run(fault))
            print(results[-1].line(), flush=True)
            if results[-1].problem:
                print(f"  {results[-1].problem}", flush=True)
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
        + f"; {time.monotonic() - began:.0f} s"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
