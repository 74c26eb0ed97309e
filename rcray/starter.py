"""`rcray init`: a commented experiment file for the user's own model and data, checked before it is written.

It looks at what it is given: the model's config, the rows of a file and how long they are, the devices and the memory
of this machine. The sizes it writes fit.
"""

import tempfile
import textwrap
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from rcray.config import Experiment, load_experiment
from rcray.config.data import DataConfig
from rcray.config.datasets import known_datasets, source_of
from rcray.config.load import build_run
from rcray.config.model import Method, ModelConfig, train_defaults
from rcray.config.models import MODELS, embedded_models, preset_models, short_name
from rcray.config.training import TrainConfig
from rcray.data.survey import TOKENIZER, held_out_size, survey
from rcray.errors import ConfigError, did_you_mean
from rcray.sweep.accelerators import ACCELERATORS, DEFAULT
from rcray.sweep.cost import estimate
from rcray.sweep.grid import expand

_LARGEST_NAME = 64
_LENGTHS = (128, 256, 384, 512, 768, 1024)  # of max_length: the first that holds nine rows in ten
_MEMORY_SHARE = 0.4  # of the main memory for one cell on a CPU: two fit
_FEWEST_ROWS = 4
_FEWEST_STEPS = 4  # a batch that leaves fewer is halved
_TINY_RATE, _ADAPTER_RATE = 5e-5, 1e-4  # the quickstart's; the usual one of adapters


@dataclass(frozen=True)
class Wanted:
    """What the file is to be about."""

    model: str
    data: str
    method: Method | None = None
    columns: Mapping[str, str] | None = None  # prompt, chosen, rejected: as the user's data calls them


def write_starter(path: Path, wanted: Wanted) -> tuple[Experiment, int]:
    """Writes the file; returns the experiment and how many cells it has. An existing file is never touched."""
    if path.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"{path}: not a name of a YAML file", fix=f"call it {path.stem or 'experiment'}.yaml")
    if path.exists() or path.is_symlink():
        raise ConfigError(f"{path}: is there already, and is left as it is", fix="give another name, or move it away")
    text = render(path.stem, wanted)
    with tempfile.TemporaryDirectory() as folder:  # what does not plan is never written
        trial = Path(folder) / path.name
        trial.write_text(text, encoding="utf-8")
        experiment = load_experiment(trial)
        cells = expand(experiment)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror or error}", fix="give another path") from None
    return experiment, len(cells)


