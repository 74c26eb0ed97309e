"""An exported ledger: a small store that has what a report reads of the runs, and neither weights nor checkpoints.

LEDGER/
  experiments/NAME/     experiment.yaml, ledger.json, and stopped.json where its search has stopped runs
  runs/RUN_ID/          config.yaml, status.json, evaluation.json, samples.json, items/*.parquet,
                        displaced/*.parquet, adjusted.json, dynamics/*.parquet
"""

import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import ValidationError

from rcray.aggregate.collect import CellResult
from rcray.config import Experiment, build_run
from rcray.config.load import explain, read_yaml, to_yaml
from rcray.errors import StoreError
from rcray.files import write_atomic, write_parquet
from rcray.records.columns import IN_BAND
from rcray.records.ledger import Ledger, LedgerEntry, read_ledger, write_ledger, write_stopped
from rcray.records.states import State
from rcray.records.status import write_status
from rcray.store import RunDir, Store
from rcray.sweep.grid import Cell

_EXPERIMENT = "experiment.yaml"
Planned = tuple[Experiment, Sequence[Cell]]  # an experiment and its cells


def export_ledger(folder: Path, planned: Sequence[Planned], results: Sequence[CellResult]) -> Path:
    """Writes what a report reads of these runs; returns the folder."""
    ledger = Store.at(folder)
    if folder.exists() and any(folder.iterdir()) and not _files(ledger):
        raise StoreError(f"{folder}: holds other files", fix="give an empty or a new directory")
    for result in results:
        _export_run(result, ledger.run(result.cell.run_id))
    by_run = {result.cell.run_id: result for result in results}
    for experiment, cells in planned:
        place = ledger.experiment(experiment.name)
        write_atomic(place / _EXPERIMENT, to_yaml(experiment))
        write_ledger(place, Ledger(tuple(_entry(cell, by_run[cell.run_id]) for cell in cells), time.time()))
        for cell in cells:
            if by_run[cell.run_id].status is State.STOPPED:
                write_stopped(place, cell.run_id, by_run[cell.run_id].error)
    return folder


def exported_experiments(exported: Store) -> list[Planned]:
    """The experiments of an exported ledger and their cells, in the order in which they were exported."""
    files = _files(exported)
    if not files:
        raise StoreError(
            f"{exported.root}: has no experiments/NAME/{_EXPERIMENT}",
            fix="give a directory written by `rcray report FILES --export-ledger DIR`",
        )
    ledgers = sorted(((file, read_ledger(file.parent)) for file in files), key=lambda pair: pair[1].updated)
    return [(_experiment(file), [cell_of(exported, entry) for entry in content.cells]) for file, content in ledgers]


def _files(exported: Store) -> list[Path]:
    return sorted(exported.root.glob(f"experiments/*/{_EXPERIMENT}"))


def _experiment(path: Path) -> Experiment:
    """Not as a file of one's own is read: a ledger of somebody else's may not name another file as its base."""
    content = read_yaml(path)
    try:
        return Experiment.model_validate(content)
    except ValidationError as error:
        raise explain(error, Experiment, content, str(path)) from None


def cell_of(exported: Store, entry: LedgerEntry) -> Cell:
    """The cell of an entry, with the settings in its run's directory."""
    path = exported.run(entry.run_id).config
    return Cell(entry.run_id, build_run(read_yaml(path), {}, str(path)), entry.varied)


def _entry(cell: Cell, result: CellResult) -> LedgerEntry:
    in_band = result.value(IN_BAND) if result.recorded else None
    return LedgerEntry(
        cell.run_id, cell.label, result.status, result.step, result.total_steps, result.seconds, in_band, result.error,
        "; ".join(filter(None, [result.note, result.bands_disagree])), cell.varied,
    )  # fmt: skip


def _export_run(result: CellResult, target: RunDir) -> None:
    """What cannot be read is copied as it is: the ledger then says of it what the store says."""
    source = result.run
    write_atomic(target.config, to_yaml(result.cell.config))
    if source.status.exists():
        try:
            write_status(target.status, replace(source.read_status(), writer=None, attempt=""))
        except StoreError:
            shutil.copyfile(source.status, target.status)
    for name in source.records.keys() - {target.config.name, target.status.name}:
        if source.records[name].exists():
            shutil.copyfile(source.records[name], target.records[name])
    for kept in sorted([*source.path.glob("items/*.parquet"), *source.path.glob("displaced/*.parquet")]):
        write_atomic(target.path / kept.parent.name / kept.name, kept.read_bytes())
    if result.recorded:
        _export_dynamics(source, target)
    elif source.dynamics.exists():
        shutil.copytree(source.dynamics, target.dynamics, dirs_exist_ok=True)


def _export_dynamics(source: RunDir, target: RunDir) -> None:
    """The step records in one part, packed tightly."""
    import pyarrow as pa

    from rcray.aggregate.summary import recorded_columns
    from rcray.train.dynamics import part_name, read_dynamics

    table = read_dynamics(source.dynamics, list(recorded_columns(source)))
    floats = [field.name for field in table.schema if pa.types.is_floating(field.type)]
    steps = table["step"].to_pylist()
    write_parquet(
        target.dynamics / part_name(steps[0], steps[-1]),
        table,
        compression="zstd",
        compression_level=15,
        use_dictionary=[name for name in table.column_names if name not in floats],
        use_byte_stream_split=floats,
        write_statistics=False,
        write_page_checksum=False,
    )
