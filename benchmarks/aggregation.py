"""A report of 10,000 runs from an exported ledger, and figures of 100 runs of 2,000 steps.

The ledger holds every status, three seeds, benchmark rows and step records of 200 steps; all of it is read.
Memory is the growth of the peak resident set, each in a process of its own: of the aggregation, and of drawing the
dynamics of all 100 runs against drawing those of two.
"""

import math
import multiprocessing
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.chunked_head import peak_kilobytes, reset_peak
from benchmarks.interleaved import arguments, measure, report
from rcray.aggregate.collect import collect
from rcray.aggregate.command import Request, run_report
from rcray.config import Experiment
from rcray.config.load import to_yaml
from rcray.files import write_atomic
from rcray.records.evaluation import Evaluation, MetricRow, write_evaluation
from rcray.records.ledger import Ledger, LedgerEntry, write_ledger
from rcray.records.states import UNSUCCESSFUL, State
from rcray.records.status import RunStatus, write_status
from rcray.store import Store
from rcray.sweep.grid import expand
from rcray.train.dynamics import SCHEMA, part_name

STATUSES = (*(State.OK for _ in range(7)), *UNSUCCESSFUL)


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
    ledger = Store.at(folder)
    random = np.random.default_rng(0)
    parts = [_part(random, 200) for _ in range(20)]
    entries = []
    for i, cell in enumerate(cells):
        status = RunStatus(cell.run_id, status=STATUSES[i % len(STATUSES)], step=200, total_steps=200, seconds=60.0)
        run = ledger.run(cell.run_id)
        write_atomic(run.config, to_yaml(cell.config))
        write_status(run.status, status)
        if status.status is State.OK:
            write_evaluation(run.evaluation, Evaluation(_rows(random)))
        write_atomic(run.dynamics / part_name(1, 200), parts[i % len(parts)])
        entries.append(LedgerEntry(cell.run_id, cell.label, status.status, 200, 200, 60.0, varied=cell.varied))
    write_atomic(ledger.experiment("large") / "experiment.yaml", to_yaml(experiment))
    write_ledger(ledger.experiment("large"), Ledger(tuple(entries)))
    return folder


def _rows(random: np.random.Generator) -> tuple[MetricRow, ...]:
    names = [("preference", name) for name in ("accuracy", "margin", "drift_w", "drift_l")]
    names += [(name, "acc") for name in ("arc_easy", "hellaswag")]
    return tuple(MetricRow(name, metric, random.random(), 0.01, 256, task_version="1") for name, metric in names)


def _part(random: np.random.Generator, steps: int) -> bytes:
    """Step records of one run."""
    words = ["iii" if share < 0.8 else "i" for share in random.random(steps)]
    looks = [word if i % 10 == 9 else "" for i, word in enumerate(words)]
    sink = pa.BufferOutputStream()
    pq.write_table(_table(random, steps, {"pathway_predicted": words, "pathway_realised": looks}), sink)
    return bytes(sink.getvalue().to_pybytes())


def _table(random: np.random.Generator, steps: int, words: dict[str, list[str]]) -> pa.Table:
    columns: dict[str, Any] = {}
    for field in SCHEMA:
        if pa.types.is_boolean(field.type):
            columns[field.name] = random.random(steps) < 0.9
        elif not (pa.types.is_string(field.type) or pa.types.is_dictionary(field.type)):
            columns[field.name] = random.normal(size=steps)
        else:
            columns[field.name] = words.get(field.name, [""] * steps)
    columns |= {"step": np.arange(1, steps + 1), "rho": random.uniform(0.1, 0.9, steps)}
    columns |= {name: np.arange(steps) for name in ("epoch", "tokens")}
    columns |= {"band_lower": columns["log_r_star"] - 1, "band_upper": columns["log_r_star"] + 1}
    return pa.table({field.name: pa.array(columns[field.name], type=field.type) for field in SCHEMA})


def aggregate(ledger: Path, out: Path) -> float:
    """Ledger in, tables and page out; seconds of processor time, which other programs do not disturb."""
    started = time.process_time()
    run_report(Request(ledger=ledger, out=out, figures=False))
    return time.process_time() - started


def records(folder: Path, runs: int, steps: int) -> tuple[Experiment, Store]:
    """A store of finished runs with long step records."""
    grid = {"train.learning_rate": [1e-6 * (i + 1) for i in range(runs // 2)], "calibration.enabled": [False, True]}
    run = {"model": "tiny-neox", "data": {"train_pairs": 32 * steps}}
    experiment = Experiment(name="long", run=run, grid=grid)
    store = Store.open(folder)
    random = np.random.default_rng(0)
    for cell in expand(experiment):
        target = store.run(cell.run_id)
        target.dynamics.mkdir(parents=True)
        pq.write_table(
            _table(random, steps, {"pathway_predicted": ["iii"] * steps}), target.dynamics / part_name(1, steps)
        )
        write_status(target.status, RunStatus(cell.run_id, status=State.OK, step=steps, total_steps=steps))
    return experiment, store


def draw(experiment: Experiment, store: Store, runs: int) -> int:
    """Figures of the first runs, each let go as soon as it is drawn; returns how many."""
    from rcray.aggregate.figures import draw_all
    from rcray.aggregate.groups import compare

    results = collect(store, expand(experiment)[:runs])
    return sum(1 for _ in draw_all(compare(results), [], "nats"))


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
