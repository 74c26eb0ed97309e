"""A report of 10,000 runs from an exported ledger, and figures of 100 runs of 2,000 steps.

The ledger holds every status, three seeds, benchmark rows and summaries; its step records are read only by figures.
Memory is the growth of the peak resident set, each in a process of its own: of the aggregation, and of drawing the
dynamics of all 100 runs against drawing those of two.
"""

import json
import math
import multiprocessing
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.chunked_head import peak_kilobytes, reset_peak
from benchmarks.interleaved import arguments, measure, report
from rcray.aggregate.collect import collect, likelihood_unit
from rcray.aggregate.ledger import read_ledger
from rcray.aggregate.report import write_report
from rcray.config import Experiment
from rcray.store import RunDir, Store
from rcray.sweep.grid import expand

STATUSES = ("ok", "ok", "ok", "ok", "ok", "ok", "ok", "failed", "oom", "degenerate")


def ledger_of(folder: Path, runs: int) -> Path:
    """A ledger of a grid: objectives, calibration, rates and seeds; no two runs are the same."""
    objectives = ["dpo", "ipo", "cpo", "simpo", "dil-bce", "dil-ukl", "dil-lsif", "ddro", "kto", "ti-dpo"]
    rates = [1e-6 * (i + 1) for i in range(math.ceil(runs / (len(objectives) * 2 * 3)))]
    experiment = Experiment(
        name="large",
        run={"model": "tiny-neox"},
        grid={
            "objective": objectives,
            "calibration.enabled": [False, True],
            "train.learning_rate": rates,
            "train.seed": [1, 2, 3],
        },
    )
    cells = expand(experiment)[:runs]
    random = np.random.default_rng(0)
    lines = [json.dumps(_run(cell, random, STATUSES[i % len(STATUSES)])) for i, cell in enumerate(cells)]
    folder.mkdir(parents=True)
    (folder / "runs.jsonl").write_text("".join(f"{line}\n" for line in lines))
    owned = {"experiment": experiment.model_dump(mode="json"), "runs": [cell.run_id for cell in cells]}
    (folder / "ledger.json").write_text(json.dumps({"format": 1, "experiments": [owned]}))
    return folder


def _run(cell: Any, random: np.random.Generator, status: str) -> dict[str, Any]:
    shares = random.dirichlet(np.ones(5))
    names = ("i", "ii", "iii", "reversed", "undefined")
    rows = [
        {"benchmark": "preference", "metric": name, "value": random.random(), "stderr": 0.01, "n": 256}
        for name in ("accuracy", "margin", "drift_w", "drift_l")
    ]
    rows += [
        {"benchmark": name, "metric": "acc", "value": random.random(), "stderr": 0.01, "n": 1000, "task_version": "1"}
        for name in ("arc_easy", "hellaswag")
    ]
    summary = {
        "steps": 200,
        "in_band": random.random(),
        "pathways": dict(zip(names, shares.tolist(), strict=True)),
        "agreement": 0.75,
        "intervals": 20,
        "confusion": {"iii": {"iii": 15, "i": 5}},
        "change_w": random.normal(),
        "change_l": random.normal(),
        "skipped": 0.0,
        "rho": random.random(),
        "seconds": 60.0 + random.random(),
        "head_full": None,
    }
    return {
        "run_id": cell.run_id,
        "varied": [list(pair) for pair in cell.varied],
        "status": {"status": status, "step": 200, "total_steps": 200, "seconds": 60.0, "error": ""},
        "problem": "",
        "rows": rows if status == "ok" else [],
        "summary": summary,
        "config": cell.config.model_dump(mode="json"),
    }


def aggregate(ledger: Path, out: Path) -> float:
    """Ledger in, tables and page out; seconds of processor time, which other programs do not disturb."""
    started = time.process_time()
    content = read_ledger(ledger)
    write_report(out, content.experiments, content.results, figures=False)
    return time.process_time() - started


