"""How often the predicted pathway is the realised one, for every objective of the zoo.

batch    one step: the batch's own likelihoods before and after the update, against <its mean scores, the update>
probe    ten steps: 256 held-out pairs, against the first-order move that looks at fresh pairs predict for these steps
head     the paper's band at the head (full) or at the last adapters (LoRA), for the same steps and the same moves

A step or interval is clear where the smaller of the two realised moves is at least a tenth of the larger one: otherwise
its pathway hangs on a likelihood that hardly moved. Runs are made without calibration; the five seeds of an objective
and method go through the three architectures in turn.
"""

import argparse
import json
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from benchmarks.interleaved import machine
from benchmarks.tiny_runs import Case, ready
from rcray.calibration import pathway_of
from rcray.calibration.update import seen_by
from rcray.config.objectives import BY_NAME
from rcray.data.batch import Batch, collate
from rcray.models.likelihood import side_logps
from rcray.train.look import Fresh, Looks
from rcray.train.loop import Training
from rcray.train.record import row_of
from rcray.train.step import optimizer_step

ARCHITECTURES = ("tiny-neox", "tiny-mistral", "tiny-qwen2")
RATES = {"full": 5e-5, "lora": 1e-3}
SEEDS = (11, 12, 13, 14, 15)
INTERVAL = 10
CLEAR = 0.1
Judgement = tuple[str, bool, bool, bool]  # what, clear, whether the look was right, whether the head was


def judgements(job: tuple[str, str, int, int, Path]) -> tuple[str, str, list[Judgement]]:
    """One run, step by step."""
    objective, method, seed, steps, directory = job
    model = ARCHITECTURES[seed % len(ARCHITECTURES)]
    case = Case(objective, model=model, method=method, rate=RATES[method], steps=steps)
    training = ready(case, case.config(seed, look_every=INTERVAL), directory, f"{objective}-{method}-{seed}")
    return objective, method, list(_watched(training, steps))


def _watched(training: Training, steps: int) -> Sequence[Judgement]:
    seen: list[Judgement] = []
    predicted, heads = [0.0, 0.0], []
    before = held_out = [0.0, 0.0]
    for step in range(steps):
        batches = [collate(training.data.pairs, rows) for rows in training.schedule.micro_batches(step)]
        assert training.fresh is not None
        fresh = training.fresh.at(step)
        ends = step % INTERVAL == 0
        if ends:  # before the update, as a look
            probe = collate(training.probe.data.pairs, range(len(training.probe.data.pairs)))
            before, held_out = held_out, _likelihoods(training, [probe])
        own = _own_look(training, batches) if ends else None
        start = _likelihoods(training, batches) if ends else []
        row = row_of(optimizer_step(training.state, batches, step + 1, fresh))
        if own:
            moved = _change(start, _likelihoods(training, batches))
            flat, total = own.coordinates.flat, own.coordinates.total
            way = flat(own.parameters) - own.last["weights"]
            move = seen_by(own.last["score_w"], own.last["score_l"], way, total)
            seen.append(_judge("batch", moved, [move.w, move.l], row["pathway_head"]))
        if fresh and step:
            predicted = [predicted[0] + row["predicted_dz_w"], predicted[1] + row["predicted_dz_l"]]
        if ends and step:
            seen.append(_judge("probe", _change(before, held_out), predicted, _most(heads)))
            predicted, heads = [0.0, 0.0], []
        heads.append(row["pathway_head"])
    return seen


def _own_look(training: Training, batches: Sequence[Batch]) -> Looks:
    """The mean scores of the batch itself."""
    state = training.state
    state.update.optimizer.zero_grad(set_to_none=True)
    own = Looks(state.policy, state.update.optimizer, state.update.clip_norm)
    pairs = sum(len(batch.index) for batch in batches)
    own.take(Fresh(batches, pairs, torch.zeros(2, pairs)))
    return own


def _change(before: Sequence[float], after: Sequence[float]) -> list[float]:
    return [b - a for a, b in zip(before, after, strict=True)]


def _likelihoods(training: Training, batches: Sequence[Batch]) -> list[float]:
    with torch.no_grad():
        sides = [
            torch.cat([side_logps(training.state.policy.model, getattr(batch, side)).sums for batch in batches])
            for side in ("chosen", "rejected")
        ]
    return [float(side.mean()) for side in sides]


def _judge(what: str, moved: Sequence[float], predicted: Sequence[float], head: str) -> Judgement:
    sizes = sorted(map(abs, moved))
    realised = pathway_of(*moved)
    return what, sizes[0] >= CLEAR * sizes[1], pathway_of(*predicted) == realised, head == realised


def _most(said: Sequence[str]) -> str:
    return max(reversed(said), key=list(said).count)


def _share(rows: Sequence[Judgement], which: int) -> float:
    return sum(row[which] for row in rows) / len(rows) if rows else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three objectives, one seed")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    objectives = ["dpo", "cpo", "kto"] if options.quick else list(BY_NAME)
    seeds, steps = (SEEDS[:1], 31) if options.quick else (SEEDS, 101)
    rows: dict[tuple[str, str], list[Judgement]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as directory:
        jobs = [(o, m, s, steps, Path(directory)) for o in objectives for m in RATES for s in seeds]
        with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
            for objective, method, seen in pool.map(judgements, jobs):
                rows[objective, method] += seen
    print(f"prediction ({machine()}; {len(seeds)} seeds over three architectures, {steps} steps; % right)")
    print("| objective | method | batch, clear (head) | probe, clear (head) | probe, all | clear intervals |")
    print("|---|---|---|---|---|---|")
    for (objective, method), seen in rows.items():
        print(_line(objective, method, seen))
    everything = [row for seen in rows.values() for row in seen]
    print(_line("all", "", everything))
    summary: dict[str, Any] = {}
    for what in ("batch", "probe"):
        clear = [row for row in everything if row[0] == what and row[1]]
        summary[what] = {"look": round(_share(clear, 2), 4), "head": round(_share(clear, 3), 4), "clear": len(clear)}
    print(json.dumps({"benchmark": "prediction", "ratios": summary, "seeds": list(seeds)}))


def _line(objective: str, method: str, seen: Sequence[Judgement]) -> str:
    batch, probe = ([row for row in seen if row[0] == what] for what in ("batch", "probe"))
    clear_batch, clear_probe = ([row for row in rows if row[1]] for rows in (batch, probe))
    cells = [
        f"{100 * _share(clear_batch, 2):.0f} ({100 * _share(clear_batch, 3):.0f})",
        f"{100 * _share(clear_probe, 2):.0f} ({100 * _share(clear_probe, 3):.0f})",
        f"{100 * _share(probe, 2):.0f}",
        f"{len(clear_probe)} of {len(probe)}",
    ]
    return f"| {objective} | {method} | " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
