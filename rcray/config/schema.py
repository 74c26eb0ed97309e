"""The configuration of one run: frozen, complete, and refused whole if any field is wrong."""

import copy
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from rcray.config.calibration import CalibrationConfig
from rcray.config.data import DataConfig
from rcray.config.evaluation import EvaluationConfig
from rcray.config.fidelity import OFFICIAL_CONSTANTS, PRESETS, Fidelity
from rcray.config.model import (
    Dtype,
    ModelConfig,
    default_scores,
    execution_defaults,
    fill_open,
    official_precision,
    train_defaults,
)
from rcray.config.objectives import BY_NAME, AnyObjective, Custom, Dpo, Kto, TiDpo
from rcray.config.objectives.names import resolve
from rcray.config.search import SearchConfig
from rcray.config.section import Section
from rcray.config.training import ExecutionConfig, TrainConfig

DEFAULT_OBJECTIVE = "dpo"
START_MODEL = "start model"  # in the place of an objective, where nothing is trained

#: Sections with a short form, `objective: dpo` or `calibration: true`: its type, the field it stands for, what it says.
SHORT_FORMS: tuple[tuple[str, type, str, Mapping[str, Any]], ...] = (
    ("model", str, "name", {}),
    ("data", str, "name", {}),
    ("objective", str, "name", {}),
    ("calibration", bool, "enabled", {}),
    ("calibration", str, "kind", {"enabled": True}),
)


