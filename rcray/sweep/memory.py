"""Memory of a training step on a GPU, from peaks that were measured on the real shapes. No torch.

`python -m rcray.sweep.pretend` makes optimizer steps of the presets on a pretended GPU and writes peaks.json: for each
model, method, precision and way to carry it out the bytes that are there whatever the pairs are, and the bytes that
each token of a micro-batch adds. A test holds the file against the code. Other shapes have a rule here, until
`rcray plan --measure` makes their step in the same way.
"""

import json
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from importlib import resources

from rcray.config import RunConfig
from rcray.config.shape import Shape
from rcray.errors import ConfigError

GIB = 2**30
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
FOUR_BIT_BYTES = 0.5 + 4 / 64  # nf4: half a byte, and a float32 scale for each 64 weights
#: Kept per token, layer and hidden unit, without attention matrices (Korthikanti et al. 2022); with checkpointing only
#: what goes into each block. Between 4-bit layers all of it is float32.
ACTIVATION_VALUES, CHECKPOINT_VALUES = 17, 1
FORWARD_TOKENS = 16384  # of a forward without a graph on a GPU, as models/inference.py cuts them
GPU_CONTEXT_BYTES = 1.0 * GIB  # CUDA's own, and cuBLAS's workspace
ALLOCATOR = 1.05  # what torch's caching allocator holds beside what is alive


@dataclass(frozen=True)
class Peak:
    """The memory of a step as a line over the tokens of its micro-batch."""

    fixed: float
    per_token: float

    def at(self, tokens: int) -> float:
        """Bytes alive at once."""
        return self.fixed + self.per_token * tokens


def peak_key(config: RunConfig, *, looks: bool = False) -> str:
    """What decides a step's memory beside its tokens, as peaks.json names it; `looks`: as if it took looks."""
    model = config.model
    kept = "checkpointed" if config.execution.gradient_checkpointing else "kept"
    adapters = f" r{model.lora.r}" if model.trains_adapters else ""
    stored = "" if model.quantized else f" {8 * BYTES[model.dtype]}-bit"
    kept += ", distributions" if reads_distributions(config) else ""
    kept += ", full scores" if config.calibration.scores == "full" or config.calibration.record_full else ""
    kept += ", looks" if config.calibration.look_every or looks else ""
    kept += _unlike_measured(config)
    return f"{model.name} {model.method}{adapters}{stored} in {8 * BYTES[config.compute_dtype]}-bit products, {kept}"


def _unlike_measured(config: RunConfig) -> str:
    """What a cell has otherwise than all that were measured: AdamW, adapters at every linear layer, no branch kept."""
    model, optimizer, shape = config.model, config.train.optimizer, config.model.shape
    other = f", {optimizer}" if optimizer != "adamw" else ""
    if keeps_branches(config):
        other += ", branches of a step"
    if shape is not None and model.trains_adapters:
        targets = model.lora.targets
        partly = shape.adapters(1, targets) != shape.adapters(1, "all-linear")
        other += f", at {' '.join(targets)}" if partly else ""
    return other


def keeps_branches(config: RunConfig) -> bool:
    """Whether both sides' gradients are kept from micro-batch to micro-batch, to be weighed when all are known."""
    train, calibration = config.train, config.calibration
    several = calibration.granularity == "step" and train.batch_size > train.micro_batch_size
    return calibration.enabled and not calibration.steers_by_update and several


def reads_distributions(config: RunConfig) -> bool:
    """Whether the objective compares whole next-token distributions, of the model and of its reference."""
    return config.needs_reference and config.objective.traits.needs_reference_distribution


@cache
def measured_peaks() -> dict[str, Peak]:
    """Those that are kept as data."""
    content = json.loads(resources.files("rcray.sweep").joinpath("peaks.json").read_text())
    return {key: Peak(**values) for key, values in content["peaks"].items()}


def known_peak(config: RunConfig) -> Peak | None:
    """That of a GPU cell where it is kept as data; a run without looks holds no more than one that takes them."""
    peaks = measured_peaks()
    return peaks.get(peak_key(config)) or peaks.get(peak_key(config, looks=True))


def is_measured(config: RunConfig) -> bool:
    """Whether nothing of a GPU cell's memory is by rule."""
    return known_peak(config) is not None and not spreads_model(config)


