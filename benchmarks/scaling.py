"""How the cost of a calibrated step grows with the length of a pair and with the vocabulary.

Length: prompt and answers of a third each, 256 to 2048 tokens in a packed row; beside it attention alone (the same
number of calls of SDPA with the same mask, forward and backward). Vocabulary: 8k to 150k at a fixed length. For each
the growth is fitted as a power, seconds ~ size^p, over the whole range: what grows faster than attention would show,
also in what is left of a step's time without attention's.
Writes docs/scaling.png.
"""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.interleaved import arguments, machine, measure
from benchmarks.steps import Setting, Size
from rcray.data.layout import packed

PICTURE = Path(__file__).parent.parent / "docs" / "scaling.png"
PAIRS = 1
#: One look for one thing, in both panels.
STYLES = {
    "full": "C0o-",
    "lora": "C1s--",
    "attention alone": "C2^:",
    "full, less attention": "C3v-.",
    "lora, less attention": "C4d-.",
    "full, sketch": "C5P--",
}


def attention_alone(setting: Setting) -> Callable[[], object]:
    """As many masked attentions as the model has blocks, forward and backward."""
    size, layout = setting.size, packed(setting.batch)
    mask = layout.mask()
    shape = (PAIRS, size.heads, layout.ids.shape[1], size.hidden // size.heads)
    q, k, v = (torch.randn(shape, requires_grad=True) for _ in range(3))

    def run() -> None:
        for _ in range(size.layers):
            scaled_dot_product_attention(q, k, v, attn_mask=mask).sum().backward()

    return run


def power(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """The exponent p of seconds ~ size^p, by least squares on logarithms."""
    x, y = [math.log(s) for s in sizes], [math.log(s) for s in seconds]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    return sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True)) / sum((a - mean_x) ** 2 for a in x)


def draw(curves: dict[str, dict[str, list[float]]], axes: dict[str, list[int]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(9, 3.4), constrained_layout=True)
    for panel, (axis, values) in zip(panels, axes.items(), strict=True):
        for name, seconds in curves[axis].items():
            panel.loglog(values, seconds, STYLES[name], label=f"{name} (p = {power(values, seconds):.2f})")
        panel.set_xlabel("tokens in a packed pair" if axis == "length" else "vocabulary")
        panel.set_ylabel("seconds per step")
        panel.set_xticks(values, [f"{v:,}" for v in values])
        panel.minorticks_off()
        panel.legend(frameon=False, fontsize=8)
        panel.grid(alpha=0.3)
    figure.suptitle("A calibrated step's cost; p: exponent of the fitted power", fontsize=10)
    figure.savefig(PICTURE, dpi=130)


def main() -> None:
    quick = arguments(__doc__).quick
    lengths = [128, 256] if quick else [256, 512, 1024, 2048]
    vocabularies = [8_192, 16_384] if quick else [8_192, 50_304, 151_936]
    rounds = 2 if quick else 5
    print(f"scaling ({machine()}; median of {rounds} interleaved rounds)")
    curves: dict[str, dict[str, list[float]]] = {"length": {}, "vocabulary": {}}

    variants: dict[str, Callable[[], object]] = {}
    for length in lengths:
        for method in ("full", "lora"):
            part = length // 3
            setting = Setting.of(method, Size(2_048, 128, 4, 4), pairs=PAIRS, prompt=part, answer=part, sharing="on")
            variants[f"{method} {length}"] = setting.ours(calibrated=True)
        variants[f"attention alone {length}"] = attention_alone(setting)
    seconds = measure(variants, rounds)
    for name in ("full", "lora", "attention alone"):
        curves["length"][name] = [seconds[f"{name} {length}"] for length in lengths]
    attention = curves["length"]["attention alone"]
    for name in ("full", "lora"):
        less = [whole - part for whole, part in zip(curves["length"][name], attention, strict=True)]
        curves["length"][f"{name}, less attention"] = less

    variants = {}
    for vocabulary in vocabularies:
        for method in ("full", "lora"):
            setting = Setting.of(method, Size(vocabulary, 128, 4, 4), pairs=PAIRS, prompt=64, answer=64, sharing="on")
            variants[f"{method} {vocabulary}"] = setting.ours(calibrated=True)
            if method == "full":
                variants[f"full, sketch {vocabulary}"] = setting.ours(calibrated=True, estimator="sketch")
    seconds = measure(variants, rounds)
    for name in ("full", "full, sketch", "lora"):
        curves["vocabulary"][name] = [seconds[f"{name} {vocabulary}"] for vocabulary in vocabularies]

    axes = {"length": lengths, "vocabulary": vocabularies}
    for axis, values in axes.items():
        print(f" seconds against {axis}     " + "".join(f"{v:>12,}" for v in values) + "   exponent")
        for name, row in curves[axis].items():
            cells = "".join(f"{s:12.3f}" for s in row)
            print(f"  {name:{14 + len(axis)}s}{cells}{power(values, row):11.2f}")
    if not quick:
        draw(curves, axes)
        print(f"wrote {PICTURE.relative_to(Path.cwd()) if PICTURE.is_relative_to(Path.cwd()) else PICTURE}")
    exponents = {axis: {n: round(power(axes[axis], row), 3) for n, row in curves[axis].items()} for axis in axes}
    print(json.dumps({"benchmark": "scaling", "ratios": exponents, "what": "exponents of fitted powers"}))


if __name__ == "__main__":
    main()
