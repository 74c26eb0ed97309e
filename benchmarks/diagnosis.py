"""Planted bad pairs: does `rcray diagnose` find them before training, and does training without them go better?

Of pairs of the synthetic language a tenth (or --share) is spoiled: swapped, copied from an earlier row, or with answers
that differ in one word. Each kind should lie in the worst decile by its own column. Then DPO is trained on all rows,
without those that the filter names, and on the clean rows alone, and judged by clean held-out pairs. Differences to
training on all rows are taken pair by pair and seed by seed; their errors are of both.
"""

import argparse
import json
import random
import statistics
import tempfile
from collections.abc import Iterable
from pathlib import Path

from rcray.aggregate.collect import CellResult, read_run
from rcray.aggregate.paired import paired_error
from rcray.config import RunConfig, run_id
from rcray.config.evaluation import EvaluationConfig
from rcray.data import synthetic
from rcray.diagnose.diagnosis import DROPPED, Diagnosis, diagnose
from rcray.evaluate.stage import evaluate_run
from rcray.store import DEFAULT_STORE, Store
from rcray.sweep.grid import Cell
from rcray.train.launch import launch

#: How a pair is spoiled, and the column that should show it.
KINDS = {"swapped": "misranked", "copied": "duplicate", "near-identical": "entangled"}
METRICS = ("accuracy", "margin", "drift_w", "drift_l")


def plant(folder: Path, count: int, held_out: int, share: float = 0.1, seed: int = 0) -> dict[str, set[int]]:
    """Writes train.jsonl with spoiled rows and a clean test.jsonl; returns the row numbers of each kind."""
    rows = list(synthetic.generate(count, difficulty="easy", seed=seed, split="train"))
    rng = random.Random(f"planted/{seed}")
    spoiled = rng.sample(range(1, count), round(share * count))
    planted = {kind: set(spoiled[i :: len(KINDS)]) for i, kind in enumerate(KINDS)}
    clean = [i for i in range(count) if i not in spoiled]
    for number in sorted(spoiled):
        prompt, chosen, rejected = rows[number]
        if number in planted["swapped"]:
            rows[number] = prompt, rejected, chosen
        elif number in planted["copied"]:
            rows[number] = rows[rng.choice([i for i in clean if i < number] or [0])]
        else:
            words = chosen.split()
            spot = rng.randrange(len(words))
            words[spot] = synthetic.corrupted(words[spot], rng)
            rows[number] = prompt, chosen, " ".join(words)
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "train.jsonl", rows)
    _write(folder / "test.jsonl", synthetic.generate(held_out, difficulty="easy", seed=seed, split="held-out"))
    return planted


def _write(path: Path, rows: Iterable[tuple[str, str, str]]) -> None:
    names = ("prompt", "chosen", "rejected")
    path.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows))


def settings(folder: Path, held_out: int, **changes: object) -> RunConfig:
    """The quickstart's DPO on these rows."""
    data = {"name": str(folder), "split": "train", "eval_split": "test", "eval_pairs": held_out}
    train = {"batch_size": 8, "micro_batch_size": 4, "learning_rate": 5e-5, "seed": changes.pop("seed", 42)}
    return RunConfig.model_validate(
        {"fidelity": "paper", "model": "tiny-neox", "data": {**data, **changes}, "train": train, "objective": "dpo"}
    )


def found_in_worst(diagnosis: Diagnosis, planted: dict[str, set[int]], share: float = 0.1) -> dict[str, float]:
    """By kind, the share of the spoiled rows that lie in the worst decile by the kind's own column."""
    results = {}
    for kind, column in KINDS.items():
        worst = {diagnosis.numbers[place] for place in diagnosis.worst(column, share).tolist()}
        results[kind] = len(planted[kind] & worst) / len(planted[kind])
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one seed, fewer pairs")
    parser.add_argument("--share", type=float, default=0.1, help="of the rows that are spoiled")
    parser.add_argument("--data-seed", type=int, default=0, help="of the rows and of what is done to them")
    parser.add_argument("--store", type=Path, default=DEFAULT_STORE, help="whose tiny model is used")
    given = parser.parse_args()
    count, held_out, seeds = (400, 64, [1]) if given.quick else (1600, 256, [1, 2, 3])
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "planted"
        planted = plant(folder, count, held_out, given.share, given.data_seed)
        store = Store.open(Path(scratch) / "store")
        cache = Store.open(given.store).cache
        cache.mkdir(exist_ok=True)
        store.cache.symlink_to(cache)
        diagnosis = diagnose([settings(folder, held_out)], store, None)
        dropped = set(diagnosis.dropped(DROPPED, given.share))
        all_planted = set().union(*planted.values())
        print(f"diagnosis ({count} pairs, {len(all_planted)} of them spoiled)")
        for kind, share in found_in_worst(diagnosis, planted, given.share).items():
            print(f"  {kind}: {share:.0%} of {len(planted[kind])} in the worst {given.share:.0%} by {KINDS[kind]}")
        print(f"  filter: {len(dropped)} rows, {len(dropped & all_planted)} of the spoiled ones among them")
        ways = {"all rows": None, "filtered": sorted(dropped), "clean rows": sorted(all_planted)}
        trained: dict[str, list[CellResult]] = {}
        for way, rows in ways.items():
            trained[way] = []
            for seed in seeds:
                config = settings(folder, held_out, exclude_rows=rows, seed=seed)
                launch(config, store)
                evaluate_run(config, store, EvaluationConfig())
                key = run_id(config)
                trained[way].append(read_run(store.run(key), Cell(key, config, ())))
            means = {metric: statistics.mean(scores(trained[way], metric)) for metric in METRICS}
            print(f"  {way}: " + ", ".join(f"{metric} {value:+.3f}" for metric, value in means.items()), flush=True)
        for way in list(ways)[1:]:
            print(f"  {way} minus all rows: " + ", ".join(gains(trained["all rows"], trained[way])))
        figures = {way: {metric: scores(results, metric) for metric in METRICS} for way, results in trained.items()}
    head = {"benchmark": "diagnosis", "share": given.share, "data_seed": given.data_seed, "seeds": seeds}
    print(json.dumps(head | {"scores": figures}))


def scores(results: Iterable[CellResult], metric: str) -> list[float]:
    """A metric of held-out pairs, seed by seed."""
    return [result.value(f"preference/{metric}") for result in results]


def gains(before: list[CellResult], after: list[CellResult]) -> Iterable[str]:
    """How much each metric is higher, and the standard error of that."""
    for metric in METRICS:
        change = statistics.mean(scores(after, metric)) - statistics.mean(scores(before, metric))
        error = paired_error(list(zip(before, after, strict=True)), f"preference/{metric}")
        yield f"{metric} {change:+.3f}" + (f" ± {error.stderr:.3f}" if error else "")


if __name__ == "__main__":
    main()
