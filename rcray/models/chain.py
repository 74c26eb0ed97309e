"""The adapter chain: which weights a trained model is made of, in order, and whether all of them are there.

    base -> SFT adapter, merged -> (quantised) -> ours, active

A run's adapter means something only on the very weights it was trained on. `adapter_chain.json` in its final
directory names each link with a content hash; a model with a missing or changed link is refused, not evaluated.
"""

import json
from pathlib import Path
from typing import Any

from rcray.config import content_key
from rcray.errors import ModelError
from rcray.files import write_json
from rcray.models.gguf import quantized_origin
from rcray.models.sources import ADAPTER_WEIGHTS, Origin, tensors_fingerprint, weight_files

CHAIN = "adapter_chain.json"
_VERSION = 1
#: What our part of the chain is: an adapter beside the base, weights of its own, or an adapter merged for export.
ACTIVE, FULL, MERGED = "active", "full weights", "merged"


def write_chain(origin: Origin, directory: Path, state: str, **more: Any) -> None:
    """Records the chain of the model saved in `directory`; `more` is said about our part of it."""
    config = origin.config
    links = {
        "model": config.model_dump(mode="json"),
        "base": {
            "source": config.origin,
            "revision": config.revision,
            "commit": origin.commit,
            "fingerprint": origin.base_fingerprint,
            **({"made_of": made_of} if (made_of := quantized_origin(origin.base)) else {}),
        },
        "sft_adapter": config.sft_adapter
        and {"source": config.sft_adapter, "fingerprint": origin.sft_fingerprint, "state": MERGED},
        "quantization": config.quantization.model_dump(mode="json") if config.quantized else None,
        "ours": {"state": state, "fingerprint": _own_fingerprint(directory, state), **more},
    }
    write_json(directory / CHAIN, {"version": _VERSION, **links, "key": content_key(links, 32)})


def read_chain(directory: Path) -> dict[str, Any]:
    """The recorded chain, unless it is missing, cut short or changed by hand."""
    try:
        record = json.loads((directory / CHAIN).read_text())
        links = {name: record[name] for name in ("model", "base", "sft_adapter", "quantization", "ours")}
        if record["version"] != _VERSION or record["key"] != content_key(links, 32):
            raise ValueError
        return record
    except FileNotFoundError:
        raise incomplete(directory, f"{CHAIN} is missing") from None
    except (OSError, ValueError, LookupError, TypeError):
        raise incomplete(directory, f"{CHAIN} is damaged or was changed") from None


def require_links(record: dict[str, Any], origin: Origin, directory: Path) -> None:
    """Raises unless base, SFT adapter and our part are those the run was trained with."""
    base, sft = record["base"], record["sft_adapter"]
    if origin.base_fingerprint != base["fingerprint"]:
        raise incomplete(directory, f"the base {base['source']!r} holds other weights than those it was trained on")
    if (origin.sft_fingerprint or None) != (sft and sft["fingerprint"]):
        name = sft["source"] if sft else origin.config.sft_adapter
        raise incomplete(directory, f"the SFT adapter {name!r} is not the one it was trained on")
    require_own(record, directory)


def require_own(record: dict[str, Any], directory: Path) -> None:
    """Raises unless our own weights are there, unchanged."""
    try:
        same = _own_fingerprint(directory, record["ours"]["state"]) == record["ours"]["fingerprint"]
    except (OSError, ValueError, LookupError):
        same = False
    if not same:
        raise incomplete(directory, f"its own weights ({record['ours']['state']}) are missing or damaged")


def require_usable_as_sft(origin: Origin) -> None:
    """An adapter of ours may start another run only on the base it was trained on, with nothing left out between."""
    adapter = origin.sft_adapter
    if adapter is None or not (adapter / CHAIN).is_file():
        return
    record = read_chain(adapter)
    if record["sft_adapter"]:
        raise incomplete(adapter, f"it belongs on top of {record['sft_adapter']['source']!r}, not on the plain base")
    if record["base"]["fingerprint"] != origin.base_fingerprint:
        raise ModelError(
            f"model.sft_adapter: {origin.config.sft_adapter!r} does not fit its base: it was trained on "
            f"{record['base']['source']!r}, and {origin.config.origin!r} holds other weights",
            fix=f"give model.name: {record['base']['source']}",
        )


def incomplete(directory: Path, what: str) -> ModelError:
    """The refusal of a chain with a missing link."""
    return ModelError(
        f"{directory}: the adapter chain is incomplete: {what}",
        fix="put the missing piece back where the run found it, or train the run again",
    )


def _own_fingerprint(directory: Path, state: str) -> str:
    return tensors_fingerprint([directory / ADAPTER_WEIGHTS] if state == ACTIVE else weight_files(directory))