def records(folder: Path, runs: int, steps: int) -> tuple[Experiment, Store]:
    """A store of finished runs with long step records."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from rcray.train.dynamics import SCHEMA, part_name

    grid = {"train.learning_rate": [1e-6 * (i + 1) for i in range(runs // 2)], "calibration.enabled": [False, True]}
    run = {"model": "tiny-neox", "data": {"train_pairs": 32 * steps}}
    experiment = Experiment(name="long", run=run, grid=grid)
    store = Store.open(folder)
    random = np.random.default_rng(0)
    words = {"pathway_predicted": ["iii"] * steps, "pathway_realised": [""] * steps, "skipped": [""] * steps}
    for cell in expand(experiment):
        columns: dict[str, Any] = {}
        for field in SCHEMA:
            if field.name in words:
                columns[field.name] = words[field.name]
            elif pa.types.is_boolean(field.type):
                columns[field.name] = random.random(steps) < 0.9
            else:
                columns[field.name] = random.normal(size=steps)
        columns |= {"step": np.arange(1, steps + 1), "rho": random.uniform(0.1, 0.9, steps)}
        columns |= {name: np.arange(steps) for name in ("epoch", "tokens")}
        columns |= {"band_lower": columns["log_r_star"] - 1, "band_upper": columns["log_r_star"] + 1}
        target: RunDir = store.run(cell.run_id)
        target.dynamics.mkdir(parents=True)
        table = pa.table({field.name: pa.array(columns[field.name], type=field.type) for field in SCHEMA})
        pq.write_table(table, target.dynamics / part_name(1, steps))
        target.status.write_text(json.dumps({"status": "ok", "step": steps, "total_steps": steps}))
    return experiment, store


def draw(experiment: Experiment, store: Store, runs: int) -> int:
    """Figures of the first runs, each let go as soon as it is drawn; returns how many."""
    from rcray.aggregate.figures import draw_all
    from rcray.aggregate.groups import compare

    results = collect(store, expand(experiment)[:runs])
    return sum(1 for _ in draw_all(compare(results), [], likelihood_unit(results)))


def peak(work: Callable[..., Any], *arguments_: Any) -> tuple[Any, float]:
    """Result and growth of the peak resident set, in MB, in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_measured, (work, arguments_))


def _measured(work: Callable[..., Any], arguments_: tuple[Any, ...]) -> tuple[Any, float]:
    import torch  # noqa: F401  the libraries' own start-up is not counted

    before = reset_peak()
    return work(*arguments_), (peak_kilobytes() - before) / 1024


def main() -> None:
    quick = arguments(__doc__).quick
    runs, long_runs, steps = (1_000, 10, 2_000) if quick else (10_000, 100, 2_000)
    folder = Path(tempfile.mkdtemp(prefix="aggregation-"))
    try:
        large, small = ledger_of(folder / "large", runs), ledger_of(folder / "small", runs // 10)
        seconds = measure(
            {
                f"{count} runs": lambda ledger=ledger: aggregate(ledger, folder / "out")
                for count, ledger in ((runs, large), (runs // 10, small))
            },
            rounds=1 if quick else 3,
        )
        processor, memory = peak(aggregate, large, folder / "out")
        experiment, store = records(folder / "long", long_runs, steps)
        few, few_memory = peak(draw, experiment, store, 2)
        many, many_memory = peak(draw, experiment, store, long_runs)
        whole = long_runs * steps * 35 * 8 / 2**20
        print(
            f"aggregation: {processor:.1f} s of processor time for {runs} runs, {memory:.0f} MB at most, "
            f"{1024 * memory / runs:.0f} kB per run"
        )
        print(
            f"figures: {many} of {long_runs} runs x {steps} steps took {many_memory:.0f} MB more at the peak, {few} of "
            f"2 runs {few_memory:.0f} MB; all records together are {whole:.0f} MB"
        )
        facts = {
            "processor_seconds": round(processor, 1),
            "aggregation_mb": round(memory),
            "figures_mb": round(many_memory),
            "two_runs_mb": round(few_memory),
        }
        report(
            "aggregation",
            seconds,
            f"{runs // 10} runs",
            runs=runs,
            largest_seconds=round(seconds[f"{runs} runs"], 2),
            **facts,
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