def render(name: str, wanted: Wanted) -> str:
    """The text of the file."""
    model, data = _model(wanted), _data(wanted)
    config = build_run({"model": model, "data": data}, {}, "rcray init")
    rows = _rows(config.data)
    batch = _batch_size(config.data, config.train, rows)
    tiny = wanted.model in embedded_models()
    gpus = 0 if tiny else min(1, gpus_here())
    micro_batch = min(batch, config.train.micro_batch_size)
    counted = True
    if rows is not None:
        data["eval_pairs"] = held_out_size(config.data, rows)  # what will be taken, and not more
        lengths = survey(config.data, config.model)
        if lengths is not None and not tiny:
            data["max_length"] = next((size for size in _LENGTHS if size >= lengths.typical), _LENGTHS[-1])
            data["max_prompt_length"] = data["max_length"] * 3 // 4
            counted = lengths.counted
        micro_batch = _micro_batch(model, data, batch, micro_batch, gpus)
    title = f"{short_name(wanted.model)} on {short_name(wanted.data)}"
    lines = [
        f"# An experiment of rcray: {_comment(title)}. What is left out has a default; `rcray show-config` prints",
        "# every setting it resolves to, `rcray plan` the cells and what they take, `rcray sweep` runs them.",
        f"name: {_experiment_name(name)}",
        f"title: {_plain(title)}",
        "run:",
        _line("  fidelity: paper", "the paper's equations; official: the constants of the authors' code"),
        *_comment_lines(
            f"Embedded ({', '.join(embedded_models())}), a preset ({', '.join(preset_models())}), a hub id "
            "(owner/name; pin its `revision`) or a directory of safetensors weights (./name)."
        ),
        "  # method: full, lora, or qlora (lora on 4-bit weights).",
        f"  model: {_plain(model)}",
        *_comment_lines(
            f"{', '.join(known_datasets())}, a hub dataset (owner/name), a directory (./name) or a file (.jsonl .json "
            ".csv .parquet) with the columns prompt, chosen, rejected; `columns` says what they are called in yours."
        ),
        "  # Without an eval_split, eval_pairs rows are held out. bad_rows: drop counts and names them, fail stops.",
        *([] if counted else [_guess(config.model)]),
        f"  data: {_plain(data)}",
        "  train:",
        "    epochs: 1",
        _line(f"    batch_size: {batch}", "pairs per optimizer step"),
        _line(f"    micro_batch_size: {micro_batch}", "pairs per forward: memory"),
        _rate_line(model, config.train),
        "    seed: 42",
        "  calibration:",
        _line("    ema_beta: 0.98", "momentum of the calibration's averages; 0: none"),
        "  execution:",
        _line("    workers: 0", "0: inside the trial's process; n: a Ray Train group of n workers"),
        _line(f"    gpus_per_worker: {gpus}", _gpu_comment(tiny, gpus)),
        _line("    checkpoint_every: 50", "steps a lost process may cost"),
        "# Every combination is a cell; `rcray objectives` lists the objectives and their defaults.",
        "grid:",
        "  objective:",
        "    - dpo",
        "    - {name: simpo, beta: 2.0, gamma: 1.0}",
        "    - cpo",
        "  calibration.enabled: [false, true]   # without and with reward calibration",
        "  # train.seed: [1, 2, 3]              # seeds give mean, spread and n in the tables",
        "# exclude: [{objective.name: simpo, calibration.enabled: true}]   # cells to leave out",
        "evaluation:",
        _line("  preference: true", "accuracy, margin and drift on the held-out pairs"),
        _line(
            f"  benchmarks: [{'embedded' if tiny else ''}]", "embedded (for tiny models), published, any lm-eval task"
        ),
    ]
    return "\n".join(lines) + "\n"


def gpus_here() -> int:
    """GPUs that this machine's driver shows; torch is not asked, which takes seconds."""
    nvidia = len(list(Path("/dev").glob("nvidia[0-9]*")))
    amd = len(list(Path("/dev/dri").glob("renderD*"))) if Path("/dev/kfd").exists() else 0
    return nvidia or amd


def _gpu_comment(tiny: bool, gpus: int) -> str:
    if not tiny and not gpus:
        return "no GPU was seen here; 1: a GPU; 0.5: two cells on one"
    return "0: CPU; 1: a GPU; 0.5: two cells on one"


def _guess(model: ModelConfig) -> str:
    """What to know of lengths that no tokenizer has counted."""
    here = (Path(model.origin) / TOKENIZER).is_file()
    how = "pip install 'rcray[sweep]' counts tokens" if here else "the model's tokenizer is not on this machine"
    return f"  # max_length: estimated from characters; {how}."


def _micro_batch(model: Mapping[str, Any], data: Mapping[str, Any], batch: int, size: int, gpus: int) -> int:
    """The micro-batch halved until one cell fits its share of this machine's memory, or of a GPU's."""
    room = ACCELERATORS[DEFAULT].memory if gpus else _MEMORY_SHARE * psutil.virtual_memory().total
    while True:
        train = {"batch_size": batch, "micro_batch_size": size}
        settings = {"model": model, "data": data, "train": train, "execution": {"gpus_per_worker": gpus}}
        cost = estimate(build_run(settings, {}, "rcray init"))
        needed = cost.train_bytes if gpus else cost.host_bytes
        if size == 1 or needed is None or needed <= room:
            return size
        size //= 2