def train_memory(config: RunConfig, shape: Shape, longest: int, peak: Peak | None = None) -> float:
    """Bytes on one worker's device: weights, gradients, the optimizer's moments, activations of one micro-batch.

    Or weights and a full forward, where the reference or the evaluation holds more: blocks are computed again in the
    step, and its rows are few.
    `peak` is that of a GPU cell where it was measured; else it is looked up, or ruled.
    """
    execution = config.execution
    rows = 2 * max(1, config.train.micro_batch_size // max(1, execution.workers))  # both answers until the backward
    tokens = rows * longest
    if config.train.micro_batch_tokens is not None:
        tokens = max(2 * longest, config.train.micro_batch_tokens)
    if not execution.gpus_per_worker:
        return ruled_peak(config, shape).at(tokens)
    extra = extra_weights(config, shape) if peak is None else 0.0  # its own step has them
    peak = peak or known_peak(config) or ruled_peak(config, shape)
    weights, spared = _weights(config, shape), elsewhere(config, shape, peak.fixed)
    forward = weights - elsewhere(config, shape, weights) + FORWARD_TOKENS * forward_bytes(config, shape)
    alive = max(peak.at(tokens) - spared, forward)
    return alive * ALLOCATOR + extra + GPU_CONTEXT_BYTES


def spreads_model(config: RunConfig) -> bool:
    """Whether FSDP spreads a model over several workers."""
    return config.execution.parallel == "fsdp" and config.execution.workers > 1


def elsewhere(config: RunConfig, shape: Shape, fixed: float) -> float:
    """Of the bytes that are there whatever the pairs are, those that FSDP keeps on the other workers.

    Whole on each are the head, adapters with their moments, and two blocks at a time, gathered to be computed.
    """
    if not spreads_model(config):
        return 0.0
    head = shape.vocabulary * shape.hidden
    if config.model.trains_adapters:
        sharded = frozen_bytes(config, shape) - head * BYTES[config.model.dtype]
        gathered = frozen_bytes(config, shape) - shape.embeddings * BYTES[config.model.dtype]
    else:
        sharded = fixed * (1 - head / shape.parameters)
        gathered = float(shape.body * BYTES[config.compute_dtype])
    return max(0.0, sharded * (1 - 1 / config.execution.workers) - 2 * gathered / shape.layers)


def forward_bytes(config: RunConfig, shape: Shape) -> float:
    """Of each token of a forward without a graph, at its widest place, the feed-forward layer of any block.

    Alive there are what goes into its function and what comes out, the gate's side, an adapter's sum; between 4-bit
    layers all of it is float32. The pretended GPU shows at most a tenth less.
    """
    inner = 2 + shape.gated + config.model.trains_adapters
    width = 4 if config.model.quantized else BYTES[config.model.dtype]
    return float((inner * shape.intermediate + 4 * shape.hidden) * width)


def pretended_peak(config: RunConfig) -> Peak:
    """The peak of a cell's own step, made on the pretended GPU by a process of its own; no card, no weights.

    Raises:
        ConfigError: the model cannot be built there.
    """
    command = [sys.executable, "-m", "rcray.sweep.pretend", "--peak"]
    done = subprocess.run(command, input=config.model_dump_json(), capture_output=True, text=True, check=False)
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or ["no answer"]
        problem = f"{config.label}: its step cannot be measured: {reason[0][:300]}"
        raise ConfigError(problem, fix="plan without --measure")
    return Peak(**json.loads(done.stdout))


def frozen_bytes(config: RunConfig, shape: Shape) -> float:
    """The weights as they are stored, without adapters."""
    width = BYTES[config.model.dtype]
    if config.model.quantized:
        return shape.body * FOUR_BIT_BYTES + shape.embeddings * width
    return float(shape.parameters * width)


def _weights(config: RunConfig, shape: Shape) -> float:
    """All of them, adapters in float32."""
    model = config.model
    adapters = 4 * shape.adapters(model.lora.r, model.lora.targets) if model.trains_adapters else 0
    return frozen_bytes(config, shape) + adapters


def extra_weights(config: RunConfig, shape: Shape) -> float:
    """A second copy of the model, where an objective reads a live reference and no adapter can be switched off.

    Such are those of tokens, and KTO with the baseline of mismatched pairs.
    """
    token_level, baseline = config.objective.traits.token_level, getattr(config.objective, "baseline", "none")
    live = config.needs_reference and (token_level or baseline == "kl")
    return frozen_bytes(config, shape) if live and not config.model.trains_adapters else 0.0


def training_bytes(config: RunConfig, shape: Shape) -> float:
    """Gradients and the optimizer's moments; a checkpoint is as large, with what is trained in the gradients' place."""
    model = config.model
    trained = shape.adapters(model.lora.r, model.lora.targets) if model.trains_adapters else shape.parameters
    width = 4 if model.trains_adapters else BYTES[model.dtype]
    moments = {"adamw": 2.0, "adamw8bit": 0.5, "sgd": 1.0 if config.train.momentum else 0.0}
    return trained * width * (1 + moments.get(config.train.optimizer, 2.0))


def ruled_peak(config: RunConfig, shape: Shape) -> Peak:
    """By rule of thumb: what the shape says, without looking. A sixth off at most where a peak was measured."""
    model, dtype, products = config.model, BYTES[config.model.dtype], BYTES[config.compute_dtype]
    fixed = _weights(config, shape) + training_bytes(config, shape)
    if not model.trains_adapters:
        fixed += shape.parameters * products * (products != dtype)  # autocast's copy
        branches = bool(config.calibration.look_every) or keeps_branches(config)
        fixed += shape.parameters * dtype * 2 * branches  # both sides' gradients
    block = ACTIVATION_VALUES * shape.hidden
    kept = shape.layers * block
    if config.execution.gradient_checkpointing:  # and in the block that is computed again, its gradients
        kept = shape.layers * CHECKPOINT_VALUES * shape.hidden + 2 * block + 4 * shape.intermediate * shape.gated
    return Peak(float(fixed), float(kept * (4 if model.quantized else products)))
