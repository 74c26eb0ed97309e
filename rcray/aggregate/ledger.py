"""An exported ledger: everything the report needs of finished runs, in one directory, without store or server.

LEDGER/
  ledger.json                 format, the experiments and which runs each of them has
  runs.jsonl                  one line per run: configuration, status, metric rows, summary of the step records
  runs/RUN_ID/dynamics/       the columns of the step records that figures draw, compressed
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rcray.aggregate.collect import CellResult, make_result
from rcray.aggregate.summary import FULL, FULL_COLUMNS, DynamicsSummary, HeadFull
from rcray.config import Experiment
from rcray.errors import RcrayError, StoreError
from rcray.files import read_json, write_atomic, write_json
from rcray.records.evaluation import MetricRow, parse_rows
from rcray.records.states import State
from rcray.records.status import RunStatus, parse_status
from rcray.store import RunDir, plain_name
from rcray.sweep.grid import Cell

FORMAT = 1
_STATUS_FIELDS = ("status", "step", "total_steps", "seconds", "error")
_COLUMNS = (
    "step", "log_r", "log_r_base", "log_r_star", "band_lower", "band_upper", "rho", "in_band", "pathway_predicted",
    "pathway_realised", "probe_z_w", "probe_z_l", "skipped",
)  # fmt: skip


@dataclass(frozen=True)
class ExperimentRuns:
    """An experiment and the runs that are its cells, in order."""

    experiment: Experiment
    run_ids: tuple[str, ...]


@dataclass(frozen=True)
class LedgerContent:
    """What a ledger holds."""

    experiments: tuple[ExperimentRuns, ...]
    results: tuple[CellResult, ...]


def export_ledger(folder: Path, experiments: Sequence[ExperimentRuns], results: Sequence[CellResult]) -> Path:
    """Writes the ledger of results that were collected from a store; returns the folder."""
    existing = folder / "ledger.json"
    if folder.exists() and any(folder.iterdir()) and not existing.exists():
        raise StoreError(f"{folder}: holds other files", fix="give an empty or a new directory")
    lines = []
    for result in results:
        lines.append(json.dumps(_run_content(result), ensure_ascii=False, allow_nan=False))
        _copy_dynamics(result, RunDir(folder / "runs" / result.cell.run_id))
    write_atomic(folder / "runs.jsonl", "".join(f"{line}\n" for line in lines))
    content = {
        "format": FORMAT,
        "experiments": [
            {"experiment": e.experiment.model_dump(mode="json"), "runs": list(e.run_ids)} for e in experiments
        ],
    }
    write_json(existing, content)
    return folder


def read_ledger(folder: Path) -> LedgerContent:
    """Reads a ledger; step records stay on disk until a figure asks for them."""
    head = read_json(folder / "ledger.json")
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        found = (
            "no ledger.json" if head is None else f"format {head.get('format') if isinstance(head, dict) else head!r}"
        )
        raise StoreError(
            f"{folder}: {found}, and this program reads format {FORMAT}",
            fix="give a directory written by `rcray report FILES --export-ledger DIR`",
        )
    results = []
    for number, run in enumerate(_lines(folder / "runs.jsonl"), start=1):
        try:
            results.append(_result(folder, run))
        except (KeyError, TypeError, ValueError) as error:
            raise _damaged(folder / "runs.jsonl", number, error) from None
    try:
        experiments = tuple(
            ExperimentRuns(Experiment.model_validate(entry["experiment"]), tuple(entry["runs"]))
            for entry in head["experiments"]
        )
    except (KeyError, TypeError, ValidationError) as error:
        raise _damaged(folder / "ledger.json", 1, error) from None
    return LedgerContent(experiments, tuple(results))


def _lines(path: Path) -> Iterable[dict[str, Any]]:
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                try:
                    yield json.loads(line)
                except json.JSONDecodeError as error:
                    raise _damaged(path, number, error) from None
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror or error}", fix="export the ledger again") from None


def _damaged(path: Path, line: int, error: Exception) -> StoreError:
    reason = " ".join(str(error).split())[:300]
    return StoreError(f"{path}, line {line}: not what this version writes: {reason}", fix="export the ledger again")


def _run_content(result: CellResult) -> dict[str, Any]:
    problem = ""
    status = RunStatus()
    rows: tuple[MetricRow, ...] = ()
    try:
        status = result.run.read_status()
        rows = result.run.read_evaluation().rows
    except RcrayError:
        problem = result.error  # what could not be read is carried along as words
    if result.status is State.FAILED and status.status is not State.FAILED:
        problem = problem or result.error
    if result.status is State.STOPPED:
        status = replace(status, status=result.status, error=result.error)
    cell = result.cell.content()
    return {
        "run_id": cell["run_id"],
        "varied": cell["varied"],
        "status": {name: getattr(status, name) for name in _STATUS_FIELDS} | _noted(result),
        "problem": problem,
        "rows": [_plain(row.content()) for row in rows],
        "summary": _plain(asdict(result.summary)) if result.summary else None,
        "config": cell["config"],
    }


def _noted(result: CellResult) -> dict[str, str]:
    return {"note": result.note} if result.note else {}


def _plain(value: Any) -> Any:
    """The same without nan and infinities, which JSON does not have: nan is null."""
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _result(folder: Path, content: Mapping[str, Any]) -> CellResult:
    cell = Cell.from_content(content)
    run = RunDir(folder / "runs" / plain_name(cell.run_id, "run"))
    status, rows = parse_status(content["status"]), parse_rows(content["rows"])
    summary = _summary(content["summary"]) if content["summary"] else None
    return make_result(run, cell, status, rows, summary, content["problem"], content["status"].get("note", ""))


def _summary(content: Mapping[str, Any]) -> DynamicsSummary:
    def number(value: Any) -> Any:
        return math.nan if value is None else value

    fields = {name: number(value) for name, value in content.items() if name != "head_full"}
    both = content.get("head_full")
    head_full = HeadFull(**{name: number(value) for name, value in both.items()}) if both else None
    return DynamicsSummary(**fields, head_full=head_full)


def _copy_dynamics(result: CellResult, target: RunDir) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from rcray.train.dynamics import part_name, read_dynamics

    if result.summary is None:
        return
    full = [f"{name}{FULL}" for name in FULL_COLUMNS] if result.summary.head_full else []
    table = read_dynamics(result.run.dynamics, [*_COLUMNS, *full])
    floats = [field.name for field in table.schema if pa.types.is_floating(field.type)]
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        compression="zstd",
        compression_level=15,
        use_dictionary=[name for name in table.column_names if name not in floats],
        use_byte_stream_split=floats,
        write_statistics=False,
    )
    steps = table["step"].to_pylist()
    write_atomic(target.dynamics / part_name(steps[0], steps[-1]), sink.getvalue().to_pybytes())
