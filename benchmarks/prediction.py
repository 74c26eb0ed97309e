"""How often the predicted pathway is the realised one, for every objective of the zoo.

batch    one step: the batch's own likelihoods before and after the update, against <its mean scores, the update>
probe    ten steps: 256 held-out pairs, against the first-order move that looks at fresh pairs predict for these steps
head     the paper's band at the head (full) or at the last adapters (LoRA), for the same steps and the same moves

A step or interval whose pathway hangs on a likelihood that hardly moved is not clear. Two definitions are printed:
clear, where neither side's realised move is among the smallest of that side's in its run (up to the quantile of a
fifth: 12 of 60 steps, two of six intervals), and `tenth`, where the smaller of both moves is at least a tenth of the
larger. Runs are made without calibration; the five seeds of an
objective and method go through the three architectures in turn.
"""

import argparse
import json
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.interleaved import machine
from benchmarks.tiny_runs import Case, log, logged, ready
from rcray.calibration import pathway_of
from rcray.calibration.update import products
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
SMALLEST = 0.2
TENTH = 0.1


@dataclass(frozen=True)
class Seen:
    """A step or an interval of one run."""

    what: str  # batch or probe
    moved: Sequence[float]  # (dz_w, dz_l), realised
    predicted: Sequence[float]
    head: str  # the pathway that the band at the head names


@dataclass(frozen=True)
class Judgement:
    """Whether it was clear, and who was right."""

    what: str
    clear: bool
    tenth: bool
    look: bool
    head: bool


def judgements(job: tuple[str, str, int, int, Path]) -> tuple[str, str, list[Seen]]:
    """One run, step by step."""
    objective, method, seed, steps, directory = job
    model = ARCHITECTURES[seed % len(ARCHITECTURES)]
    case = Case(objective, model=model, method=method, rate=RATES[method], steps=steps)
    training = ready(case, case.config(seed, look_every=INTERVAL), directory, f"{objective}-{method}-{seed}")
    return objective, method, list(_watched(training, steps))


def _watched(training: Training, steps: int) -> Sequence[Seen]:
    seen: list[Seen] = []
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
            move = products(own.last["score_w"], own.last["score_l"], way, total).tolist()
            seen.append(Seen("batch", moved, move, row["pathway_head"]))
        if fresh and step:
            predicted = [predicted[0] + row["predicted_dz_w"], predicted[1] + row["predicted_dz_l"]]
        if ends and step:
            seen.append(Seen("probe", _change(before, held_out), predicted, _most(heads)))
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


def judged(run: Sequence[Seen]) -> list[Judgement]:
    """Every step and interval of a run; what is clear is asked of its own moves."""
    result = []
    for what in ("batch", "probe"):
        mine = [seen for seen in run if seen.what == what]
        if not mine:
            continue
        sizes = np.abs([seen.moved for seen in mine])
        clear = (sizes > np.quantile(sizes, SMALLEST, axis=0)).all(1)
        tenth = sizes.min(1) >= TENTH * sizes.max(1)
        for seen, is_clear, is_tenth in zip(mine, clear, tenth, strict=True):
            realised = pathway_of(*seen.moved)
            right = pathway_of(*seen.predicted) == realised, seen.head == realised
            result.append(Judgement(what, bool(is_clear), bool(is_tenth), *right))
    return result


def _most(said: Sequence[str]) -> str:
    return max(reversed(said), key=list(said).count)


def _share(rows: Sequence[Judgement], which: str) -> float:
    return sum(getattr(row, which) for row in rows) / len(rows) if rows else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three objectives, one seed")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--log", type=Path, help="append each run as a JSON line, and skip those already there")
    options = parser.parse_args()
    objectives = ["dpo", "cpo", "kto"] if options.quick else list(BY_NAME)
    seeds, steps = (SEEDS[:1], 31) if options.quick else (SEEDS, 61)
    rows: dict[tuple[str, str], list[Judgement]] = defaultdict(list)
    known = logged(options.log)
    for run in known:
        rows[run["objective"], run["method"]] += judged([Seen(**seen) for seen in run["seen"]])
    done = {(run["objective"], run["method"], run["seed"]) for run in known}
    with tempfile.TemporaryDirectory() as directory:
        # Seed by seed, so that what is known after a while is already of the whole zoo.
        wanted = [(o, m, s) for s in seeds for o in objectives for m in RATES if (o, m, s) not in done]
        with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
            runs = pool.map(judgements, [(*job, steps, Path(directory)) for job in wanted])
            for (objective, method, seed), (_, _, seen) in zip(wanted, runs, strict=True):
                rows[objective, method] += judged(seen)
                run = {"objective": objective, "method": method, "seed": seed, "seen": list(map(asdict, seen))}
                log(options.log, run)
    print(f"prediction ({machine()}; {len(seeds)} seeds over three architectures, {steps} steps; % right)")
    print("| objective | method | batch, clear (head) | probe, clear (head) | probe, tenth | probe, all | intervals |")
    print("|---|---|---|---|---|---|---|")
    for objective, method in sorted(rows, key=lambda key: (list(BY_NAME).index(key[0]), key[1])):
        print(_line(objective, method, rows[objective, method]))
    everything = [row for seen in rows.values() for row in seen]
    print(_line("all", "", everything))
    summary: dict[str, Any] = {}
    for what in ("batch", "probe"):
        mine = [row for row in everything if row.what == what]
        for kind in ("clear", "tenth"):
            some = [row for row in mine if getattr(row, kind)]
            shares = {who: round(_share(some, who), 4) for who in ("look", "head")}
            summary[f"{what}, {kind}"] = {**shares, "n": len(some)}
    print(json.dumps({"benchmark": "prediction", "ratios": summary, "seeds": list(seeds)}))


def _line(objective: str, method: str, seen: Sequence[Judgement]) -> str:
    batch, probe = ([row for row in seen if row.what == what] for what in ("batch", "probe"))
    clear_batch, clear_probe = ([row for row in rows if row.clear] for rows in (batch, probe))
    cells = [
        f"{100 * _share(clear_batch, 'look'):.0f} ({100 * _share(clear_batch, 'head'):.0f})",
        f"{100 * _share(clear_probe, 'look'):.0f} ({100 * _share(clear_probe, 'head'):.0f})",
        f"{100 * _share([row for row in probe if row.tenth], 'look'):.0f}",
        f"{100 * _share(probe, 'look'):.0f}",
        f"{len(clear_probe)} of {len(probe)} clear",
    ]
    return f"| {objective} | {method} | " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
