"""From the names in a config to directories on disk, and from directories to content hashes.

Everything after this file reads local directories: an embedded model is built, a hub id is fetched (or found in the
hub's cache), a path is taken as it is.
"""

import hashlib
import json
import logging
import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rcray.config import RunConfig, content_key
from rcray.config.model import ModelConfig
from rcray.config.models import MODELS, embedded_models
from rcray.data.sources import find_local
from rcray.errors import ModelError
from rcray.files import write_atomic
from rcray.store import is_plain_name

log = logging.getLogger(__name__)

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
#: What is fetched from a hub: no pickles, no second copy of the weights in another format.
_MODEL_FILES = ("*.json", "*.jinja", "*.txt", "*.model", "model.safetensors", "model-*.safetensors")
_TOKENIZER_FILES = ("*.json", "*.jinja", "*.txt", "*.model")
_ADAPTER_FILES = ("*.json", "*.jinja", "*.txt", "*.model", ADAPTER_WEIGHTS)


@dataclass(frozen=True)
class Origin:
    """Where the frozen weights of a model lie; hashed when asked, and then once."""

    config: ModelConfig
    base: Path
    sft_adapter: Path | None
    cache: Path

    @cached_property
    def base_fingerprint(self) -> str:
        """Content of the base weights."""
        return remembered_fingerprint(weight_files(self.base), self.cache)

    @cached_property
    def sft_fingerprint(self) -> str | None:
        """Content of the SFT adapter, if there is one."""
        if self.sft_adapter is None:
            return None
        return remembered_fingerprint([self.sft_adapter / ADAPTER_WEIGHTS], self.cache)

    @property
    def fingerprint(self) -> str:
        """What the reference likelihoods depend on: base, SFT adapter, precision. Full and LoRA runs share it."""
        config = self.config
        quantization = config.quantization.model_dump() if config.quantized else None
        return content_key([self.base_fingerprint, self.sft_fingerprint, config.dtype, quantization], 64)

    @property
    def commit(self) -> str | None:
        """The hub's commit, for weights that came from there."""
        return self.base.name if self.base.parent.name == "snapshots" else None


def locate(config: ModelConfig, cache: Path) -> Origin:
    """Finds (builds, fetches) base weights and SFT adapter; refuses what cannot be a base or an adapter."""
    if config.origin in embedded_models():
        from rcray.models.tiny import tiny_model_dir

        base = tiny_model_dir(config.origin, cache)
    elif config.copy_of_weights is not None:
        base = _quantized_copy(config.name, cache)
    else:
        code = ("*.py",) if config.trust_remote_code else ()
        try:
            base = _directory(config.origin, config.revision, (*_MODEL_FILES, *code), _no_base(config))
        except ModelError as error:
            copy = MODELS[config.name].copy if config.name in MODELS and config.revision is None else None
            if copy is None or config.origin != MODELS[config.name].model.get("source"):
                raise
            log.warning("%s; its %s copy (%s) stands in for it", error.message, copy.kind, copy.source)
            base = _quantized_copy(config.name, cache)
    if (base / ADAPTER_CONFIG).is_file():  # transformers would load its base and merge nothing we asked for
        raise ModelError(
            f"model.name: {config.origin!r} is an adapter, not a model",
            fix="give its base as model.name and the adapter as model.sft_adapter",
        )
    _require_weights(config, base)
    if config.sft_adapter is None:
        return Origin(config, base, None, cache)
    adapter = _directory(config.sft_adapter, None, _ADAPTER_FILES, _no_adapter(config.sft_adapter))
    for name in (ADAPTER_CONFIG, ADAPTER_WEIGHTS):
        if not (adapter / name).is_file():
            raise _no_adapter(config.sft_adapter)(f"it has no {name}")
    return Origin(config, base, adapter, cache)


def locate_tokenizer(config: ModelConfig, cache: Path) -> Path:
    """The directory of the tokenizer alone: no weights are fetched, and none need to be there."""
    if config.origin in embedded_models() or config.copy_of_weights is not None:
        return locate(config, cache).base
    if config.sft_adapter is not None:
        adapter = _directory(config.sft_adapter, None, _TOKENIZER_FILES, _no_adapter(config.sft_adapter))
        if (adapter / "tokenizer_config.json").is_file():  # it has the template the adapter was trained with
            return adapter
    return _directory(config.origin, config.revision, _TOKENIZER_FILES, _no_base(config))


