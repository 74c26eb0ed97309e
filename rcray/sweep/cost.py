"""What a cell will take, before anything runs: tokens, arithmetic, hours, memory. No torch.

Local data is looked at (data/survey.py); of other data the source says how much it is.

Estimates, for ordering cells and for deciding what to rent. Every assumption stands in this file or, for pairs and
tokens, with its data source, and `rcray plan` prints those that matter.
"""

from dataclasses import dataclass

from rcray.config import RunConfig
from rcray.config.datasets import source_of
from rcray.config.shape import Shape
from rcray.data.survey import survey

GIB = 2**30


@dataclass(frozen=True)
class Accelerator:
    """What one GPU is assumed to do."""

    name: str = "RTX A6000"  # one of the paper's two kinds, so that its runtime table can be held against ours
    flops: float = 154.8e12  # dense 16-bit, from the data sheet
    utilisation: float = 0.30
    memory: float = 48e9


GPU = Accelerator()
CPU_FLOPS = 2e10  # of one core, small matrices
CPU_FLOPS_WIDE = 4.5e10  # the same from WIDE hidden units on; measured on SmolLM2-135M
WIDE = 512
CPU_SECONDS_PER_MICRO_BATCH = 0.015  # what a micro-batch costs on a CPU however small the model is
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
FOUR_BIT_BYTES = 0.5 + 4 / 64  # nf4: half a byte, and a float32 scale for each 64 weights
ACTIVATION_VALUES = 17  # kept per token, layer and hidden unit, without attention matrices (Korthikanti et al. 2022)
PROCESS_BYTES = 0.9 * GIB  # a trial's own process with torch and transformers, no model; measured
GROUP_BYTES = 1.5 * GIB  # a worker group's controller and helper actors beside its workers; measured
GPU_CONTEXT_BYTES = 1.0 * GIB


@dataclass(frozen=True)
class Cost:
    """An estimate for one cell; None is what cannot be told before a download."""

    tokens: float | None  # seen in training, both answers
    flops: float | None
    hours: float | None  # of one cell on its GPUs (or cores)
    gpu_hours: float | None
    train_bytes: float | None  # weights, gradients, optimizer, activations: of one worker, on its device
    host_bytes: float  # main memory of all its processes

    @property
    def weight(self) -> float:
        """For ordering: the longest first; what is unknown may be long."""
        return float("inf") if self.hours is None else self.hours


def training_pairs(config: RunConfig) -> int | None:
    """Pairs of one epoch, where the settings, the source or a local file tell."""
    local = survey(config.data, config.model)
    if local is not None:
        return local.train
    return config.data.train_pairs or source_of(config.data.name).pairs_of(config.data.subset)


def sequence_tokens(config: RunConfig) -> float:
    """Tokens of a prompt with one answer, on average."""
    local = survey(config.data, config.model)
    return local.tokens if local else min(source_of(config.data.name).tokens, config.data.max_length)


def longest_sequence(config: RunConfig) -> int:
    """Tokens that no prompt with its answer exceeds."""
    local = survey(config.data, config.model)
    most = local.longest if local else source_of(config.data.name).longest
    return min(config.data.max_length, most or config.data.max_length)


def estimate(config: RunConfig) -> Cost:
    """What a cell takes, from its model's shape and its data's size."""
    shape, pairs = config.model.shape, training_pairs(config)
    tokens = None if pairs is None else 2 * pairs * sequence_tokens(config) * config.train.epochs
    flops = None if shape is None or tokens is None else tokens * _shared(config) * flops_per_token(config, shape)
    hours = None if flops is None or pairs is None else _hours(config, flops, pairs)
    train_bytes = None if shape is None else train_memory(config, shape)
    gpus = config.execution.gpus_per_worker * max(1, config.execution.workers)
    gpu_hours = None if hours is None else hours * gpus
    return Cost(tokens, flops, hours, gpu_hours, train_bytes, _host_bytes(config, shape, train_bytes))


def _shared(config: RunConfig) -> float:
    """The share of the tokens that is computed, where it is known how much the prompts of a pair spare."""
    local = survey(config.data, config.model)
    if local is None or config.execution.prompt_sharing == "off":
        return 1.0
    return min(1.0, local.packed / (2 * local.tokens))


def flops_per_token(config: RunConfig, shape: Shape) -> float:
    """Two per parameter and token forward; twice that backward, or once where the weights are frozen.

    Attention's own products are left out: a few percent at 1,024 tokens.
    """
    n = shape.body + shape.vocabulary * shape.hidden  # looking an embedding up is no arithmetic
    forward = 2 * n
    backward = forward if config.model.trains_adapters else 2 * forward
    if config.calibration.scores == "full":
        backward *= 2  # both branches over all parameters, then the update
    live_reference = forward if config.needs_reference and config.objective.traits.token_level else 0
    return float(forward + backward + live_reference)


def _hours(config: RunConfig, flops: float, pairs: int) -> float:
    execution, train = config.execution, config.train
    workers = max(1, execution.workers)
    if execution.gpus_per_worker:
        # A card of half the rate for float32 (TF32); a share of a card does a share of its work.
        rate = GPU.flops * GPU.utilisation * (1 if "float16" in config.model.dtype + config.train.precision else 0.5)
        return flops / (rate * workers * execution.gpus_per_worker) / 3600
    micro_batches = train.epochs * (pairs // train.batch_size) * (train.batch_size // train.micro_batch_size)
    shape = config.model.shape
    rate = CPU_FLOPS_WIDE if shape is not None and shape.hidden >= WIDE else CPU_FLOPS
    return (flops / (rate * workers) + micro_batches * CPU_SECONDS_PER_MICRO_BATCH) / 3600


def train_memory(config: RunConfig, shape: Shape) -> float:
    """Bytes on one worker's device: weights, gradients, AdamW's two moments, activations of one micro-batch."""
    model, execution = config.model, config.execution
    width = BYTES[model.dtype]
    frozen = shape.body * FOUR_BIT_BYTES + shape.embeddings * width if model.quantized else shape.parameters * width
    if model.trains_adapters:
        trained = shape.adapters(model.lora.r, model.lora.targets)
        weights, trained_width = frozen + trained * 4, 4
    else:
        trained, trained_width, weights = shape.parameters, width, frozen
    if config.needs_reference and config.objective.traits.token_level and not model.trains_adapters:
        weights += frozen  # the frozen reference stays in memory
    gradients, moments = trained * trained_width, 2 * trained * trained_width
    rows = 2 * config.train.micro_batch_size // max(1, execution.workers)  # both answers are held until the backward
    activations = rows * longest_sequence(config) * shape.layers * shape.hidden * ACTIVATION_VALUES * width
    context = GPU_CONTEXT_BYTES if execution.gpus_per_worker else 0
    return float(weights + gradients + moments + activations + context)


def _host_bytes(config: RunConfig, shape: Shape | None, train_bytes: float | None) -> float:
    """Main memory: the processes, and on a CPU what is trained, on a GPU the weights on their way there."""
    execution = config.execution
    workers = max(1, execution.workers)
    processes = PROCESS_BYTES * workers + (GROUP_BYTES if execution.workers else 0)
    if execution.gpus_per_worker:
        return processes + workers * (0 if shape is None else shape.parameters * BYTES[config.model.dtype])
    return processes + workers * (train_bytes or 0)
