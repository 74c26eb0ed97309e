"""The part of the page about single runs: status, metrics, files, configuration, and the way to its figure."""

import math
import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

import yaml

from rcray.aggregate.collect import CellResult
from rcray.aggregate.groups import setting_key
from rcray.aggregate.html_parts import chip, text
from rcray.aggregate.tables import number

_WITH_CONFIGURATION = 500  # runs whose settings the page spells out; past that it would be tens of megabytes


def cells(results: Sequence[CellResult], folder: Path) -> str:
    """A foldable block per run; links are relative to `folder`, where the page is."""
    if not results:
        return ""
    spelled_out = len(results) <= _WITH_CONFIGURATION
    seeds: dict[str, list[CellResult]] = {}
    if spelled_out:
        for result in results:
            seeds.setdefault(setting_key(result.cell.config), []).append(result)
    siblings = {r.cell.run_id: group for group in seeds.values() for r in group if len(group) > 1}
    items = "".join(_cell(r, folder, siblings.get(r.cell.run_id, []), spelled_out) for r in results)
    short = "" if spelled_out else " With so many of them, settings stand only in each run's own files."
    return (
        '<section id="cells"><h2>Cells</h2><p class="soft">One run each; a run is named by its content, so the same '
        f"cell in another experiment is the same directory.{short}</p>{items}</section>"
    )


def _cell(result: CellResult, folder: Path, siblings: Sequence[CellResult], spelled_out: bool) -> str:
    progress = f"{result.step} of {result.total_steps or '?'} steps"
    parts = []
    if result.error:
        parts.append(f"<pre>{text(result.error)}</pre>")
    if spelled_out and result.metrics and result.ok:
        parts.append(_metrics(result))
    if result.summary is not None:
        parts.append(f"<p>{text(dynamics_sentence(result))}</p>")
    if siblings:
        links = ", ".join(
            f'<a href="#run-{text(other.cell.run_id)}">seed {other.seed}</a>'
            for other in siblings
            if other.cell.run_id != result.cell.run_id
        )
        parts.append(f"<p>Other seeds of this setting: {links}.</p>")
    run = result.run
    files = [run.config, run.status, run.evaluation, run.dynamics, run.final] if spelled_out else [run.path]
    base = quote(os.path.relpath(run.path, folder))
    links = ", ".join(
        f'<a href="{base}{"" if path == run.path else "/" + path.name}">{text(path.name)}</a>'
        for path in files
        if path.exists()
    )
    parts.append(f"<p>Files: {links or 'none yet'}.</p>")
    if spelled_out:
        config = yaml.safe_dump(result.cell.config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
        parts.append(f"<details><summary>Configuration</summary><pre>{text(config)}</pre></details>")
    return (
        f'<details class="cell" id="run-{text(result.cell.run_id)}"><summary>{chip(result.status)}'
        f"<span>{text(result.cell.label)}</span>"
        f'<span class="mono">{text(result.cell.run_id)}</span><span class="push">{text(progress)}, '
        f"{text(duration(result.seconds))}</span></summary><div>{''.join(parts)}</div></details>"
    )


def _metrics(result: CellResult) -> str:
    rows = []
    for name, m in result.metrics.items():
        interval = "–" if math.isnan(m.ci_low) else f"{number(m.ci_low, 4)} to {number(m.ci_high, 4)}"
        error = "–" if math.isnan(m.stderr) else number(m.stderr, 4)
        value = number(m.value, 4) if m.ok else f"{m.status}: {m.reason}" if m.reason else m.status
        protocol = ", ".join(f"{key.replace('_', ' ')} {word}" for key, word in m.protocol) or "–"
        rows.append((name, value, error, interval, m.n, protocol))
    head = "".join(f"<th>{name}</th>" for name in ("Metric", "Value", "Std. error", "Interval", "n", "Measured with"))
    body = "".join("<tr>" + "".join(f"<td>{text(field)}</td>" for field in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


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