def with_cached_shape(config: RunConfig) -> RunConfig:
    """The same run, its model named by where the hub's cache has it, if that is what tells its shape; else itself."""
    from huggingface_hub import try_to_load_from_cache

    model = config.model
    if model.shape is not None or find_local(model.origin) is not None:
        return config
    try:
        cached = try_to_load_from_cache(model.origin, "config.json", revision=model.revision)
    except ValueError:  # a path is no hub id
        return config
    if not isinstance(cached, str):
        return config
    located = model.model_copy(update={"source": str(Path(cached).parent)})
    return config.model_copy(update={"model": located})


def _quantized_copy(name: str, cache: Path) -> Path:
    from rcray.models.gguf import quantized_copy_dir

    return quantized_copy_dir(name, cache)


def _require_weights(config: ModelConfig, base: Path) -> None:
    try:
        missing = [path.name for path in weight_files(base) if not path.is_file()]
    except (ValueError, LookupError, TypeError, AttributeError):
        missing = ["readable model.safetensors.index.json"]
    if missing:
        raise cannot_load(config, f"it has no {missing[0]}")


def _directory(source: str, revision: str | None, files: Sequence[str], refusal: Callable[[str], ModelError]) -> Path:
    local = find_local(source)  # also from where a Tune trial was started
    if local is not None and local.is_dir():
        return local
    if source.startswith(("/", "./", "../")):  # a path is no hub id
        raise refusal("no such directory")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(source, revision=revision, allow_patterns=list(files)))
    except (OSError, ValueError, RuntimeError) as error:
        raise refusal(short_reason(error)) from None


def short_reason(error: BaseException) -> str:
    """One line of an error that may have many."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"


def _no_base(config: ModelConfig) -> Callable[[str], ModelError]:
    return lambda reason: cannot_load(config, reason)


def cannot_load(config: ModelConfig, reason: str) -> ModelError:
    """The refusal of base weights."""
    return ModelError(
        f"model.name: cannot load {config.origin!r}: {reason}",
        fix=f"give an embedded model ({', '.join(embedded_models())}), a local directory with safetensors weights, "
        "or a hub id that is reachable or cached",
    )


def _no_adapter(source: str) -> Callable[[str], ModelError]:
    return lambda reason: ModelError(
        f"model.sft_adapter: cannot load {source!r}: {reason}",
        fix=f"give a directory or a reachable hub id with {ADAPTER_CONFIG} and {ADAPTER_WEIGHTS}",
    )


# -- content


def weight_files(directory: Path) -> list[Path]:
    """The safetensors files a model directory is loaded from."""
    index = directory / "model.safetensors.index.json"
    if (directory / "model.safetensors").is_file() or not index.is_file():
        return [directory / "model.safetensors"]
    names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    if outside := [name for name in names if not is_plain_name(name)]:
        raise ValueError(f"{index}: {outside[0]!r} is no file beside it")
    return [directory / name for name in names]


def remembered_fingerprint(files: Sequence[Path], cache: Path) -> str:
    """The content hash of weight files; large ones are read once per machine and change, not once per run."""
    seen = [(str(path.resolve()), *_state(path)) for path in files]
    note = cache / "fingerprints" / content_key(seen, 32)
    if note.is_file() and len(text := note.read_text()) == 64:
        return text
    fingerprint = tensors_fingerprint(files)
    note.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(note, fingerprint)
    return fingerprint


def _state(path: Path) -> tuple[int, int, int]:
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def tensors_fingerprint(files: Sequence[Path]) -> str:
    """SHA-256 over names, types, shapes and bytes of all tensors, however they are spread over files."""
    tensors = [(name, path, entry) for path in files for name, entry in tensor_entries(path).items()]
    entries = sorted(tensors, key=lambda item: item[0])
    digest = hashlib.sha256()
    for name, path, entry in entries:
        digest.update(f"{name}{entry['dtype']}{entry['shape']}".encode())
        start, end = entry["data_offsets"]
        if start == end:
            continue
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as whole:
            data = 8 + int.from_bytes(whole[:8], "little")
            with memoryview(whole) as view, view[data + start : data + end] as part:
                digest.update(part)
    return digest.hexdigest()


def tensor_entries(path: Path) -> dict[str, Any]:
    """Name -> dtype, shape and place of every tensor in a safetensors file, from its header alone."""
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return {name: entry for name, entry in header.items() if name != "__metadata__"}


def save_whole(model: Any, directory: Path) -> None:
    """Saves a model from whichever worker builds it: by itself, transformers writes weights on rank 0 alone."""
    model.should_save_on_this_rank = lambda is_main_process: True
    try:
        model.save_pretrained(directory, safe_serialization=True)
    finally:
        del model.should_save_on_this_rank  # the method of its class again
