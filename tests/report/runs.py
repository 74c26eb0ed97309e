"""Fake run directories in the formats of a store, for tests of tables, figures and the page.

The six cells of the quickstart get step records that look like training: CPO leaves the band without RC, DPO drags
the winner down, DIL-BCE stays inside; with RC all three stay inside. Numbers are made, not measured.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rcray.config import Experiment
from rcray.records.columns import COLUMNS, pathway_of
from rcray.records.progress import TRAINING, _Reporter
from rcray.store import RunDir, Store
from rcray.sweep.grid import Cell, expand

#: (objective, RC): accuracy, held-out drift of winner and loser, offset of log r from the band's centre
OUTCOMES: Mapping[tuple[str, bool], tuple[float, float, float, float]] = {
    ("dpo", False): (0.8125, -3.2, -9.6, -0.9),
    ("dpo", True): (0.828125, 0.4, -6.1, 0.0),
    ("cpo", False): (0.703125, 6.3, 4.1, 1.30),
    ("cpo", True): (0.79296875, 1.9, -2.0, 0.0),
    ("dil-bce", False): (0.84375, 1.1, -7.3, 0.10),
    ("dil-bce", True): (0.83984375, 0.9, -7.0, 0.0),
}


def quickstart() -> Experiment:
    """The shape of experiments/quickstart.yaml, with settings of its own: exact texts depend on them."""
    return Experiment(
        name="quickstart",
        title="Three objectives on tiny-neox, calibration off and on",
        run={
            "model": "tiny-neox",
            "data": {"train_pairs": 3200, "eval_pairs": 256},
            "train": {"batch_size": 16, "micro_batch_size": 8, "learning_rate": 3e-4, "seed": 42, "probe_every": 10},
        },
        grid={"objective": ["dpo", "cpo", "dil-bce"], "calibration.enabled": [False, True]},
    )


def cells_of(experiment: Experiment, **overrides: Any) -> list[Cell]:
    return expand(experiment, overrides)


def several_seeds(experiment: Experiment, seeds: tuple[int, ...] = (42, 43, 44)) -> Experiment:
    return experiment.model_copy(update={"grid": {**experiment.grid, "train.seed": list(seeds)}})


def write_runs(store: Store, cells: list[Cell]) -> None:
    for cell in cells:
        write_ok(store, cell)


def write_ok(store: Store, cell: Cell, steps: int | None = None) -> RunDir:
    run = store.run(cell.run_id)
    write_status(run, cell, "ok")
    write_evaluation(run, cell)
    if not cell.config.is_start_model:  # it has no steps
        write_dynamics(run, cell, steps or cell.config.total_steps)
    return run


def make(store: Store, cell: Cell, status: str, error: str = "", steps: int = 0) -> RunDir:
    """A cell that has no result: failed, oom, degenerate or running."""
    run = store.run(cell.run_id)
    write_status(run, cell, status, error=error, step=steps)
    if status == "running":  # by this process
        _Reporter(run.path)(TRAINING, steps, cell.config.total_steps or 0)
    if steps:
        write_dynamics(run, cell, steps)
    return run


def write_status(run: RunDir, cell: Cell, status: str, error: str = "", step: int | None = None) -> None:
    total = cell.config.total_steps
    content = {
        "status": status,
        "run_id": cell.run_id,
        "label": cell.label,
        "step": total if step is None else step,
        "total_steps": total,
        "error": error,
        "seconds": 41.5,
        "fidelity": cell.config.fidelity,
    }
    run.path.mkdir(parents=True, exist_ok=True)
    run.status.write_text(json.dumps(content))


def write_evaluation(run: RunDir, cell: Cell) -> None:
    accuracy, drift_w, drift_l = _outcome(cell)[:3]
    n = cell.config.data.eval_pairs
    scale = 128 if cell.config.calibration.enabled else 64
    shift = (cell.config.train.seed - 42) / scale  # exact binary fractions
    rows = []
    for metric, value, stderr in (
        ("accuracy", accuracy + shift, math.sqrt(accuracy * (1 - accuracy) / n)),
        ("margin", drift_w - drift_l, 0.25),
        ("drift_w", drift_w + shift, 0.125),
        ("drift_l", drift_l, 0.25),
    ):
        low, high = value - 1.96 * stderr, value + 1.96 * stderr
        rows.append({"benchmark": "preference", "metric": metric, "value": value, "stderr": stderr, "n": n,
                     "ci_low": low, "ci_high": high})  # fmt: skip
    run.evaluation.write_text(json.dumps({"rows": rows}))


def add_benchmarks(run: RunDir, scores: Mapping[str, float | None], stderr: float = 0.01, **protocol: Any) -> None:
    """Benchmark rows as the evaluation writes them; None is a degenerate model."""
    content = json.loads(run.evaluation.read_text()) if run.evaluation.exists() else {"rows": []}
    for name, value in scores.items():
        benchmark, _, metric = name.partition("/")
        row = {"benchmark": benchmark, "metric": metric, "value": value, "n": 1172, "status": "ok",
               "stderr": None if value is None else stderr, "stderr_kind": "pooled", "stderr_pooled": stderr,
               "task_version": "1.0", "shots": 25, "chat_template": False, "harness": "0.4.13"} | protocol  # fmt: skip
        if value is None:
            row |= {"status": "degenerate", "reason": "every answer is the first choice", "observed": 0.227}
        content["rows"].append(row)
    run.evaluation.write_text(json.dumps(content))


def write_dynamics(
    run: RunDir, cell: Cell, steps: int, parts: int = 2, columns: Mapping[str, Any] | None = None
) -> None:
    columns = columns or dynamics(cell, steps)
    run.dynamics.mkdir(parents=True, exist_ok=True)
    kinds = {"int": pa.int64(), "float": pa.float64(), "bool": pa.bool_(), "str": pa.string()}
    table = pa.table({c.name: pa.array(columns[c.name], type=kinds[c.kind]) for c in COLUMNS})
    for rows in np.array_split(np.arange(steps), parts):
        if len(rows):
            name = f"part-{rows[0] + 1:08d}-{rows[-1] + 1:08d}.parquet"
            pq.write_table(table.take(pa.array(rows)), run.dynamics / name)


def dynamics(cell: Cell, steps: int) -> dict[str, Any]:
    """One value per column and step."""
    config = cell.config
    rng = np.random.default_rng([config.train.seed, config.calibration.enabled, *map(ord, config.objective.name)])
    _, drift_w, drift_l = _outcome(cell)[:3]
    t = np.arange(1, steps + 1)
    progress = t / config.total_steps
    grown = 1 - np.exp(-3 * progress)
    rho = 0.62 - 0.2 * progress + rng.normal(0, 0.06, steps)
    rho[7::50] = -0.05  # the band is unbounded here
    half = np.where(rho <= 0, np.inf, -np.log(np.maximum(rho, 1e-9)))
    centre = -0.15 + 0.5 * progress + rng.normal(0, 0.08, steps)
    plain = config.model_copy(update={"calibration": config.calibration.model_copy(update={"enabled": False})})
    own = _outcome(Cell("", plain, ()))[3]  # the objective's ratio is the same before RC
    log_r_base = centre + own * (0.4 + grown) + rng.normal(0, 0.12, steps)
    log_r = centre + rng.normal(0, 0.05, steps) if config.calibration.enabled else log_r_base
    slack = half - np.abs(log_r - centre)
    at_head = np.where(slack >= 0, "iii", np.where(log_r > centre, "i", "ii"))
    noise = rng.normal(0, 4.0, steps)
    z_w, z_l = -62 + drift_w * grown + noise, -71 + drift_l * grown + noise + rng.normal(0, 1.0, steps)
    measured = ((t - 1) % config.train.probe_every == 0) | (t == config.total_steps)
    probe_w = np.where(measured, -60 + drift_w * grown + rng.normal(0, 0.02, steps), np.nan)
    probe_l = np.where(measured, -70 + drift_l * grown + rng.normal(0, 0.02, steps), np.nan)
    zero, one = np.zeros(steps), np.ones(steps)
    moves = [_moves(probe, t == config.total_steps) for probe in (probe_w, probe_l)]
    nothing = [c.name for c in COLUMNS if c.name.startswith(("next_", "batch_", "true_", "fresh_", "probe_"))]
    nothing += [c.name for c in COLUMNS if c.name.endswith(("_full", "_exact"))]
    return {
        **{name: np.nan * one for name in nothing},
        "step": t, "epoch": np.zeros(steps, int), "loss": 0.69 * np.exp(-progress) + rng.normal(0, 0.02, steps),
        "z_w": z_w, "z_l": z_l, "zt_w": drift_w * grown, "zt_l": drift_l * grown, "margin": z_w - z_l,
        "d_w": np.exp(log_r_base), "d_l": one, "log_d_w": log_r_base, "log_d_l": zero, "log_s_w": -centre,
        "log_s_l": zero, "rho": rho, "log_r_base": log_r_base, "log_r": log_r, "log_r_star": centre,
        "band_lower": centre - half, "band_upper": centre + half, "slack": slack, "in_band": slack >= 0,
        "log_alpha": (log_r - log_r_base) / 2, "clipped": zero, "skipped": [""] * steps,
        "reversed": np.zeros(steps, bool), "guarded": zero, "pathway_head": at_head,
        "predicted_dz_w": moves[0], "predicted_dz_l": moves[1], "guarding": np.zeros(steps, bool),
        "pathway_predicted": [pathway_of(*move) if move[0] == move[0] else "" for move in zip(*moves, strict=True)],
        "probe_z_w": probe_w, "probe_z_l": probe_l, "pathway_realised": _realised(probe_w, probe_l),
        "grad_norm": one, "learning_rate": 3e-4 * one, "tokens": np.full(steps, 1024), "seconds": 0.2 * one,
        "padding": 0.1 * one,
    }  # fmt: skip


def moved(columns: dict[str, Any]) -> dict[str, Any]:
    """The same records with what a probe says of distributions: away from the start, gaining and then losing."""
    measured = ~np.isnan(columns["probe_z_w"])
    distance = np.linspace(0, 1, len(measured)) ** 0.5
    gain = np.where(distance > 0, distance * (0.2 - 0.5 * np.log(np.maximum(distance, 1e-9))), 0)
    values = {
        "probe_kl": distance**2, "probe_accuracy": 0.5 + gain, "probe_entropy": 2 - distance,
        "probe_logp_w": -2 - distance, "probe_logp_greedy": -1 + distance / 2, "probe_logp_other": -6 - distance,
        "probe_logp_shuffled": -5 + distance,
    }  # fmt: skip
    return columns | {name: np.where(measured, value, np.nan) for name, value in values.items()}


def _moves(probe: np.ndarray, after: np.ndarray) -> np.ndarray:
    """What looks foresee: the probe's own moves."""
    moves = np.full(len(probe), np.nan)
    seen = np.flatnonzero(~np.isnan(probe) & ~after)
    moves[seen[1:]] = np.diff(probe[seen])
    return moves


def _realised(probe_w: np.ndarray, probe_l: np.ndarray) -> list[str]:
    words, last = [], None
    for w, l in zip(probe_w, probe_l, strict=True):  # noqa: E741
        word = ""
        if not math.isnan(w):
            if last is not None:
                up_w, up_l = w >= last[0], l > last[1]
                word = {(True, False): "iii", (True, True): "i", (False, False): "ii"}.get((up_w, up_l), "reversed")
            last = (w, l)
        words.append(word)
    return words


def _outcome(cell: Cell) -> tuple[float, float, float, float]:
    name = cell.config.objective.name
    return OUTCOMES[name if (name, True) in OUTCOMES else "dpo", cell.config.calibration.enabled]
