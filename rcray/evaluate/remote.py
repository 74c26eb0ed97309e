"""Evaluations as Ray tasks: one per run, with resources of its own, as many at once as fit."""

import os
from collections.abc import Callable, Sequence
from typing import Any

from rcray.config import RunConfig, run_id
from rcray.config.evaluation import EvaluationConfig
from rcray.errors import ConfigError, RcrayError
from rcray.evaluate.stage import Outcome, evaluate_run
from rcray.faults import ended_by_device_faults
from rcray.store import Store
from rcray.train.mirror import Mirror, pushed

#: What is done to one run: `work(config, store, settings)`, in a process of its own.
Work = Callable[[RunConfig, Store, EvaluationConfig], Any]

RETRIES = 2  # lost processes or nodes
WAIT_SECONDS = 30.0  # between two words about what is under way


def evaluate_remotely(config: RunConfig, store: Store, settings: EvaluationConfig) -> Outcome:
    """One run, on the cluster this process belongs to."""
    import ray

    outcome = ray.get(_submit(evaluate_run, config, store, settings))
    if mirror := Mirror.of(config, store.run(run_id(config))):  # measured on another disk, perhaps
        mirror.pull()
    return outcome


def evaluate_many(
    configs: Sequence[RunConfig],
    store: Store,
    settings: EvaluationConfig,
    on_done: Callable[[RunConfig, Any], None],
    work: Work = evaluate_run,
    on_wait: Callable[[], None] = lambda: None,
) -> None:
    """Every run, each in a task of its own; `on_done` is called as they end, with the result or an RcrayError.

    A failure does not stop the others. `on_wait` is called now and then while none has ended.
    """
    import ray

    from rcray.sweep.connection import connected

    with connected(needs_dashboard=False):
        _require_room(configs, settings, ray.cluster_resources())
        waiting = {_submit(work, config, store, settings): config for config in configs}
        while waiting:
            ended, _ = ray.wait(list(waiting), num_returns=1, timeout=WAIT_SECONDS)
            if not ended:
                on_wait()
                continue
            done = ended[0]
            config = waiting.pop(done)
            result: Any
            try:
                result = ray.get(done)
            except ray.exceptions.RayTaskError as error:
                cause = error.cause
                result = cause if isinstance(cause, RcrayError) else RcrayError(f"{type(cause).__name__}: {cause}")
            except ray.exceptions.RayError as error:  # the process was lost more often than it is retried
                result = RcrayError(f"the evaluation's process was lost: {type(error).__name__}")
            on_done(config, result)


def resources(config: RunConfig, settings: EvaluationConfig) -> dict[str, float]:
    """What one evaluation asks of Ray."""
    gpus = config.execution.gpus_per_worker if settings.gpus is None else settings.gpus
    return {"num_cpus": settings.cpus, "num_gpus": gpus}


def _require_room(configs: Sequence[RunConfig], settings: EvaluationConfig, available: dict[str, float]) -> None:
    for config in configs:
        needs = resources(config, settings)
        for name, amount in (("CPU", needs["num_cpus"]), ("GPU", needs["num_gpus"])):
            if amount > available.get(name, 0):
                raise ConfigError(
                    f"{config.label}: its evaluation needs {amount:g} {name}, the cluster has "
                    f"{available.get(name, 0):g}",
                    fix="lower evaluation.cpus or evaluation.gpus, or use a larger cluster",
                )


def _submit(work: Work, config: RunConfig, store: Store, settings: EvaluationConfig) -> Any:
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    task = ray.remote(_task).options(
        **resources(config, settings),
        max_retries=RETRIES,
        name=f"evaluate {run_id(config)}",
        # Inside a Tune trial a task would be put into the trial's own reservation, which has no room for it.
        scheduling_strategy=PlacementGroupSchedulingStrategy(None),  # type: ignore[arg-type]
    )
    return task.remote(work, config.model_dump(mode="json"), store, settings.model_dump(mode="json"))


def _task(work: Work, config: dict[str, Any], store: Store, settings: dict[str, Any]) -> Any:
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    run_config = RunConfig.model_validate(config)
    if mirror := Mirror.of(run_config, store.run(run_id(run_config))):
        mirror.pull()
    with ended_by_device_faults(), pushed(mirror):
        return work(run_config, store, EvaluationConfig.model_validate(settings))
