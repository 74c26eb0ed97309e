"""What a cell will take, before anything runs: tokens, arithmetic, hours, memory. No torch.

Local data is looked at (data/survey.py); of other data the source says how much it is.

Estimates, for ordering cells and for deciding what to rent. Every assumption stands in this file or, for pairs and
tokens, with its data source, and `rcray plan` prints those that matter.
"""

from dataclasses import dataclass

from rcray.config import RunConfig, content_key
from rcray.config.datasets import source_of
from rcray.config.shape import WIDE, Shape
from rcray.data.survey import survey
from rcray.sweep.accelerators import ACCELERATORS, DEFAULT, Accelerator
from rcray.sweep.memory import BYTES, GIB, train_memory, training_bytes

CPU_FLOPS = 2e10  # of one core, small matrices
CPU_FLOPS_WIDE = 4.5e10  # the same from WIDE hidden units on; measured on SmolLM2-135M
CPU_SECONDS_PER_MICRO_BATCH = 0.015  # what a micro-batch costs on a CPU however small the model is
PROCESS_BYTES = 0.9 * GIB  # a trial's own process with torch and transformers, no model; measured
GROUP_BYTES = 1.5 * GIB  # a worker group's controller and helper actors beside its workers; measured


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


def inputs_key(config: RunConfig) -> str:
    """Equal for cells that read the same pairs with the same model: they share encoded data and a reference."""
    return content_key([config.model.model_dump(mode="json"), config.data.model_dump(mode="json")])


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


def estimate(config: RunConfig, gpu: Accelerator = ACCELERATORS[DEFAULT]) -> Cost:
    """What a cell takes, from its model's shape and its data's size; on this GPU, where it takes one."""
    shape, pairs = config.model.shape, training_pairs(config)
    tokens = None if pairs is None else 2 * pairs * sequence_tokens(config) * config.train.epochs
    flops = None if shape is None or tokens is None else tokens * _shared(config) * flops_per_token(config, shape)
    if shape is not None and flops is not None:
        flops += _forwards(config, pairs or 0) * 2 * sequence_tokens(config) * forward_flops(shape)
    hours = None if flops is None or pairs is None else _hours(config, flops, pairs, gpu)
    train_bytes = None if shape is None else train_memory(config, shape, longest_sequence(config))
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
    forward = forward_flops(shape)
    backward = forward if config.model.trains_adapters else 2 * forward
    if config.calibration.scores == "full":
        backward *= 2  # both branches over all parameters, then the update
    live_reference = forward if config.needs_reference and config.objective.traits.token_level else 0
    recomputed = 2 * shape.body if config.execution.gradient_checkpointing else 0
    return float(forward + backward + live_reference + recomputed)


def forward_flops(shape: Shape) -> float:
    """Of one token through body and head; looking an embedding up is no arithmetic."""
    return float(2 * (shape.body + shape.vocabulary * shape.hidden))


def _forwards(config: RunConfig, pairs: int) -> float:
    """Pairs that are forwarded without a gradient: held-out ones before and after, the probes. Not the reference.

    `pairs`: to train on; as many steps as they make.
    """
    steps = config.train.steps(pairs) if config.total_steps is None else config.total_steps
    probes = 1 + steps // config.train.probe_every
    return 2 * config.data.eval_pairs + probes * config.train.probe_pairs


def reference_hours(config: RunConfig, gpu: Accelerator = ACCELERATORS[DEFAULT]) -> float | None:
    """GPU-hours of the reference, computed once for all cells with this model and data; None where unknown or none."""
    shape, pairs = config.model.shape, training_pairs(config)
    if not config.caches_reference or shape is None or pairs is None or not config.execution.gpus_per_worker:
        return None
    tokens = 2 * pairs * sequence_tokens(config) * _shared(config)
    return tokens * forward_flops(shape) / gpu.rate(config) / 3600


def _hours(config: RunConfig, flops: float, pairs: int, gpu: Accelerator) -> float:
    execution, train = config.execution, config.train
    workers = max(1, execution.workers)
    if execution.gpus_per_worker:
        # A share of a card does a share of its work; of several a worker uses one.
        return flops / (gpu.rate(config) * workers * min(1.0, execution.gpus_per_worker)) / 3600
    micro_batches = train.steps(pairs) * (train.batch_size // train.micro_batch_size)
    shape = config.model.shape
    rate = CPU_FLOPS_WIDE if shape is not None and shape.hidden >= WIDE else CPU_FLOPS
    return (flops / (rate * workers) + micro_batches * CPU_SECONDS_PER_MICRO_BATCH) / 3600


def _host_bytes(config: RunConfig, shape: Shape | None, train_bytes: float | None) -> float:
    """Main memory: the processes, and on a CPU what is trained.

    On a GPU the weights on their way there, or the copy of a checkpoint that a thread writes, whichever is more.
    """
    execution = config.execution
    workers = max(1, execution.workers)
    processes = PROCESS_BYTES * workers + (GROUP_BYTES if execution.workers else 0)
    if execution.gpus_per_worker:
        if shape is None:
            return processes
        return processes + workers * max(shape.parameters * BYTES[config.model.dtype], training_bytes(config, shape))
    return processes + workers * (train_bytes or 0)