def _line(setting: str, comment: str) -> str:
    return f"{setting:<30}  # {comment}"


def _comment_lines(text: str) -> list[str]:
    return textwrap.wrap(text, 110, initial_indent="  # ", subsequent_indent="  # ")


def _model(wanted: Wanted) -> dict[str, Any]:
    if wanted.model.startswith(("/", "./", "../")) and not Path(wanted.model).is_dir():
        raise ConfigError(
            f"model.name: {wanted.model}: no such directory",
            fix=f"correct the path, or give {', '.join(MODELS)}, or a hub id",
        )
    model: dict[str, Any] = {"name": _place(wanted.model, MODELS)}
    return {**model, "method": wanted.method} if wanted.method else model


def _data(wanted: Wanted) -> dict[str, Any]:
    data: dict[str, Any] = {"name": wanted.data}
    if source_of(wanted.data).name in ("directory", "hub"):
        data["name"] = _place(wanted.data, ())
    columns = {ours: theirs for ours, theirs in (wanted.columns or {}).items() if ours != theirs}
    return {**data, "columns": columns} if columns else data


def _place(name: str, known: Collection[str]) -> str:
    """A directory that is there may be given without a slash; in the file it has one, so that it is no hub id."""
    if name in known or "/" in name or not Path(name).is_dir():
        return name
    return f"./{name}"


def _rows(data: DataConfig) -> int | None:
    """How many rows a local file has, its columns checked; None where only a download or a generator knows."""
    if source_of(data.name).name != "file":
        return None
    from rcray.data.rows import Row
    from rcray.data.sources import open_rows

    rows = open_rows(data, None)
    columns = data.columns
    first = next((row.values for row in rows.read((columns.prompt,)) if isinstance(row, Row)), {})
    known = [str(name) for name in rows.columns or first]
    for ours in ("chosen", "rejected"):
        theirs = getattr(columns, ours)
        if theirs not in known:
            raise ConfigError(
                f"{data.name}: no column {theirs!r}{did_you_mean(theirs, known)}",
                fix=f"say which column has the {ours} answers: --{ours} NAME; likewise --prompt",
            )
    count = rows.count()
    if count < _FEWEST_ROWS:
        raise ConfigError(
            f"{data.name}: has {count} rows, and some are to be trained on, some held out",
            fix=f"give at least {_FEWEST_ROWS}",
        )
    return count


def _batch_size(data: DataConfig, train: TrainConfig, rows: int | None) -> int:
    """The usual batch, or what a small file leaves steps for."""
    if rows is None:
        return 8 if data.name == "synthetic" else train.batch_size
    size = train.batch_size
    while size > 1 and rows < size * _FEWEST_STEPS:
        size //= 2
    return size


def _rate_line(model: Mapping[str, Any], train: TrainConfig) -> str:
    if "learning_rate" in train_defaults(model):
        return _line("    # learning_rate: ...", f"left to the model's preset: {train.learning_rate:g}")
    rate = _TINY_RATE if model["name"] in embedded_models() else train.learning_rate
    if model.get("method") in ("lora", "qlora"):
        rate = _ADAPTER_RATE
    mantissa, exponent = f"{rate:.1e}".split("e")
    number = f"{mantissa}e{int(exponent)}"  # YAML takes 1e-6 for text, and 1.0e-6 for a number
    return _line(f"    learning_rate: {number}", "constant unless `schedule: cosine`; adapters take more")


def _experiment_name(stem: str) -> str:
    kept = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "_-") else "-" for letter in stem)
    return _plain(kept.strip("_-")[:_LARGEST_NAME] or "experiment")


def _plain(value: Any) -> str:
    """The value as YAML on one line, quoted where it must be: a name is never more than a name."""
    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10**9, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")


def _comment(text: str) -> str:
    """Text for a comment: without anything that would end the line."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
