"""`rcray export`: a trained run as a plain peft or transformers directory, with a card that says what it is.

Without `merge` an adapter stays an adapter: peft loads it on its base, named in adapter_config.json by its hub id, or
by its place on this machine where the base came from nowhere else (embedded, a directory, a package, a merged SFT
adapter). `merge` writes whole weights that need nothing beside them. GGUF is not written: transformers only reads
it, the package gguf holds a writer, and what makes its fields of a model's settings and vocabulary is a script of
llama.cpp's repository, convert_hf_to_gguf.py, which takes a merged directory.
"""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rcray.config import RunConfig, run_id
from rcray.config.datasets import source_of
from rcray.errors import ModelError
from rcray.files import publish_directory, write_atomic
from rcray.models.chain import ACTIVE, CHAIN, read_chain
from rcray.records.evaluation import MetricRow
from rcray.store import Store

CARD = "README.md"
_NOT_EXPORTED = ("rcray-seal.json",)  # it vouches for the run's own directory


@dataclass(frozen=True)
class Export:
    """What was written."""

    directory: Path
    kind: str  # adapter, merged, or full weights
    loader: str  # the lines of Python that load it
    gap: float | None = None  # nats between the merged weights and the model as trained


def export_run(config: RunConfig, store: Store, target: Path, *, merge: bool = False) -> Export:
    """Writes a finished run's model and its card into a new directory.

    Raises:
        ModelError: the directory is there already, or a link of the model's chain is missing.
    """
    run = store.run(run_id(config))
    record = read_chain(run.final)
    if target.exists():
        raise ModelError(f"{target}: exists already", fix="name a new directory, or remove it")
    adapter = record["ours"]["state"] == ACTIVE
    gap = None
    if adapter and merge:
        from rcray.models.trained import merge_adapter

        gap = merge_adapter(run.final, target, store.cache).gap
        record = read_chain(target)
    else:
        base = _base_of(config, store) if adapter else None
        target.parent.mkdir(parents=True, exist_ok=True)
        publish_directory(target, lambda place: _copy(run.final, place, base))
    kind = ("merged" if merge else "adapter") if adapter else "full weights"
    export = Export(target, kind, loader(target, kind, config), gap)
    rows = run.read_evaluation().rows
    write_atomic(target / CARD, "\n".join(card(config, record, rows, export)) + "\n")
    return export


def _base_of(config: RunConfig, store: Store) -> str:
    """What peft loads the base from: the hub id where it has one, else where the base lies here."""
    from rcray.models.load import checked_origin, merged_base

    origin = checked_origin(config.model, store.cache)
    if origin.sft_adapter is not None:
        return str(merged_base(origin).absolute())
    return config.model.origin if origin.commit else str(origin.base.absolute())


def _copy(source: Path, place: Path, base: str | None) -> None:
    for file in source.iterdir():
        if file.is_file() and file.name not in _NOT_EXPORTED:
            shutil.copyfile(file, place / file.name)
    if base is not None:
        settings = json.loads((place / "adapter_config.json").read_text())
        write_atomic(place / "adapter_config.json", json.dumps({**settings, "base_model_name_or_path": base}, indent=2))


def loader(directory: Path, kind: str, config: RunConfig) -> str:
    """Python that loads the export without rcray, and answers one question."""
    library, name = (
        ("peft", "AutoPeftModelForCausalLM") if kind == "adapter" else ("transformers", "AutoModelForCausalLM")
    )
    options = f', dtype="{config.model.dtype}"'
    if kind == "adapter" and config.model.quantized:
        options += ", quantization_config=BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="
        options += f'"{config.model.quantization.kind}")'
    extra = ", BitsAndBytesConfig" if kind == "adapter" and config.model.quantized else ""
    lines = [
        *([f"from {library} import {name}"] if library == "peft" else []),
        f"from transformers import {'AutoModelForCausalLM, ' if library == 'transformers' else ''}AutoTokenizer{extra}",
        "",
        f'model = {name}.from_pretrained("{directory}"{options})',
        f'tokenizer = AutoTokenizer.from_pretrained("{directory}")',
        'messages = [{"role": "user", "content": "Why is the sky blue?"}]',
        'inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt")',
        "answer = model.generate(**inputs, max_new_tokens=64)",
        'print(tokenizer.decode(answer[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))',
    ]
    return "\n".join(lines)


def card(config: RunConfig, record: dict[str, Any], rows: tuple[MetricRow, ...], export: Export) -> Iterator[str]:
    """The lines of the model card."""
    base, rc = record["base"], config.calibration
    wheel = source_of(config.data.name).wheel
    constants = config.objective.model_dump(mode="json", exclude={"name"})
    library = "peft" if export.kind == "adapter" else "transformers"
    yield from ["---", f"base_model: {json.dumps(base['source'])}", f"library_name: {library}"]
    yield from ["tags: [rcray, preference-optimization]", "---", "", f"# {config.label}", ""]
    yield f"{export.kind.capitalize()} of rcray run `{run_id(config)}`."
    yield ""
    yield "| | |"
    yield "|---|---|"
    settings = ", ".join(f"{name} {value:g}" for name, value in constants.items() if isinstance(value, int | float))
    named = f"{config.objective_title} ({settings})" if settings else config.objective_title
    yield f"| objective | {named}, likelihood {config.likelihood} |"
    smoothed = f", ema_beta {rc.ema_beta:g}, clip {rc.clip}" if rc.kind == "published" else ""
    on = f"on (kind {rc.kind}{smoothed}, scores {rc.scores}, per {rc.granularity})"
    yield f"| reward calibration | {on if rc.enabled else 'off'} |"
    yield f"| data | {config.data.name}{f', {wheel.requirement}: {wheel.licence}' if wheel else ''} |"
    train, method = config.train, config.model.method
    yield f"| training | {method}, rate {train.learning_rate:g}, batch {train.batch_size}, seed {train.seed} |"
    yield ""
    if "made_of" in base:
        yield from [
            f"**The base is not the original model**: {base['made_of']['note']} ({base['made_of']['package']}).",
            "",
        ]
    if export.gap is not None:
        yield from [f"Merged; farthest from the model as trained: {export.gap:.2g} nats on a fixed text.", ""]
    if export.gap is not None and config.model.quantized:
        yield from ["It was trained on 4-bit weights, and evaluated on them: this merge is another model.", ""]
    yield from ["## Measured", ""]
    yield from [f"- {row.describe()}" for row in rows] or ["Nothing: `rcray evaluate --run RUN_ID` measures it."]
    yield from ["", "`drift_w` and `drift_l`: change of the held-out chosen and rejected answers' likelihood, in nats."]
    yield from ["", "## Load it", "", "```python", export.loader, "```", "", "## Chain", "", "```json"]
    yield json.dumps({name: record[name] for name in ("base", "sft_adapter", "quantization", "ours")}, indent=2)
    yield from ["```", "", f"`{CHAIN}` has all of it, with the settings of the model."]
