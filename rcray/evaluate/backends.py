"""What runs a trained model for lm-eval: transformers, on the model already loaded, or vLLM on its files."""

import importlib.util
from pathlib import Path
from typing import Any

from rcray.config.evaluation import EvaluationConfig
from rcray.config.model import ModelConfig
from rcray.errors import ConfigError
from rcray.models.chain import ACTIVE, read_chain, require_own
from rcray.models.load import LoadedModel, merged_base
from rcray.models.trained import origin_of_links

#: Tokens of one forward on a CPU: enough to keep the cores busy, little enough for the caches.
CPU_TOKENS = 8192
MOST_ROWS = 64
_DEFAULT_CONTEXT = 2048


def require_backend(settings: EvaluationConfig) -> None:
    """Refuses a backend that is not installed, before anything is started."""
    if settings.backend == "vllm" and importlib.util.find_spec("vllm") is None:
        raise ConfigError(
            "evaluation.backend: vllm is not installed here", fix="pip install vllm, or evaluation.backend: hf"
        )


def batch_size(settings: EvaluationConfig, model: Any) -> int | str:
    """Rows per forward: as asked; lm-eval's own search on a GPU; by the model's context on a CPU.

    The search starts from a size that fails, which on a CPU ends in swap instead of an error.
    """
    if settings.batch_size is not None:
        return settings.batch_size
    if model.device.type != "cpu":
        return "auto"
    context = getattr(model.config, "max_position_embeddings", None) or _DEFAULT_CONTEXT
    return max(1, min(MOST_ROWS, CPU_TOKENS // int(context)))


def open_transformers(loaded: LoadedModel, settings: EvaluationConfig) -> Any:
    """lm-eval's view of a model in memory; nothing is loaded again."""
    from rcray.evaluate.harness import quiet
    from rcray.evaluate.reported import ReportedLM
    from rcray.models.capabilities import capabilities_of

    quiet()
    rows = batch_size(settings, loaded.model)
    precision = capabilities_of(loaded.model).precision
    autocast = precision.compute if precision.autocast else None  # lm-eval switches one around it off
    return ReportedLM(
        pretrained=loaded.model, tokenizer=loaded.tokenizer, batch_size=rows, mixed_precision_dtype=autocast
    )


def open_vllm(directory: Path, cache: Path, settings: EvaluationConfig, computes_in: str) -> Any:
    """lm-eval's vLLM on a trained model's files, in the dtype of the run's products.

    An adapter is put on the base its chain names.
    """
    require_backend(settings)
    from lm_eval.models.vllm_causallms import VLLM

    rows = "auto" if settings.batch_size is None else settings.batch_size
    return VLLM(**vllm_arguments(directory, cache, computes_in), batch_size=rows)


def vllm_arguments(directory: Path, cache: Path, computes_in: str) -> dict[str, Any]:
    """Where the weights of a trained model lie, in vLLM's terms, after its chain was checked link by link."""
    record = read_chain(directory)
    config = ModelConfig.model_validate(record["model"])
    shared = {"dtype": computes_in, "trust_remote_code": config.trust_remote_code, "tokenizer": str(directory)}
    if record["ours"]["state"] != ACTIVE:
        require_own(record, directory)
        return {"pretrained": str(directory), **shared}
    if config.quantized:
        raise ConfigError(
            "evaluation.backend: vllm would run a QLoRA adapter on another base than the 4-bit one it was trained on",
            fix="evaluation.backend: hf, or evaluate the model exported by merging",
        )
    origin = origin_of_links(record, config, directory, cache)
    base = origin.base if origin.sft_adapter is None else merged_base(origin)
    return {
        "pretrained": str(base),
        "lora_local_path": str(directory),
        "max_lora_rank": config.lora.r,
        **shared,
    }
