"""What is watched during training beside the likelihoods of the probe set, as a share of the steps between two probes.

step         a training step, calibrated as published
likelihoods  a probe: likelihoods of both answers of its pairs, nothing else
watched      the same with KL to the start model, entropy, the greedy token, and the answers that belong to nothing

All with as many pairs in a batch as in the probe, and a quarter of them with misplaced answers: the defaults, scaled.
The share is (watched - likelihoods) / (probe_every x step), with the default probe_every: once by the operations of
all matrix products, which no load disturbs, and once by interleaved times.
"""

import json
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from benchmarks.interleaved import arguments, machine, measure, table
from benchmarks.steps import HUNDRED_MILLION, TINY, Setting
from rcray.config.training import TrainConfig
from rcray.data.encoded import EncodedPair, EncodedPairs, EncodeReport
from rcray.models.distribution import Watch
from rcray.models.inference import pair_sums
from rcray.train.probe import MISPLACED_PAIRS, Probe

EVERY = TrainConfig().probe_every


def main() -> None:
    quick = arguments(__doc__).quick
    size, length, pairs, rounds = (TINY, 48, 8, 3) if quick else (HUNDRED_MILLION, 64, 8, 11)
    print(f"during ({machine()}; median of {rounds} interleaved rounds)")
    shares = {}
    for method in ("full", "lora"):
        setting = Setting.of(method, size, pairs=pairs, prompt=length, answer=length, sharing="on")
        likelihoods, watched = probes(setting)
        variants = {"step": setting.ours(calibrated=True), "likelihoods": likelihoods, "watched": watched}
        counts = {name: operations(run) for name, run in variants.items()}
        counted = (counts["watched"] - counts["likelihoods"]) / (EVERY * counts["step"])
        print(f" {method}: {100 * counted:.2f}% of a step by operations")
        times = measure(variants, rounds)
        print(table(method, times, "step"))
        rows = zip(*(times.rounds[name] for name in ("watched", "likelihoods", "step")), strict=True)
        rates = [(after - before) / (EVERY * step) for after, before, step in rows]
        timed = statistics.median(rates)
        print(f"  watched beside likelihoods, once in {EVERY} steps: {100 * timed:.2f}% of a step by time")
        shares[method] = {"operations": round(counted, 4), "time": round(timed, 4)}
        del setting, variants, likelihoods, watched
    print(json.dumps({"benchmark": "during", "shares": shares, "threads": torch.get_num_threads()}))


def operations(run: Callable[[], object]) -> int:
    """Floating-point operations of all matrix products."""
    with Operations() as counted:
        run()
    return counted.total


class Operations(TorchDispatchMode):
    """Torch's own counts; its FlopCounterMode follows modules, which `autograd.grad` does not bear."""

    total = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        count = flop_registry.get(function._overloadpacket)
        if count is not None:
            self.total += count(*args, **(kwargs or {}), out_val=out)
        return out


def probes(setting: Setting) -> tuple[partial[object], partial[object]]:
    """A probe of likelihoods alone, and one with everything."""
    policy = setting.state(calibrated=False).policy
    data = EncodedPairs(setting.encoded, EncodeReport())
    train = TrainConfig()
    few = setting.encoded[: max(1, setting.pairs * MISPLACED_PAIRS // train.probe_pairs)]
    misplaced = [EncodedPair(pair.row, pair.prompt, pair.rejected, pair.chosen[::-1]) for pair in few]
    none = EncodedPairs([], EncodeReport())
    watched = Probe(
        policy, data, EncodedPairs(misplaced, EncodeReport()), pair_sums, Watch(policy.model.get_output_embeddings())
    )
    watched.measure()
    return partial(Probe.measure, Probe(policy, data, none, pair_sums, None)), partial(Probe.measure, watched)


if __name__ == "__main__":
    main()
