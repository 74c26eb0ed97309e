"""What the page says of single runs: status, metrics, files, configuration, and the way to its other seeds."""

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from rcray.aggregate.collect import CellResult
from rcray.aggregate.groups import setting_key
from rcray.aggregate.summary import AGREEMENT, CHANGE_L, CHANGE_W, PREDICTED, REALISED, SKIPPED, STEPS
from rcray.aggregate.tables import number
from rcray.config.load import to_yaml
from rcray.records.columns import DYNAMICS, IN_BAND
from rcray.records.progress import duration

WITH_CONFIGURATION = 500  # runs whose settings the page spells out; past that it would be tens of megabytes


@dataclass(frozen=True)
class CellBlock:
    """One run as the page folds it away; an empty field is left out."""

    run_id: str
    status: str
    label: str
    progress: str
    error: str
    note: str
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
    files = (
        [run.config, run.status, run.evaluation, run.samples, run.dynamics, run.final] if spelled_out else [run.path]
    )
    return CellBlock(
        run_id=result.cell.run_id,
        status=result.status,
        label=result.cell.label,
        progress=f"{result.step} of {result.total_steps or '?'} steps, {duration(result.seconds, 1)}",
        error=result.error,
        note=result.note,
        metrics=list(_metrics(result)) if spelled_out and result.ok else [],
        dynamics=dynamics_sentence(result) if result.recorded else "",
        siblings=[(r.cell.run_id, r.seed) for r in siblings if r.cell.run_id != result.cell.run_id],
        files=[(quote(os.path.relpath(path, folder)), path.name) for path in files if path.exists()],
        config=to_yaml(result.cell.config) if spelled_out else "",
    )


def _metrics(result: CellResult) -> Iterator[tuple[object, ...]]:
    for metric, row in result.metrics.items():
        if metric.startswith(DYNAMICS):  # said in a sentence
            continue
        low, high = row.interval
        interval = "–" if math.isnan(low) else f"{number(low, 4)} to {number(high, 4)}"
        error = "–" if math.isnan(row.error) else number(row.error, 4)
        value = number(row.value, 4) if row.ok else f"{row.status}: {row.reason}" if row.reason else row.status
        protocol = ", ".join(f"{key.replace('_', ' ')} {word}" for key, word in row.protocol) or "–"
        yield metric, value, error, interval, row.n, protocol


def dynamics_sentence(result: CellResult) -> str:
    """The step records of a run in words."""
    calibration = result.cell.config.calibration
    inside = f"{result.value(IN_BAND):.0%} inside the band at the {calibration.scores_at}"
    said = f"{result.value(STEPS):.0f} steps recorded, {inside}."
    for name, metrics in (("predicted", PREDICTED), ("realised on the probe set", REALISED)):
        shares = {word: row.value for word, key in metrics.items() if (row := result.measurement(key)) and row.ok}
        if pathways := ", ".join(f"{word} {share:.0%}" for word, share in shares.items() if share):
            said += f" Pathways {name}: {pathways}."
    if agreement := result.metrics.get(AGREEMENT):
        said += f" Prediction and probe set agree in {agreement.value:.0%} of {agreement.n} intervals."
    changes = [result.value(metric) for metric in (CHANGE_W, CHANGE_L)]
    if all(map(math.isfinite, changes)):
        said += " Probe set: z_w {:+.2f}, z_l {:+.2f} since its first measurement.".format(*changes)
    if result.bands_disagree:
        said += f" The band at the {calibration.scores_at} and the updates made disagree ({result.bands_disagree})."
    if result.value(SKIPPED) and not calibration.steers_by_update:  # there it is only the head that saw nothing
        said += f" Calibration left {result.value(SKIPPED):.0%} of steps alone."
    return said
