"""Steps of one checkout, timed on request: what `benchmarks.between` starts in each of its two.

Run by its path, with the checkout in PYTHONPATH: `benchmarks` and `rcray` are then that checkout's own, and only what
both have in common is used here. Reads the name of a variant from each line of its input, makes one step of it, and
writes the seconds.
"""

import sys
import time
from collections.abc import Callable

Step = Callable[[], object]


def calibration_cost(quick: bool, method: str, sharing: str, wanted: list[str]) -> dict[str, Step]:
    """The steps of that benchmark."""
    from benchmarks.steps import HUNDRED_MILLION, TINY, Setting

    size, length, pairs = (TINY, 48, 4) if quick else (HUNDRED_MILLION, 64, 4)
    setting = Setting.of(method, size, pairs=pairs, prompt=length, answer=length, sharing=sharing)
    makers: dict[str, Callable[[], Step]] = {
        "plain": setting.plain,
        "off": lambda: setting.ours(calibrated=False),
        "RC": lambda: setting.ours(calibrated=True),
        "RC, sketch": lambda: setting.ours(calibrated=True, estimator="sketch"),
        "logits": lambda: setting.logits(calibrated=False),
        "logits, RC": lambda: setting.logits(calibrated=True),
    }
    return {name: makers[name]() for name in wanted}


def against_trl(quick: bool, prompt_share: str, wanted: list[str]) -> dict[str, Step]:
    """The steps of that benchmark."""
    from benchmarks.against_trl import make, our_step, trl_step
    from benchmarks.steps import HUNDRED_MILLION, TINY

    size, answer = (TINY, 48) if quick else (HUNDRED_MILLION, 128)
    setting = make(size, answer // int(prompt_share), answer, 2)
    makers: dict[str, Callable[[], Step]] = {
        "trl": lambda: trl_step(setting)[0],
        "rcray, off": lambda: our_step(setting.state(calibrated=False), setting),
        "rcray, RC": lambda: our_step(setting.state(calibrated=True), setting),
    }
    return {name: makers[name]() for name in wanted}


def main() -> None:
    from benchmarks.interleaved import keep_freed_memory

    keep_freed_memory()
    quick, benchmark, *settings, variants = sys.argv[1:]
    steps = {"calibration_cost": calibration_cost, "against_trl": against_trl}[benchmark]
    runs = steps(quick == "quick", *settings, variants.split(";"))  # type: ignore[operator]
    print("ready", flush=True)
    for line in sys.stdin:
        started = time.perf_counter()
        runs[line.strip()]()
        print(time.perf_counter() - started, flush=True)


if __name__ == "__main__":
    main()
