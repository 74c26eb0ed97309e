"""The sections for the optimisation, and for how a run is carried out."""

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from rcray.config.objectives import NonNegative, Positive
from rcray.config.section import Section

LARGEST_SEED = 2**32 - 1  # what every random generator takes


class TrainConfig(Section):
    """The optimisation. Batch sizes count pairs over all workers together."""

    seed: int = Field(42, ge=0, le=LARGEST_SEED, description="of adapters and the order of pairs")
    epochs: int = Field(1, ge=0, description="0: nothing is trained, the start model itself is evaluated")
    batch_size: int = Field(32, ge=1, description="pairs per optimizer step")
    micro_batch_size: int = Field(8, ge=1, description="pairs per forward and backward")
    micro_batch_tokens: int | None = Field(
        None, ge=1, description="in place of micro_batch_size: tokens per forward, padding included, per worker"
    )
    learning_rate: Positive = Field(1e-6, description="at its highest")
    weight_decay: NonNegative = Field(0.0, description="decoupled from the gradient, as AdamW has it")
    clip_norm: Positive = Field(1.0, description="gradient norm above which the gradient is scaled down")
    optimizer: Literal["adamw", "adamw8bit", "paged_adamw", "paged_adamw8bit", "sgd"] = Field(
        "adamw",
        description="8bit: moments in 8 bits (bitsandbytes), a quarter of the memory; paged: moments move to main "
        "memory when a GPU is full; sgd is plain",
    )
    momentum: float = Field(0.0, ge=0, lt=1, description="of sgd")
    precision: Literal["auto", "float32", "bfloat16", "float16", "tf32"] = Field(
        "auto",
        description="of the products; auto: that of the weights, but float32 ones on a GPU are multiplied in bfloat16 "
        "(autocast); tf32 (GPU): float32, less exact",
    )
    schedule: Literal["constant", "cosine"] = Field("constant", description="of the learning rate after its warm-up")
    warmup_steps: int = Field(0, ge=0, description="over which the learning rate rises from nothing")
    probe_every: int = Field(10, ge=1, description="steps between two looks at the fixed probe set")
    probe_pairs: int = Field(32, ge=1, description="held-out pairs in the probe set")

    @field_validator("precision", mode="before")
    @classmethod
    def _older_name(cls, precision: Any) -> Any:
        """Runs made before there was a choice by device say `weights`; they keep their identity."""
        return "auto" if precision == "weights" else precision

    @model_validator(mode="after")
    def _micro_batches_fill_the_batch(self) -> "TrainConfig":
        if self.batch_size % self.micro_batch_size:
            raise ValueError(
                f"batch_size {self.batch_size} is not a multiple of micro_batch_size {self.micro_batch_size}"
            )
        return self

    def steps(self, pairs: int) -> int:
        """Optimizer steps on so many pairs; the incomplete last batch of an epoch is left out."""
        return self.epochs * (pairs // self.batch_size)


class ExecutionConfig(Section):
    """How a run is carried out; none of it changes the result, so none of it is in the run's identity."""

    workers: int = Field(0, ge=0, description="0: inside the calling process; n: a Ray Train group of n workers")
    cpus_per_worker: float = Field(1.0, gt=0, description="that Ray reserves")
    gpus_per_worker: float = Field(
        0.0, ge=0, description="that Ray reserves, one of which is used; 0.5: two cells share one; 0: a CPU"
    )
    checkpoint_every: int = Field(50, ge=1, description="optimizer steps between checkpoints")
    keep_checkpoints: int = Field(2, ge=1, description="newest ones; older ones are deleted")
    storage: str | None = Field(
        None, description="URI each run is copied to at its checkpoints, for nodes without a shared disk: s3://..."
    )
    keep_best: bool = Field(False, description="keep the model of the checkpoint that ranks most probe pairs rightly")
    prompt_sharing: Literal["auto", "on", "off"] = Field(
        "auto", description="compute the prompt of a pair once for both answers; auto: where it spares enough"
    )
    attention: Literal["auto", "sdpa", "flex"] = Field(
        "auto",
        description="of packed rows; flex (GPU) skips what they do not read, sdpa masks it; auto: flex on a GPU where "
        "a trial agrees with sdpa",
    )
    liger: bool = Field(
        False, description="Liger's kernels for norms, rotary positions and SwiGLU (GPU, package liger-kernel)"
    )
    gradient_checkpointing: bool = Field(False, description="recompute blocks in the backward: less memory, slower")
    compile: bool = Field(False, description="torch.compile the blocks: faster steps after a slow first one")
    check_sketch_every: int = Field(
        0, ge=0, description="with calibration.scores sketch: steps between two looks at the exact scores; 0: never"
    )
    parallel: Literal["ddp", "fsdp"] = Field(
        "ddp", description="ddp: every worker holds the model; fsdp: the blocks are sharded over the workers (FSDP2)"
    )
