"""Trained models: saved with their adapter chain, rebuilt from it, merged for export."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rcray.config.model import ModelConfig
from rcray.errors import ModelError
from rcray.files import publish_directory
from rcray.models.adapters import attach_adapter
from rcray.models.capabilities import capabilities_of
from rcray.models.chain import ACTIVE, FULL, MERGED, incomplete, read_chain, require_links, require_own, write_chain
from rcray.models.load import CPU, LoadedModel, checked_origin, load_frozen, load_model, read_tokenizer
from rcray.models.sources import Origin

_PROBE = "The quick brown fox jumps over the lazy dog. 0 1 2 3 4 5 6 7 8 9."


def save_trained(loaded: LoadedModel, directory: Path, weights: dict[str, Tensor] | None = None) -> None:
    """Writes what was trained, the tokenizer and the chain; the base of an adapter is not copied.

    `weights` stand in for those of a model whose own are sharded.
    """
    origin, model = loaded.origin, loaded.model
    assert origin is not None, "a model made in memory has no chain"
    if origin.config.trains_adapters:
        model.peft_config["default"].base_model_name_or_path = origin.config.origin  # not a path of this machine
        model.save_pretrained(directory, safe_serialization=True, save_embedding_layers=False)
        (directory / "README.md").unlink(missing_ok=True)  # an empty form
    else:
        model.save_pretrained(directory, safe_serialization=True, state_dict=weights)
    loaded.tokenizer.save_pretrained(directory)
    write_chain(origin, directory, ACTIVE if origin.config.trains_adapters else FULL)


def load_trained(directory: Path, cache: Path, *, device: torch.device = CPU) -> LoadedModel:
    """Rebuilds a saved model exactly: base, SFT adapter merged, quantised as it was, our adapter active.

    Raises:
        ModelError: a link of the chain is missing or is not the one it was trained with.
    """
    record = read_chain(directory)
    config = ModelConfig.model_validate(record["model"])
    if record["ours"]["state"] != ACTIVE:
        require_own(record, directory)
        plain = ModelConfig(name=_as_path(directory), dtype=config.dtype, trust_remote_code=config.trust_remote_code)
        return load_model(plain, cache, device=device)
    origin = origin_of_links(record, config, directory, cache)
    model = attach_adapter(load_frozen(origin, device, quantized=config.quantized), directory)
    return LoadedModel(model.eval(), read_tokenizer(config, directory), origin)


def origin_of_links(record: dict[str, Any], config: ModelConfig, directory: Path, cache: Path) -> Origin:
    """Where the base of an adapter lies; refused unless every link is the one that it was trained with."""
    try:
        origin = checked_origin(config, cache)
    except ModelError as error:
        raise incomplete(directory, error.message) from None
    require_links(record, origin, directory)
    return origin


@dataclass(frozen=True)
class Merge:
    """What came of merging an adapter for export."""

    directory: Path
    gap: float  # largest difference of a token's log-probability to the model as trained, in nats, on a fixed text
    quantized: bool  # it was trained on 4-bit weights: the export is another model, and not the one evaluated


def merge_adapter(directory: Path, target: Path, cache: Path) -> Merge:
    """Exports a LoRA or QLoRA run as a plain model directory.

    For LoRA the export equals the trained model up to rounding. For QLoRA it does not: the adapter was trained on 4-bit
    weights and is merged into the unquantised ones. What rcray evaluates is the model as trained; the size of the
    difference is measured and recorded in the export's chain.
    """
    record = read_chain(directory)
    if record["ours"]["state"] != ACTIVE:
        raise ModelError(f"{directory}: there is no adapter to merge, it is a plain model already")
    if target.exists():
        raise ModelError(f"{target}: exists already", fix="name a new directory, or remove it")
    trained = load_trained(directory, cache)
    origin, tokenizer, as_trained = trained.origin, trained.tokenizer, _probe(trained.model, trained.tokenizer)
    assert origin is not None
    del trained  # two models of this size may not fit
    base = load_frozen(origin, CPU, quantized=False)
    model = attach_adapter(base, directory).merge_and_unload(safe_merge=True).eval()
    gap = (_probe(model, tokenizer) - as_trained).abs().max().item()
    quantized = origin.config.quantized
    evaluated = "4-bit base with the adapter active; this export is not that model" if quantized else "equal to this"

    def build(place: Path) -> None:
        model.save_pretrained(place, safe_serialization=True)
        tokenizer.save_pretrained(place)
        write_chain(origin, place, MERGED, gap_nats=gap, evaluated=evaluated)

    target.parent.mkdir(parents=True, exist_ok=True)
    publish_directory(target, build)
    return Merge(target, gap, quantized)


def _probe(model: Any, tokenizer: Any) -> Tensor:
    """Log-probabilities of the tokens of a fixed text, [tokens - 1]."""
    ids = torch.tensor([tokenizer.encode(_PROBE)], device=model.device)
    with torch.no_grad(), capabilities_of(model).precision():
        log_probs = model(input_ids=ids, use_cache=False).logits[0, :-1].float().log_softmax(-1)
    return log_probs.gather(-1, ids[0, 1:, None]).squeeze(-1).cpu()


def _as_path(directory: Path) -> str:
    """A name with a slash in it, which is never taken for a hub id."""
    return str(directory.absolute())
