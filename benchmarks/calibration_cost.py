"""What band diagnostics and calibration add to an optimizer step.

plain        rcray's likelihoods, loss.mean().backward(), clip, AdamW step: no band, no scores
off          rcray's step: incentives, scores and the band recorded, nothing rescaled
RC           the same with calibration per micro-batch; scores at the head (full), at the last adapters (LoRA)
RC, sketch   calibration on the head's sketch (full only)
logits       both sides in one graph with logits of every token, as published, without calibration
logits, RC   the published way: two extra autograd.grad calls on that graph, then the calibrated backward

What calibration costs is RC over plain, and for the published way `logits, RC` over `logits`; each with the prompt of
a pair computed once (packed) and twice (rows).
"""

import json

import torch

from benchmarks.interleaved import arguments, machine, measure, table
from benchmarks.steps import HUNDRED_MILLION, TINY, Setting


def main() -> None:
    quick = arguments(__doc__).quick
    size, length, pairs, rounds = (TINY, 48, 2, 3) if quick else (HUNDRED_MILLION, 64, 2, 15)
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
    sizes = {"vocabulary": size.vocabulary, "hidden": size.hidden, "layers": size.layers, "tokens": length}
    print(json.dumps({"benchmark": "calibration_cost", "ratios": costs, "threads": torch.get_num_threads(), **sizes}))


if __name__ == "__main__":
    main()