def open_short_forms(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Writes out the sections given in their short form."""
    opened = dict(settings)
    for section, kind, field, implied in SHORT_FORMS:
        if isinstance(opened.get(section), kind):
            opened[section] = {field: opened[section], **implied}
    return opened


class RunConfig(Section):
    """Everything one run is: model, data, objective, calibration, training, and how to carry it out."""

    fidelity: Fidelity = Field("paper", description="preset for what is left open: see config/fidelity.py")
    model: ModelConfig = Field(default_factory=ModelConfig)
    data: DataConfig = Field(default_factory=DataConfig)
    objective: AnyObjective = Field(default_factory=Dpo)
    likelihood: Literal["sum", "mean"] = Field("sum", description="reduction of token log-probabilities to z")
    calibration: CalibrationConfig = Field(default_factory=CalibrationConfig)
    train: TrainConfig = Field(default_factory=TrainConfig)
    execution: ExecutionConfig = Field(default_factory=ExecutionConfig)

    @model_validator(mode="before")
    @classmethod
    def _fill_from_preset(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        filled = resolve(open_short_forms(copy.deepcopy(given)))
        fidelity = filled.get("fidelity", "paper")
        for path, value in PRESETS.get(str(fidelity), {}).items():
            *sections, field = path.split(".")
            target = filled
            for section in sections:
                target = target.setdefault(section, {}) if isinstance(target, dict) else {}
            if isinstance(target, dict):
                target.setdefault(field, value)
        objective = filled.setdefault("objective", {})
        if isinstance(objective, dict):
            name = objective.setdefault("name", DEFAULT_OBJECTIVE)  # `objective.beta: 0.2` alone is DPO's
            constants = OFFICIAL_CONSTANTS.get(str(name), {}) if fidelity == "official" else {}
            filled["objective"] = {**constants, **objective}
        model = filled.get("model", {})
        if isinstance(model, dict):
            defaults = {
                "train": train_defaults(model),
                "calibration": {"scores": default_scores(model)},
                "execution": execution_defaults(model),
            }
            filled = fill_open(filled, official_precision(model) if fidelity == "official" else {})
            filled = fill_open(filled, defaults)
        return filled

    @field_validator("execution")
    @classmethod
    def _gpu_share_is_placeable(cls, execution: ExecutionConfig) -> ExecutionConfig:
        share = execution.gpus_per_worker
        if share > 1 and share != int(share):
            raise ValueError(f"gpus_per_worker {share} is neither a fraction of one GPU nor a whole number")
        if 0 < share < 1 and execution.workers > 1:
            raise ValueError(
                f"gpus_per_worker {share:g}: NCCL does not sum over {execution.workers} workers that share a card; "
                "give each its own with 1, or set workers to 0 and let cells share it"
            )
        return execution

    @model_validator(mode="after")
    def _workers_share_micro_batches(self) -> "RunConfig":
        workers = max(1, self.execution.workers)
        if self.train.micro_batch_size % workers:
            raise ValueError(
                f"train.micro_batch_size {self.train.micro_batch_size} counts pairs over all workers and is not a "
                f"multiple of execution.workers {workers}"
            )
        if self.data.train_pairs is not None and self.train.batch_size > self.data.train_pairs:
            raise ValueError(
                f"train.batch_size {self.train.batch_size} exceeds data.train_pairs {self.data.train_pairs}: "
                "not one step would be made"
            )
        return self

    @model_validator(mode="after")
    def _looks_can_be_taken(self) -> "RunConfig":
        if self.calibration.steers_by_update and self.train.optimizer not in ("adamw", "sgd"):
            raise ValueError(
                "calibration.kind 'update' reads the moments of torch's optimizers, and "
                f"{self.train.optimizer} keeps its own: use train.optimizer adamw or sgd, or calibration.kind published"
            )
        if self.train.momentum and self.train.optimizer != "sgd":
            raise ValueError(f"train.momentum {self.train.momentum} is sgd's; {self.train.optimizer} has its own")
        return self

    @model_validator(mode="after")
    def _scores_are_of_what_is_trained(self) -> "RunConfig":
        allowed = ("adapters", "full") if self.model.trains_adapters else ("head", "sketch", "full")
        if self.calibration.scores not in allowed:
            raise ValueError(
                f"calibration.scores {self.calibration.scores!r} reads what model.method {self.model.method!r} does "
                f"not train; allowed: {', '.join(allowed)}"
            )
        return self

    @model_validator(mode="after")
    def _loop_can_feed_the_objective(self) -> "RunConfig":
        """Some variants read inputs that only a loop of one's own provides; better refused than ignored."""
        objective = self.objective
        if isinstance(objective, Kto) and objective.baseline == "kl":
            if self.train.micro_batch_tokens is not None:
                raise ValueError(
                    "objective.baseline 'kl' is taken from several pairs, and train.micro_batch_tokens may leave one "
                    "alone; use train.micro_batch_size"
                )
            if self.train.micro_batch_size < 2:
                raise ValueError(
                    "objective.baseline 'kl' is taken from 2 pairs at least, and train.micro_batch_size is "
                    f"{self.train.micro_batch_size}; raise it"
                )
        if isinstance(objective, TiDpo) and (objective.triplet or objective.importance == "gradient"):
            raise ValueError(
                "objective.triplet and objective.importance 'gradient' read a sampled anchor and embedding gradients, "
                "which the training loop does not make"
            )
        return self

    @model_validator(mode="after")
    def _unpaired_rows_have_their_objective(self) -> "RunConfig":
        if self.data.format == "unpaired":
            if not self.objective.traits.separates:
                takes = ", ".join(name for name, params in BY_NAME.items() if params.traits.separates)
                raise ValueError(
                    f"objective {self.objective.name!r} compares two answers to one prompt, which data.format "
                    f"'unpaired' does not have; objectives that take such rows: {takes}"
                )
            if self.execution.prompt_sharing == "on":
                raise ValueError("execution.prompt_sharing 'on': unpaired rows share no prompt; use auto")
        return self

    @model_validator(mode="after")
    def _sharding_has_workers(self) -> "RunConfig":
        if self.execution.parallel == "fsdp" and self.execution.workers < 1:
            raise ValueError(
                "execution.parallel 'fsdp' shards the model over a worker group; set execution.workers to 1 or more"
            )
        if self.execution.parallel == "fsdp" and self.train.optimizer not in ("adamw", "sgd"):
            raise ValueError(
                f"train.optimizer {self.train.optimizer!r} cannot work on sharded weights; use adamw, or parallel ddp"
            )
        return self

    @model_validator(mode="after")
    def _precisions_agree(self) -> "RunConfig":
        """There is one compute precision; what is stored in other ways is not meant."""
        asked, model = self.train.precision, self.model
        products = model.quantization.compute_dtype if model.quantized else model.dtype
        if asked == "tf32" and self.compute_dtype != "float32":
            raise ValueError(f"train.precision 'tf32' is one of float32 products, and these are in {products}")
        if asked in ("bfloat16", "float16") and model.quantized and products not in (asked, "float32"):
            raise ValueError(
                f"train.precision {asked!r} and model.quantization.compute_dtype {products!r} ask for two precisions; "
                "leave train.precision at auto"
            )
        if asked == "float32" and products != "float32":
            field = "model.quantization.compute_dtype" if model.quantized else "model.dtype"
            raise ValueError(
                f"train.precision 'float32' and {field} {products!r} ask for two precisions; set {field}: float32, or "
                "leave train.precision at auto"
            )
        return self

    @model_validator(mode="after")
    def _float16_weights_are_frozen(self) -> "RunConfig":
        if self.model.dtype == "float16" and not self.model.trains_adapters:
            raise ValueError(
                "model.dtype 'float16' cannot be trained in full: updates and small gradients round to nothing; keep "
                "the weights in float32 and set train.precision: float16"
            )
        return self

    @property
    def is_start_model(self) -> bool:
        """Whether nothing is trained: the row `before` of a table."""
        return self.train.epochs == 0

    @property
    def without_rc(self) -> "RunConfig":
        """The same run with calibration off."""
        return self.model_copy(update={"calibration": self.calibration.model_copy(update={"enabled": False})})

    @property
    def computes_in_float16(self) -> bool:
        """Whether gradients pass through float16, and need loss scaling."""
        return "float16" in (self.compute_dtype, self.model.dtype)

    @property
    def compute_dtype(self) -> Dtype:
        """What matrix products are computed in: training, reference, evaluation and `plan` all ask here.

        Weights that are trained stay in float32, where small updates do not round to nothing. On a GPU their products
        are in bfloat16 unless something else is asked for: that is ten times as fast there, and slow on a CPU.
        """
        if self.train.precision in ("bfloat16", "float16"):
            return self.train.precision
        if self.precision_is_open and self.execution.gpus_per_worker:
            return "bfloat16"
        return self.model.quantization.compute_dtype if self.model.quantized else self.model.dtype

    @property
    def precision_is_open(self) -> bool:
        """Whether the device decides what products are computed in: float32 weights, and nothing else asked for."""
        return self.train.precision == "auto" and not self.model.quantized and self.model.dtype == "float32"

    @property
    def needs_reference(self) -> bool:
        """Whether the objective reads the reference model's likelihoods."""
        if self.is_start_model:
            return False
        if isinstance(self.objective, Custom):
            return self.objective.needs_reference
        return self.objective.traits.needs_reference

    @property
    def caches_reference(self) -> bool:
        """Whether these are computed once for all cells; token-level objectives run the reference in every step."""
        return self.needs_reference and not self.objective.traits.token_level

    @property
    def objective_title(self) -> str:
        """The objective's name as tables print it."""
        if self.is_start_model:
            return START_MODEL
        if isinstance(self.objective, Custom):
            return self.objective.name.rpartition(":")[2]
        return self.objective.traits.title

    @property
    def label(self) -> str:
        """A name a person can read, as in `tiny-neox · dpo · RC`."""
        if self.is_start_model:
            return f"{self.model.label} · {START_MODEL}"
        return f"{self.model.label} · {self.objective.name} · {self.calibration.title}"

    @property
    def total_steps(self) -> int | None:
        """Optimizer steps of the whole run, less incomplete batches; None while only the data knows its size."""
        if self.data.train_pairs is None:
            return None
        gone = len(self.data.exclude_rows or ()) if self.data.name == "synthetic" else 0  # elsewhere others are drawn
        return self.train.steps(self.data.train_pairs - gone)


class Experiment(Section):
    """A file of `experiments/`: shared settings and the cells to make of them."""

    name: str = Field(
        min_length=1,
        max_length=64,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$",
        description="where its ledger and report go: STORE/experiments/NAME",
    )
    title: str = Field("", description="headline of its report")
    description: str = Field("", description="for whoever reads the file")
    run: dict[str, Any] = Field(default_factory=dict, description="settings every cell starts from")
    grid: dict[str, list[Any]] = Field(default_factory=dict, description="dotted path: the values to cross")
    cells: list[dict[str, Any]] = Field(
        default_factory=list, description="explicit cells: dotted paths to values; crossed with the grid"
    )
    exclude: list[dict[str, Any]] = Field(
        default_factory=list, description="cells to leave out: every dotted path must match"
    )
    search: SearchConfig | None = Field(None, description="points of continuous fields, beside the grid")
    evaluation: EvaluationConfig = Field(
        default_factory=EvaluationConfig, description="what is measured on finished cells"
    )

    @field_validator("grid")
    @classmethod
    def _axes_have_values(cls, grid: dict[str, list[Any]]) -> dict[str, list[Any]]:
        for path, values in grid.items():
            if not values:
                raise ValueError(f"axis {path!r} has no values; delete it or give at least one")
        return grid

    @model_validator(mode="after")
    def _cells_and_axes_are_apart(self) -> "Experiment":
        for i, cell in enumerate(self.cells):
            for path in cell.keys() & self.grid.keys():
                raise ValueError(f"cells.{i}.{path}: {path!r} is an axis of the grid too, which would win")
        return self

    @model_validator(mode="after")
    def _search_has_its_own_fields(self) -> "Experiment":
        if self.search is None:
            return self
        for path in self.search.space:
            if path in self.grid or any(path in cell for cell in self.cells):
                raise ValueError(f"search.space.{path}: {path!r} is given by `grid` or `cells` too")
        several = len(self.cells) > 1 or any(len(values) > 1 for values in self.grid.values())
        if self.search.method != "random" and several:
            raise ValueError(
                f"search.method {self.search.method!r} compares points with each other, and the grid has several cells "
                "that are not comparable; search one cell, or use method random"
            )
        return self
