"""The files of a run as a tracker gets them: without secrets, records in one piece, and sent again only if changed."""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from rcray.config import content_key
from rcray.extras import explained_imports
from rcray.files import measured, read_json
from rcray.secrets import redact
from rcray.store import RunDir
from rcray.track.provenance import FILE as ENVIRONMENT
from rcray.track.provenance import recorded
from rcray.train.dynamics import read_dynamics

with explained_imports():
    import pyarrow.parquet as pq

BENCHMARKS = "benchmarks.json"
FIGURES = "figures/dynamics.{}"
_TEXT = (".yaml", ".json", ".log", ".txt", ".md", ".tex", ".csv", ".html", ".svg")


def fingerprints(run: RunDir, status: str) -> dict[str, str]:
    """What a run has to show: the path it gets at the tracker, and a mark that changes with its sources."""
    sources: dict[str, list[Path]] = {
        **{name: [path] for name, path in (_copies(run) | _items(run)).items()},
        "requirements.txt": [run.path / ENVIRONMENT],
        BENCHMARKS: [run.evaluation],
        "dynamics.parquet": sorted(run.dynamics.glob("part-*.parquet")),
        "checkpoints.json": [*_files(run.final), *sorted(run.checkpoints.glob("step-*/manifest.json"))],
    }
    for suffix in ("png", "svg"):
        sources[FIGURES.format(suffix)] = sources["dynamics.parquet"]
    present = {name: [path for path in paths if path.exists()] for name, paths in sources.items()}
    return {name: content_key([status, *map(_mark, paths)]) for name, paths in present.items() if paths}


def read_marks(text: str) -> dict[str, str]:
    """The marks of what was sent, as a tag keeps them; none of a tag that somebody edited: all is sent again."""
    try:
        return {str(name): str(mark) for name, mark in dict(json.loads(text)).items()}
    except (ValueError, TypeError):
        return {}


def _copies(run: RunDir) -> dict[str, Path]:
    """Texts, sent as they are but for secrets."""
    return run.records | {name: run.path / name for name in ("error.log", ENVIRONMENT)}


def _items(run: RunDir) -> dict[str, Path]:
    """What the newest measurements said of each pair or document; files of earlier ones stay where they are."""
    paths = [run.items(key) for key in run.read_evaluation().keys.values()]
    return {f"{path.parent.name}/{path.name}": path for path in paths}


def _mark(path: Path) -> list[Any]:
    state = path.stat()
    return [path.name, state.st_size, state.st_mtime_ns]


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []


def build(run: RunDir, wanted: Iterable[str], folder: Path, draw: Callable[[], Mapping[str, bytes]]) -> dict[str, Path]:
    """Writes the wanted files into a folder; a figure that cannot be drawn is left out."""
    copies, wanted = _copies(run), set(wanted)
    files: dict[str, Path] = {}

    def write(name: str, content: bytes) -> None:
        files[name] = folder / name
        files[name].parent.mkdir(parents=True, exist_ok=True)
        files[name].write_bytes(content)

    for name in wanted & copies.keys():
        write(name, redact(copies[name].read_text(encoding="utf-8", errors="replace")).encode())
    for name, path in _items(run).items():
        if name in wanted:  # numbers, and names that say where a row stands
            write(name, path.read_bytes())
    if "requirements.txt" in wanted:
        newest = recorded(run)[-1]
        header = f"# Python {newest['python']}, {newest['platform']}, rcray at git {newest['git']}\n"
        write("requirements.txt", (header + "\n".join(newest["packages"]) + "\n").encode())
    if "dynamics.parquet" in wanted:
        files["dynamics.parquet"] = folder / "dynamics.parquet"
        pq.write_table(read_dynamics(run.dynamics), files["dynamics.parquet"])
    if "checkpoints.json" in wanted:
        write("checkpoints.json", json.dumps(checkpoint_manifest(run), indent=2).encode())
    if any(name.startswith("figures/") for name in wanted):
        for suffix, content in draw().items():
            write(FIGURES.format(suffix), content)
    return files


def checkpoint_manifest(run: RunDir) -> dict[str, Any]:
    """Size and SHA-256 of every file of the trained model and of the checkpoints that are left."""
    final = {str(path.relative_to(run.final)): measured(path) for path in _files(run.final)}
    left = {path.parent.name: read_json(path) for path in sorted(run.checkpoints.glob("step-*/manifest.json"))}
    return {"run_id": run.run_id, "final": final, "checkpoints": left}


def tree(paths: Iterable[Path]) -> dict[str, Path]:
    """Files and folders as the paths they get at the tracker."""
    files: dict[str, Path] = {}
    for path in paths:
        if path.is_dir():
            files.update({f"{path.name}/{inner.relative_to(path)}": inner for inner in _files(path)})
        elif path.is_file():
            files[path.name] = path
    return files


def tree_mark(files: Mapping[str, Path]) -> str:
    """A mark that changes with any of the files."""
    return content_key([[name, *_mark(path)] for name, path in files.items()])


def cleaned(files: Mapping[str, Path], folder: Path) -> dict[str, Path]:
    """The same files; those with a secret in their text are replaced by clean copies in the folder."""
    clean = dict(files)
    for name, path in files.items():
        if path.suffix not in _TEXT:
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        if (safe := redact(text)) != text:
            clean[name] = folder / name
            clean[name].parent.mkdir(parents=True, exist_ok=True)
            clean[name].write_text(safe, encoding="utf-8")
    return clean


def table_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Nested values as text, non-finite numbers as nothing: a table has cells."""
    plain: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, float) and not math.isfinite(value):
            value = None
        plain[str(name)] = redact(json.dumps(value)) if isinstance(value, dict | list) else value
    return {name: redact(value) if isinstance(value, str) else value for name, value in plain.items()}
