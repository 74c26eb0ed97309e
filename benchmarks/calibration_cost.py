"""What band diagnostics and calibration add to an optimizer step.

plain        rcray's likelihoods, loss.mean().backward(), clip, AdamW step: no band, no scores
off          rcray's step: incentives, scores and the band recorded, nothing rescaled
RC           the same with calibration per micro-batch; scores at the head (full), at the last adapters (LoRA)
RC, sketch   calibration on the head's sketch (full only)
between      calibration by the update, a step between two looks
look         the same with a look: fresh pairs, a quarter as many as the batch, and both branches apart
update       what that costs on average, with one look in every LOOK_EVERY steps
logits       both sides in one graph with logits of every token, as published, without calibration
logits, RC   the published way: two extra autograd.grad calls on that graph, then the calibrated backward

What calibration costs is RC over plain, and for the published way `logits, RC` over `logits`; each with the prompt of
a pair computed once (packed) and twice (rows).
"""

import json

import torch

from benchmarks.interleaved import arguments, machine, measure, table
from benchmarks.steps import HUNDRED_MILLION, TINY, Setting
from rcray.config.calibration import CalibrationConfig

LOOK_EVERY = CalibrationConfig().look_every


def main() -> None:
    quick = arguments(__doc__).quick
    size, length, pairs, rounds = (TINY, 48, 4, 3) if quick else (HUNDRED_MILLION, 64, 4, 11)
    costs: dict[str, dict[str, float]] = {}
    print(f"calibration_cost ({machine()}; median of {rounds} interleaved rounds)")
    for method in ("full", "lora"):
        for sharing in ("on", "off"):
            setting = Setting.of(method, size, pairs=pairs, prompt=length, answer=length, sharing=sharing)
            variants = {
                "plain": setting.plain(),
                "off": setting.ours(calibrated=False),
                "RC": setting.ours(calibrated=True),
            }
            variants["between"], variants["look"] = setting.by_update(look_pairs=pairs // 4)
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
            between, look = times.ratio("between", "plain"), times.ratio("look", "plain")
            costs[name]["update"] = round(((LOOK_EVERY - 1) * between + look) / LOOK_EVERY, 4)
            print(f"  update, a look in {LOOK_EVERY} steps: {costs[name]['update']:.3f}x")
            if "logits, RC" in times:
                costs[name]["published"] = round(times.ratio("logits, RC", "logits"), 4)
            del setting, variants
    sizes = {"vocabulary": size.vocabulary, "hidden": size.hidden, "layers": size.layers, "tokens": length}
    print(json.dumps({"benchmark": "calibration_cost", "ratios": costs, "threads": torch.get_num_threads(), **sizes}))


if __name__ == "__main__":
    main()
