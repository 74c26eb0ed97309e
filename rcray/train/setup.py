"""From a config to what an optimizer step works on: objective, reference, scores, optimizer, precision, workers."""

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from rcray.calibration import Calibrator, normalised_gradient, score_parameters
from rcray.calibration.update import Guard, UpdateCalibrator
from rcray.config import RunConfig
from rcray.config.calibration import WINNER_GUARD, CalibrationConfig
from rcray.config.objectives import Kto
from rcray.config.training import TrainConfig
from rcray.data.encoded import EncodedPairs
from rcray.data.schedule import Schedule
from rcray.errors import ConfigError
from rcray.models.attention import attend_alike, use_attention
from rcray.models.blocks import blocks_of
from rcray.models.capabilities import capabilities_of, use_liger
from rcray.models.forward import body_of
from rcray.models.load import CPU, LoadedModel, load_model
from rcray.models.reference import ReferenceLogps, reference_logps
from rcray.objectives import build_objective
from rcray.store import Store
from rcray.train.baseline import kl_baseline
from rcray.train.look import Looks
from rcray.train.micro import Policy
from rcray.train.parallel import ProcessGroup, Workers, clip_norm, shard, sum_gradients
from rcray.train.parts import Scoring, may_share_prompts, score_source
from rcray.train.scaling import LossScaling
from rcray.train.step import StepState, Update


def step_state(
    config: RunConfig,
    store: Store,
    loaded: LoadedModel,
    data: EncodedPairs,
    schedule: Schedule,
    device: torch.device,
    workers: int,
    rank: int = 0,
) -> StepState:
    """Everything a step needs; the reference is computed or found before the model is sharded."""
    reference = frozen = None
    execution = config.execution
    use_attention(loaded.model, device, execution.attention, packs=execution.prompt_sharing != "off")
    traits = config.objective.traits
    if config.needs_reference:
        if traits.token_level or has_baseline(config):  # cached sums are not enough: keep the frozen model itself
            frozen = loaded.model if config.model.trains_adapters else _frozen_copy(config, store, loaded.model, device)
        if not traits.token_level:
            reference = reference_logps(loaded, data, store.cache, device).to(device)
    return with_references(config, loaded.model, data, schedule, device, workers, rank, reference, frozen)


def has_baseline(config: RunConfig) -> bool:
    """Whether the objective reads what the model makes of mismatched pairs."""
    return isinstance(config.objective, Kto) and config.objective.baseline == "kl"


def with_references(
    config: RunConfig,
    model: Any,
    data: EncodedPairs,
    schedule: Schedule,
    device: torch.device,
    workers: int,
    rank: int,
    reference: ReferenceLogps | None,
    frozen: Any | None,
) -> StepState:
    """The same, its reference being at hand."""
    calibration, train, execution = config.calibration, config.train, config.execution
    objective = build_objective(config.objective)
    traits = objective.params.traits
    if execution.liger:
        use_liger(model, device)
    reads_off = not (traits.needs_reference_distribution or calibration.record_full)
    source = score_source(model, calibration.scores) if reads_off else None
    allowed = capabilities_of(model)
    short_mlp = allowed.short_mlp if source else None  # tried before blocks are checkpointed, compiled or sharded
    sharing = execution.prompt_sharing if may_share_prompts(model, source) else "off"
    if execution.prompt_sharing == "on" and sharing == "off":
        raise ConfigError(
            "execution.prompt_sharing: 'on', but this model, objective or choice of scores does not allow it",
            fix="use auto, which shares prompts where it can",
        )
    if execution.gradient_checkpointing:
        checkpoint_blocks(model)
    if execution.compile:
        compile_blocks(model, device)
    sharded = execution.parallel == "fsdp"
    if sharded:
        if source is None:
            raise ConfigError(
                f"execution.parallel: 'fsdp' needs scores that are read off the backward, not "
                f"{calibration.scores!r} of {config.objective.name!r}",
                fix="use calibration.scores head, sketch or adapters, or parallel: ddp",
            )
        mixed = allowed.precision.compute if allowed.precision.autocast and not config.model.trains_adapters else None
        shard(model, mixed=mixed)
    optimizer = build_optimizer([p for p in model.parameters() if p.requires_grad], train, device)
    group = Workers(workers, ProcessGroup(device), sum_gradients) if workers > 1 else Workers()
    precision, baseline = allowed.precision, None
    if has_baseline(config):
        baseline = kl_baseline(model, frozen, config.likelihood, precision, group.reduce)
    policy = Policy(
        model=model,
        objective=objective,
        likelihood=config.likelihood,
        reference=reference,
        live_reference=frozen if traits.token_level else None,
        baseline=baseline,
        longest=config.data.max_length,
        share_prompts=sharing,
        window=allowed.window,
        short_mlp=short_mlp,
        precision=precision.context,
        worth_packing=allowed.worth_packing,
        device=device,
    )
    looks = None
    if calibration.look_every:
        reduce, summed = group.reduce, group.sum_gradients
        looks = Looks(
            policy,
            optimizer,
            train.clip_norm,
            rank=rank,
            reduce=reduce,
            sum_gradients=summed,
            scaling=LossScaling() if config.computes_in_float16 else None,
        )
    return StepState(
        policy=policy,
        scoring=Scoring(
            per_micro_batch=calibration.granularity == "microbatch",
            source=source,
            parameters=[] if source else score_parameters(model, calibration.scores),
            full_parameters=score_parameters(model, "full") if calibration.record_full else (),
            check_sketch_every=execution.check_sketch_every if source and source.projection is not None else 0,
        ),
        update=Update(
            optimizer=optimizer,
            scheduler=scheduler_of(optimizer, train, schedule.total_steps),
            batch_size=train.batch_size,
            clip_norm=train.clip_norm,
            clip=clip_norm if sharded else torch.nn.utils.clip_grad_norm_,
            scaling=LossScaling() if config.computes_in_float16 else None,
        ),
        calibrator=calibrator_of(calibration, schedule.total_steps),
        workers=group,
        looks=looks,
        guard=guard_of(config, data, says=rank == 0),
    )


