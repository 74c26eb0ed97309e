"""From a dataset's name to its raw rows: a local file, a directory, or the hub through `datasets`."""

import os
from pathlib import Path
from typing import Any

from rcray.config import content_key
from rcray.config.data import DataConfig
from rcray.config.datasets import FILE_SUFFIXES, source_of
from rcray.data.rows import CsvFile, JsonLines, Rows, file_digest, json_rows
from rcray.data.tables import DatasetTable, Joined, ParquetTable
from rcray.errors import DataError, did_you_mean


def open_rows(config: DataConfig, split: str | None) -> Rows:
    """The rows of one split."""
    parts = tuple(_open_part(config, part, split) for part in source_of(config.name).parts_of(config.subset))
    return parts[0] if len(parts) == 1 else Joined(parts, alternating=True)


def _open_part(config: DataConfig, subset: str | None, split: str | None) -> Rows:
    source = source_of(config.name)
    location = config.path or source.hub_id or config.name
    path = find_local(location)
    if path is not None:
        return local_rows(path / subset if subset else path, split)
    if config.path or source.name in ("file", "directory"):
        field = "data.path" if config.path else "data.name"
        raise DataError(f"{field}: {location}: no such file or directory", fix=_nearby(Path(location)))
    return hub_rows(config.name, location, split, config.revision, **{"data_dir" if source.parts else "name": subset})


def find_local(location: str) -> Path | None:
    """The path as given, from here or from where a Tune trial was started: Tune moves its trials elsewhere."""
    path = Path(location).expanduser()
    starts = [Path.cwd(), Path(os.environ.get("TUNE_ORIG_WORKING_DIR", "."))]
    return next((start / path for start in starts if (start / path).exists()), None)


def _nearby(path: Path) -> str:
    folder = path.expanduser().parent
    names = [p.name for p in folder.iterdir() if not p.name.startswith(".")] if folder.is_dir() else []
    return f"correct the path{did_you_mean(path.name, names[:50])}" if names else "correct the path"


# -- local


def local_rows(path: Path, split: str | None) -> Rows:
    """A file; or a directory saved by `datasets`, or one whose files or folders are named after their split."""
    if path.is_file():
        return file_rows(path)
    if not path.is_dir():
        raise DataError(f"{path}: no such directory", fix=_nearby(path))
    if (path / "dataset_dict.json").is_file():
        splits = sorted(p.name for p in path.iterdir() if p.is_dir())
        if split not in splits:
            raise _no_split(path, split, splits)
        return _saved(path / split)
    if (path / "state.json").is_file():
        if split != "train":
            raise DataError(f"{path}: holds one split without a name, not {split!r}", fix="delete data.eval_split")
        return _saved(path)
    files = sorted(p for p in path.rglob("*") if p.name.endswith(FILE_SUFFIXES) and p.is_file())
    matching = [p for p in files if split in _splits_of(p, path)]
    if not matching:
        raise _no_split(path, split, sorted({name for p in files for name in _splits_of(p, path)}))
    parts = tuple(file_rows(p) for p in matching)
    return parts[0] if len(parts) == 1 else Joined(parts)


def file_rows(path: Path) -> Rows:
    """The reader for a file's suffix."""
    if path.name.endswith((".jsonl", ".jsonl.gz")):
        return JsonLines(path)
    by_suffix = {".json": json_rows, ".parquet": ParquetTable, ".csv": CsvFile}
    if path.suffix not in by_suffix:
        raise DataError(f"{path}: unknown kind of file", fix=f"give one of {', '.join(FILE_SUFFIXES)}")
    return by_suffix[path.suffix](path)


def _splits_of(file: Path, root: Path) -> list[str]:
    """`train/0.parquet`, `train.jsonl` and `data/train-00000-of-00002.parquet` are all of `train`."""
    folders = file.relative_to(root).parts[:-1]
    names = [file.name.split(".")[0].split("-")[0], *folders[-1:]]
    return [name for name in names if name != "data" and not name.isdigit()]


def _no_split(path: Path, split: str | None, known: list[str]) -> DataError:
    return DataError(f"{path}: has no split {split!r}{did_you_mean(str(split), known)}", fix="set data.split")


def _saved(path: Path) -> Rows:
    datasets = _datasets()
    try:
        dataset = datasets.load_from_disk(str(path))
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{path}: not a saved dataset: {error}", fix="save it again with save_to_disk") from None
    key = content_key([file_digest(p) for p in sorted(path.glob("*.arrow"))], 64)
    return DatasetTable(dataset, str(path), key)


# -- the hub


def hub_rows(name: str, hub_id: str, split: str | None, revision: str | None, /, **place: str | None) -> Rows:
    """A hub dataset, downloaded or cached by `datasets` and memory-mapped from there; no code of it is run."""
    datasets = _datasets()
    given = {key: value for key, value in place.items() if value is not None}
    try:
        dataset = datasets.load_dataset(hub_id, split=split, revision=revision, **given)
    except Exception as error:  # the hub's client raises errors of four libraries
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        raise DataError(
            f"data.name: cannot load {name!r} ({hub_id}, split {split!r}) from the hub: {reason}",
            fix=f"check data.name, data.split and data.revision; without a network (or with HF_HUB_OFFLINE=1) the "
            f"dataset must be cached already, or give a local copy of {hub_id} as data.path",
        ) from None
    title = "/".join([hub_id, *given.values(), str(split)])
    return DatasetTable(dataset, title, content_key([hub_id, revision, given, split, dataset._fingerprint], 64))


def _datasets() -> Any:
    import datasets

    datasets.disable_progress_bars()  # a sweep's screen is the ledger's
    return datasets
