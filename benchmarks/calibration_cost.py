"""What band diagnostics and calibration add to an optimizer step.

plain        rcray's likelihoods, loss.mean().backward(), clip, AdamW step: no band, no scores
off          rcray's step: incentives, scores and the band recorded, nothing rescaled
RC           the same with calibration per micro-batch; scores at the head (full), at the last adapters (LoRA)
RC, sketch   calibration on the head's sketch (full only)
logits       both sides in one graph with logits of every token, as published, without calibration
logits, RC   the published way: two extra autograd.grad calls on that graph, then the calibrated backward

What calibration costs is RC over plain, and for the published way `logits, RC` over `logits`; each with the prompt of
a pair computed once (packed) and twice (rows).

By the update, on batches and micro-batches of the default sizes and a smaller model, because a look is one of 8 pairs
whatever the batch:

between      a step between two looks
look         a step with one: fresh pairs, and as many of the batch with their sides apart
update       what that costs on average over a run, by the schedule of looks that training goes by: over 1,900 steps,
             as many as an epoch of UltraFeedback has, and over 200, of which a larger share are the first ones
"""

import json

import torch

from benchmarks.interleaved import argument_parser, machine, measure, table
from benchmarks.steps import HUNDRED_MILLION, TINY, TWENTY_MILLION, Setting
from rcray.config.calibration import CalibrationConfig
from rcray.config.training import TrainConfig
from rcray.data.schedule import LookSchedule, Schedule

LOOK_PAIRS = CalibrationConfig().look_pairs
BATCH, MICRO = TrainConfig().batch_size, TrainConfig().micro_batch_size
EPOCH, SHORT = 1900, 200  # steps


def looks_in_a_run(steps: int) -> int:
    """By the schedule that training itself goes by."""
    plan = LookSchedule(Schedule(steps * BATCH, BATCH, MICRO, 1, 0), CalibrationConfig().look_every, LOOK_PAIRS)
    return sum(plan.rows(step) is not None for step in range(steps))


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--update-only", action="store_true", help="only the rows of the calibration by the update")
    options = parser.parse_args()
    costs: dict[str, dict[str, float]] = {}
    print(f"calibration_cost ({machine()}; medians of interleaved rounds)")
    sizes = {} if options.update_only else published_kind(options.quick, costs)
    by_update(options.quick, costs)
    print(json.dumps({"benchmark": "calibration_cost", "ratios": costs, "threads": torch.get_num_threads(), **sizes}))


def by_update(quick: bool, costs: dict[str, dict[str, float]]) -> None:
    """Steps of whole batches, between looks and with one."""
    size, length, rounds = (TINY, 24, 2) if quick else (TWENTY_MILLION, 64, 15)
    for method in ("full", "lora"):
        for sharing in ("on", "off"):
            setting = Setting.of(method, size, pairs=BATCH, prompt=length, answer=length, sharing=sharing, micro=MICRO)
            variants = {"plain": setting.plain(), "off": setting.ours(calibrated=False)}
            variants["between"], variants["look"] = setting.by_update(look_pairs=LOOK_PAIRS)
            times = measure(variants, rounds)
            parameters = sum(p.numel() for p in setting.base.parameters())
            name = f"{method}, {'packed' if sharing == 'on' else 'rows'}, batch {BATCH}"
            print(table(f"{name} ({parameters / 1e6:.0f}M parameters)", times, "plain"))
            between, look = times.ratio("between", "plain"), times.ratio("look", "plain")
            costs[name] = {"off": round(times.ratio("off", "plain"), 4)}
            for key, steps in (("update", EPOCH), ("update, a short run", SHORT)):
                looks = looks_in_a_run(steps)
                costs[name][key] = round(between + looks / steps * (look - between), 4)
                print(f"  update, {looks} looks in {steps:,} steps: {costs[name][key]:.3f}x", flush=True)


def published_kind(quick: bool, costs: dict[str, dict[str, float]]) -> dict[str, int]:
    """The published calibration, and the published way to carry it out; returns the sizes."""
    size, length, pairs, rounds = (TINY, 48, 4, 3) if quick else (HUNDRED_MILLION, 64, 4, 11)
    for method in ("full", "lora"):
        for sharing in ("on", "off"):
            setting = Setting.of(method, size, pairs=pairs, prompt=length, answer=length, sharing=sharing)
            variants = {
                "plain": setting.plain(),
                "off": setting.ours(calibrated=False),
                "RC": setting.ours(calibrated=True),
            }
            if method == "full":
                variants["RC, sketch"] = setting.ours(calibrated=True, estimator="sketch")
            if sharing == "off":
                variants |= {"logits": setting.logits(calibrated=False), "logits, RC": setting.logits(calibrated=True)}
            times = measure(variants, rounds)
            parameters = sum(p.numel() for p in setting.base.parameters())
            name = f"{method}, {'packed' if sharing == 'on' else 'rows'}"
            print(table(f"{name} ({parameters / 1e6:.0f}M parameters)", times, "plain"))
            costs[name] = {key: round(times.ratio(key, "plain"), 4) for key in variants if key.startswith("RC")}
            costs[name]["off"] = round(times.ratio("off", "plain"), 4)
            if "logits, RC" in times:
                costs[name]["published"] = round(times.ratio("logits, RC", "logits"), 4)
            del setting, variants
    return {"vocabulary": size.vocabulary, "hidden": size.hidden, "layers": size.layers, "tokens": length}


if __name__ == "__main__":
    main()
