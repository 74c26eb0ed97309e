"""What the page says of single runs: status, metrics, files, configuration, and the way to its other seeds."""

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import yaml

from rcray.aggregate.collect import CellResult
from rcray.aggregate.groups import setting_key
from rcray.aggregate.tables import number

WITH_CONFIGURATION = 500  # runs whose settings the page spells out; past that it would be tens of megabytes


@dataclass(frozen=True)
class CellBlock:
    """One run as the page folds it away; an empty field is left out."""

    run_id: str
    status: str
    label: str
    progress: str
    error: str
    metrics: list[tuple[object, ...]]  # name, value, standard error, interval, n, protocol
    dynamics: str
    siblings: list[tuple[str, int]]  # run id and seed
    files: list[tuple[str, str]]  # link and name
    config: str


def cell_blocks(results: Sequence[CellResult], folder: Path) -> list[CellBlock]:
    """A block per run; links are relative to `folder`, where the page is."""
    spelled_out = len(results) <= WITH_CONFIGURATION
    seeds: dict[str, list[CellResult]] = {}
    if spelled_out:
        for result in results:
            seeds.setdefault(setting_key(result.cell.config), []).append(result)
    siblings = {r.cell.run_id: group for group in seeds.values() for r in group}
    return [_block(result, folder, siblings.get(result.cell.run_id, []), spelled_out) for result in results]


def _block(result: CellResult, folder: Path, siblings: Sequence[CellResult], spelled_out: bool) -> CellBlock:
    run = result.run
    files = [run.config, run.status, run.evaluation, run.dynamics, run.final] if spelled_out else [run.path]
    return CellBlock(
        run_id=result.cell.run_id,
        status=result.status,
        label=result.cell.label,
        progress=f"{result.step} of {result.total_steps or '?'} steps, {duration(result.seconds)}",
        error=result.error,
        metrics=list(_metrics(result)) if spelled_out and result.ok else [],
        dynamics=dynamics_sentence(result) if result.summary is not None else "",
        siblings=[(r.cell.run_id, r.seed) for r in siblings if r.cell.run_id != result.cell.run_id],
        files=[(quote(os.path.relpath(path, folder)), path.name) for path in files if path.exists()],
        config=_settings(result) if spelled_out else "",
    )


def _settings(result: CellResult) -> str:
    return yaml.safe_dump(result.cell.config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _metrics(result: CellResult) -> Iterator[tuple[object, ...]]:
    for name, m in result.metrics.items():
        interval = "–" if math.isnan(m.ci_low) else f"{number(m.ci_low, 4)} to {number(m.ci_high, 4)}"
        error = "–" if math.isnan(m.stderr) else number(m.stderr, 4)
        value = number(m.value, 4) if m.ok else f"{m.status}: {m.reason}" if m.reason else m.status
        protocol = ", ".join(f"{key.replace('_', ' ')} {word}" for key, word in m.protocol) or "–"
        yield name, value, error, interval, m.n, protocol


def dynamics_sentence(result: CellResult) -> str:
    """The step records of a run in words."""
    summary = result.summary
    assert summary is not None
    shares = ", ".join(f"{name} {100 * share:.0f}%" for name, share in summary.pathways.items() if share)
    inside = f"{100 * summary.in_band:.0f}% inside the band"
    said = f"{summary.steps} steps recorded, {inside}; predicted pathways: {shares}."
    if summary.intervals:
        agreed = f"{100 * summary.agreement:.0f}% of {summary.intervals} probe intervals"
        said += f" Prediction and probe set agree in {agreed}."
    if math.isfinite(summary.change_w) and math.isfinite(summary.change_l):
        said += f" Probe set: z_w {summary.change_w:+.2f}, z_l {summary.change_l:+.2f} since its first measurement."
    if summary.skipped:
        said += f" Calibration left {100 * summary.skipped:.0f}% of steps alone."
    return said


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