def calibrator_of(calibration: CalibrationConfig, steps: int) -> Calibrator | UpdateCalibrator | None:
    """What decides about alpha in a run of so many steps."""
    if not calibration.enabled:
        return None
    if calibration.kind == "update":
        return UpdateCalibrator(calibration.loser_share, steps)
    if calibration.kind == "normalised":
        return normalised_gradient()
    return Calibrator(calibration.ema_beta, clip=calibration.clip)


def guard_of(config: RunConfig, data: EncodedPairs, *, says: bool = True) -> Guard | None:
    """How far the winner may fall before calibration steps back, or it is said; None where nobody looks."""
    calibration = config.calibration
    if not calibration.look_every:
        return None
    tokens = 1.0 if config.likelihood == "mean" else float(data.lengths[:, 1].mean())
    acts = calibration.enabled and (calibration.steers_by_update or calibration.guard is not None)
    return Guard((calibration.guard or WINNER_GUARD) * tokens, acts, says)


def _frozen_copy(config: RunConfig, store: Store, model: Any, device: torch.device) -> Any:
    frozen = load_model(config.model, store.cache, device=device).model.eval().requires_grad_(False)
    attend_alike(frozen, model)
    return frozen


def build_optimizer(
    trained: list[nn.Parameter], train: TrainConfig, device: torch.device = CPU
) -> torch.optim.Optimizer:
    """Plain descent, or AdamW: torch's, one kernel for all of it on a GPU, or bitsandbytes' with smaller moments.

    That kernel takes no list of whole and sharded tensors; torch goes through those of a sharded model one by one.
    """
    if train.optimizer == "sgd":
        return torch.optim.SGD(trained, train.learning_rate, train.momentum, weight_decay=train.weight_decay)
    options: dict[str, Any] = {"lr": train.learning_rate, "weight_decay": train.weight_decay}
    if train.optimizer == "adamw":
        fused = True if device.type != "cpu" and not any(isinstance(p, DTensor) for p in trained) else None
        adamw = torch.optim.AdamW(trained, **options, fused=fused)
        adamw.register_load_state_dict_pre_hook(_own_kernel)
        return adamw
    if train.optimizer.startswith("paged") and device.type == "cpu":
        raise ConfigError(
            f"train.optimizer: {train.optimizer!r} pages a GPU's memory, and this run is on the CPU", fix="use adamw"
        )
    try:
        from bitsandbytes import optim
    except ImportError:
        raise ConfigError(
            f"train.optimizer: {train.optimizer!r} needs the package bitsandbytes, which is not installed",
            fix="pip install bitsandbytes, or use train.optimizer: adamw",
        ) from None
    kind = {"adamw8bit": "AdamW8bit", "paged_adamw": "PagedAdamW", "paged_adamw8bit": "PagedAdamW8bit"}
    optimizer: torch.optim.Optimizer = getattr(optim, kind[train.optimizer])(trained, **options)
    return optimizer


def _own_kernel(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
    """What is loaded was written on another device, or sharded otherwise, perhaps: its kernel is not taken over."""
    fused = optimizer.param_groups[0]["fused"]
    return {**saved, "param_groups": [{**group, "fused": fused} for group in saved["param_groups"]]}


def checkpoint_blocks(model: Any) -> None:
    """Recomputes the blocks in the backward, all but the last.

    The last is the first to be recomputed, so it would save almost nothing, and it is where adapters are watched.
    """
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    last: Any = blocks_of(body_of(model))[-1]
    last.gradient_checkpointing = False


def compile_blocks(model: Any, device: torch.device) -> None:
    """Compiles the blocks, all but the last: there, hooks of ours cut, unfold and watch."""
    if device.type == "cpu":
        from torch._inductor.cpp_builder import get_cpp_compiler

        try:
            get_cpp_compiler()
        except RuntimeError as error:
            raise ConfigError(
                f"execution.compile: true, but torch finds no C++ compiler: {str(error).splitlines()[0]}",
                fix="install g++, or leave execution.compile off",
            ) from None
    for block in blocks_of(body_of(model))[:-1]:
        block.compile()


def scheduler_of(optimizer: torch.optim.Optimizer, train: TrainConfig, total: int) -> Any:
    """What sets the learning rate of each step; a rate that never changes is left alone."""
    if train.schedule == "constant" and not train.warmup_steps:
        return torch.optim.lr_scheduler.ConstantLR(optimizer, factor=1.0, total_iters=0)
    factor = learning_rate_factor(train.schedule, train.warmup_steps, total)
    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)


def learning_rate_factor(schedule: Literal["constant", "cosine"], warmup: int, total: int) -> Callable[[int], float]:
    """The multiplier of the learning rate at each step: linear warm-up, then constant or cosine to zero."""

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        if schedule == "constant":
            return 1.0
        return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))

    return factor
