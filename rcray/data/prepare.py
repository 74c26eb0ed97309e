"""Encoded data, made once: read, encode, write, and from then on only mapped.

CACHE/encoded/KEY/
  manifest.json           sizes and checksums of every file, and both splits' reports
  train/, held-out/       tokens, offsets and names as .npy; dropped.tsv names every row that was dropped or changed

The key covers the source's content, the reader, the tokenizer with its template, the lengths, limits and seed. One
process builds; a directory appears whole by one rename. A damaged one is found by its manifest and built again.
"""

import json
import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from rcray.config import content_key
from rcray.config.data import DataConfig
from rcray.data.encode import encode_stream, require_pairs
from rcray.data.encoded import EncodedPairs, EncodeReport, MappedPairs, PairWriter, Tally
from rcray.data.pairs import DRAW_VERSION, HELD_OUT, TRAIN, PairSplits, load_pairs
from rcray.data.readers import READER_VERSION
from rcray.data.rows import file_digest
from rcray.errors import DataError, StoreError
from rcray.files import measured, publish_directory, read_json, write_json

log = logging.getLogger(__name__)

ENCODER_VERSION = 1  # raised when the same text would give other tokens, or the files another layout
UNPAIRED_VERSION = 2  # the same of unpaired rows
_LEAST = {TRAIN: 1, HELD_OUT: 2}  # a spread needs two


@dataclass(frozen=True)
class PreparedData:
    """Both splits, encoded."""

    train: EncodedPairs
    held_out: EncodedPairs


class _Damaged(Exception):
    """A cached directory that is not what its manifest says."""


def prepare_data(config: DataConfig, tokenizer: Any, cache: Path) -> PreparedData:
    """The encoded splits of a dataset; built on first use, by one process, and published whole."""
    splits = load_pairs(config)
    target = cache / "encoded" / data_key(config, tokenizer, splits.source())
    target.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{target}.lock"):
        if target.exists():
            try:
                return _open(target)
            except _Damaged as damage:
                log.warning("encoded data %s is damaged (%s); building it again", target.name, damage)
        publish_directory(target, lambda directory: _build(directory, splits, tokenizer, config))
        return _open(target)


def data_key(config: DataConfig, tokenizer: Any, source: str) -> str:
    """Hash of everything the tokens depend on."""
    decisive = {name: value for name, value in config.content().items() if name not in ("bucketing", "revision")}
    versions = [READER_VERSION, ENCODER_VERSION, *([DRAW_VERSION] if config.draws else [])]
    versions += [UNPAIRED_VERSION] if config.format == "unpaired" else []
    return content_key([decisive, config.path, source, tokenizer_key(tokenizer), versions], 24)


def tokenizer_key(tokenizer: Any) -> str:
    """Hash of vocabulary, merges, normalisation, special tokens and chat template."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    core = json.loads(backend.to_str()) if backend is not None else {"vocabulary": tokenizer.get_vocab()}
    for state in ("padding", "truncation"):  # of the last call, not of the tokenizer
        core.pop(state, None)
    special = {name: str(value) for name, value in tokenizer.special_tokens_map.items()}
    return content_key([core, special, tokenizer.chat_template], 64)


def _build(directory: Path, splits: PairSplits, tokenizer: Any, config: DataConfig) -> None:
    parts = ((TRAIN, splits.train, config.train_pairs), (HELD_OUT, splits.held_out, config.eval_pairs))
    manifest: dict[str, Any] = {"splits": {}}
    for name, items, limit in parts:
        report = EncodeReport(asked=limit)
        digest = _write_split(directory / name, items, tokenizer, config, report)
        require_pairs(report, f"data.name: {config.name}: {name}", _LEAST[name])
        if any(kind.startswith("dropped") for kind in report.kinds):
            log.warning("%s, %s: %s", config.name, name, report.summary())
        manifest["splits"][name] = {"digest": digest, **_report_content(report)}
    manifest["files"] = {
        str(path.relative_to(directory)): measured(path) for path in sorted(directory.rglob("*")) if path.is_file()
    }
    write_json(directory / "manifest.json", manifest)


def _write_split(directory: Path, items: Any, tokenizer: Any, config: DataConfig, report: EncodeReport) -> str:
    writer = PairWriter(directory, unpaired=config.format == "unpaired")
    try:
        with (directory / "dropped.tsv").open("w", encoding="utf-8", errors="replace") as report.log:
            for pair in encode_stream(items, tokenizer, config, report):
                writer.add(pair)
    finally:
        report.log = None
        digest = writer.close()
    return digest


def _open(target: Path) -> PreparedData:
    manifest = _verified(target)
    splits = {}
    for name, content in manifest["splits"].items():
        kinds = {kind: Tally(**tally) for kind, tally in content["kinds"].items()}
        report = EncodeReport(content["kept"], content["asked"], kinds)
        splits[name] = EncodedPairs(MappedPairs(target / name), report, content["digest"])
    return PreparedData(splits[TRAIN], splits[HELD_OUT])


def _verified(target: Path) -> dict[str, Any]:
    try:
        manifest = read_json(target / "manifest.json")
        if manifest is None:
            raise _Damaged("no manifest.json")
        for name, expected in manifest["files"].items():
            path = target / name
            if not path.is_file() or path.stat().st_size != expected["bytes"]:
                raise _Damaged(f"{name} is missing or cut short")
            if file_digest(path) != expected["sha256"]:
                raise _Damaged(f"{name} has changed")
    except (StoreError, DataError, KeyError, TypeError, AttributeError, OSError) as error:
        raise _Damaged(f"manifest.json: {error}") from None
    return dict(manifest)


def _report_content(report: EncodeReport) -> dict[str, Any]:
    kinds = {kind: asdict(tally) for kind, tally in report.kinds.items()}
    return {"kept": report.kept, "asked": report.asked, "kinds": kinds}
