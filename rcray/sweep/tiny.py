"""`--tiny`: the same experiment on the embedded models, scaled down to seconds on a CPU.

Kept: objectives and their constants, calibration, likelihood, epochs, seeds, rates, method (QLoRA becomes LoRA: 4-bit
arithmetic is slow on a CPU), the grid's structure. Replaced: model, data, batch sizes, precision (float32), benchmarks,
placement. Two steps an epoch of two micro-batches or more are the least at which windows, looks and momentum have
something to do. Nothing about a model can be concluded from it; it proves that every cell of a file would run. `--set`
wins over what is replaced here.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rcray.config import Experiment, build_run, run_id
from rcray.config.benchmarks import benchmarks_of
from rcray.config.datasets import source_of
from rcray.config.models import MODELS, stand_in
from rcray.config.schema import RunConfig
from rcray.sweep.grid import Cell

PAIRS, HELD_OUT, BATCH, MICRO_BATCH, PROBE_PAIRS, PROBE_EVERY = 8, 8, 4, 2, 4, 2
DOCUMENTS = 8  # of each benchmark
_KEPT_OF_DATA = ("add_bos", "empty_system", "score_header", "answer_room", "bucketing")


def tiny_experiment(experiment: Experiment) -> Experiment:
    """The file under another name: its ledger and report must not replace those of the real one."""
    update: dict[str, Any] = {
        "name": f"{experiment.name[:58]}-tiny",
        "title": f"{experiment.title or experiment.name} (tiny)",
    }
    if experiment.evaluation.benchmarks:  # the same stages, on tasks that need no hub
        asked = (benchmark for name in experiment.evaluation.benchmarks for benchmark in benchmarks_of(name))
        stand_ins = tuple(dict.fromkeys(benchmark.tiny for benchmark in asked))
        update["evaluation"] = experiment.evaluation.model_copy(update={"benchmarks": stand_ins, "limit": DOCUMENTS})
    return experiment.model_copy(update=update)


def tiny_cells(cells: Sequence[Cell], overrides: Mapping[str, Any]) -> list[Cell]:
    """Every cell scaled down; those that become the same run are one."""
    unique: dict[str, Cell] = {}
    for cell in cells:
        config = tiny_config(cell.config, overrides)
        varied = tuple((path, stand_in(str(value)) if str(value) in MODELS else value) for path, value in cell.varied)
        key = run_id(config)
        unique.setdefault(key, Cell(key, config, varied))
    return list(unique.values())


def tiny_config(config: RunConfig, overrides: Mapping[str, Any]) -> RunConfig:
    """One run scaled down."""
    content = config.model_dump(mode="json")
    method, lora = config.model.method.removeprefix("q"), content["model"]["lora"]
    micro_batch = min(MICRO_BATCH, config.train.micro_batch_size)
    content["model"] = {"name": stand_in(config.model.name), "method": method, "lora": lora}
    content["data"] = {
        "name": source_of(config.data.name).tiny,
        "difficulty": config.data.difficulty,
        "train_pairs": PAIRS,
        "eval_pairs": HELD_OUT,
        **{name: getattr(config.data, name) for name in _KEPT_OF_DATA},
    }
    content["train"] |= {
        "batch_size": BATCH,
        "micro_batch_size": max(size for size in range(1, micro_batch + 1) if BATCH % size == 0),
        "probe_pairs": PROBE_PAIRS,
        "probe_every": PROBE_EVERY,
        "precision": "auto",
    }
    content["execution"] = {}
    return build_run(content, _of_sections(overrides, ("model", "data", "train", "execution")), "--tiny")


def _of_sections(overrides: Mapping[str, Any], sections: Iterable[str]) -> dict[str, Any]:
    return {path: value for path, value in overrides.items() if path.partition(".")[0] in sections}
