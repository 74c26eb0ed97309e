"""Benchmarks through lm-eval's Python API: one loaded model, one call per benchmark, rows out.

Each benchmark is a call of its own with lm-eval's own seeds set before it, so that a number does not depend on which
other benchmarks were asked for; the model is loaded once for all of them. The numbers are those of
`lm_eval.simple_evaluate`, which is not called itself because it spends seconds on describing the machine.
"""

import contextlib
import logging
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rcray.config.benchmarks import Benchmark
from rcray.config.evaluation import EvaluationConfig
from rcray.errors import ConfigError, DataError, RcrayError, did_you_mean
from rcray.evaluate.degenerate import benchmark_fault
from rcray.evaluate.embedded import task_config
from rcray.evaluate.harness_rows import benchmark_rows, documents_of
from rcray.models.sources import short_reason
from rcray.records.evaluation import MetricRow
from rcray.records.items import Items
from rcray.records.states import State

log = logging.getLogger(__name__)


def harness_version() -> str:
    """lm-eval's version, without importing it."""
    return version("lm-eval")


def run_benchmark(
    benchmark: Benchmark, lm: Any, settings: EvaluationConfig, keep: Callable[[Items], None] | None = None
) -> list[MetricRow]:
    """Asks one benchmark of a loaded model; a degenerate model gets rows without a value.

    `keep` takes the scores of every document.
    """
    results = harness_results(benchmark, lm, settings)
    leaves = tuple(results["samples"])
    common = MetricRow(
        benchmark=benchmark.name,
        metric="",
        value=None,
        stderr=None,
        n=0,
        task=Path(benchmark.task).name if benchmark.is_file else benchmark.task,
        chat_template=benchmark.chat_template,
        harness=f"lm-eval {harness_version()}",
        backend=settings.backend,
        limit=settings.limit,
    )
    rows = benchmark_rows(benchmark, results, leaves, common)
    if keep:
        keep(documents_of(results["samples"], rows))
    reason, note = benchmark_fault(results["samples"])
    return [_with_fault(row, reason, note) for row in rows]


def _with_fault(row: MetricRow, reason: str | None, note: str | None) -> MetricRow:
    if reason is None:
        return replace(row, note="; ".join(filter(None, [row.note, note])) or None)
    return replace(
        row,
        value=None,
        stderr=None,
        stderr_pooled=None,
        stderr_subtask_mean=None,
        value_weighted=None,
        value_unweighted=None,
        status=State.DEGENERATE,
        reason=reason,
        observed=row.value,
    )


def harness_results(benchmark: Benchmark, lm: Any, settings: EvaluationConfig) -> dict[str, Any]:
    """lm-eval's own results of one benchmark, samples included."""
    import lm_eval

    with _random_state(getattr(lm, "device", None)):
        tasks = load_tasks(benchmark, settings.data_dir)
        _seed_as_the_harness_does()
        for task in tasks["tasks"].values():
            _set_shots(task, benchmark)
        return lm_eval.evaluate(
            lm,
            tasks,
            limit=settings.limit,
            apply_chat_template=benchmark.chat_template,
            fewshot_as_multiturn=benchmark.chat_template,
        )


def _set_shots(task: Any, benchmark: Benchmark) -> None:
    from lm_eval.defaults import DEFAULT_OTHER_SEED

    given = task.get_config("num_fewshot")
    if benchmark.shots is None:
        task.set_config(key="num_fewshot", value=given or 0)
    elif given == 0 and benchmark.shots > 0:  # the task's data has no examples, or its author forbids them
        raise ConfigError(
            f"{benchmark.name}: asked with {benchmark.shots} shots, and the task {task.task_name!r} allows none",
            fix="leave evaluation.shots out",
        )
    else:
        task.set_config(key="num_fewshot", value=benchmark.shots)
    task.set_fewshot_seed(seed=DEFAULT_OTHER_SEED)


def _seed_as_the_harness_does() -> None:
    import numpy as np
    import torch
    from lm_eval.defaults import DEFAULT_OTHER_SEED, DEFAULT_RANDOM_SEED

    random.seed(DEFAULT_RANDOM_SEED)
    np.random.seed(DEFAULT_OTHER_SEED)
    torch.manual_seed(DEFAULT_OTHER_SEED)


@contextlib.contextmanager
def _random_state(device: Any = None) -> Iterator[None]:
    """Gives back the generators as they were: an evaluation must not change a training that follows it."""
    import numpy as np
    import torch

    from rcray.models.device import generators

    state, numpy_state = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=generators(device)):
            yield
    finally:
        random.setstate(state)
        np.random.set_state(numpy_state)


# -- tasks


def load_tasks(benchmark: Benchmark, data_dir: str | None) -> dict[str, Any]:
    """lm-eval's own dictionary of a benchmark's tasks, with their data: in `data_dir` first if there is one."""
    manager = task_manager(benchmark.family, full=_needs_index(benchmark))
    spec: Any = task_config(benchmark.task) if benchmark.embedded else benchmark.task
    _require_known(benchmark, manager)
    # Tasks name their datasets OWNER/NAME, or files relative to their own YAML: found from where this process stands.
    place = data_dir or (str(Path(benchmark.task).parent) if benchmark.is_file else None)
    try:
        with contextlib.chdir(place) if place else contextlib.nullcontext():
            return manager.load([spec])
    except (ModuleNotFoundError, ImportError) as error:
        raise ConfigError(f"{benchmark.name}: a package it needs is missing: {short_reason(error)}") from None
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{benchmark.name}: {benchmark.task} is not a task: {short_reason(error)}") from None
    except Exception as error:  # connection, cache, dataset and reader errors have no common ancestor
        raise _no_data(benchmark, manager, data_dir, error) from None


def _needs_index(benchmark: Benchmark) -> bool:
    return benchmark.family is None and not benchmark.embedded and not benchmark.is_file


@lru_cache(maxsize=4)
def task_manager(family: str | None = None, *, full: bool = False) -> Any:
    """lm-eval's index of tasks. All of it takes ten seconds to read, one family a moment, none nothing."""
    import lm_eval.tasks
    from lm_eval.tasks import TaskManager

    quiet()
    if full:
        return TaskManager()
    folder = Path(lm_eval.tasks.__file__).parent
    return TaskManager(include_defaults=False, include_path=[str(folder / family)] if family else None)


def _require_known(benchmark: Benchmark, manager: Any) -> None:
    if benchmark.embedded:
        return
    if benchmark.is_file:
        if not Path(benchmark.task).is_file():
            raise ConfigError(f"evaluation.benchmarks: {benchmark.task}: no such task file")
        return
    if benchmark.task not in manager.task_index:
        known = [name for name in manager.all_tasks if name[:1] == benchmark.task[:1]]
        close = did_you_mean(benchmark.task, known).partition(" (known")[0]
        raise ConfigError(
            f"evaluation.benchmarks: unknown benchmark {benchmark.task!r}{close}",
            fix="give published, embedded, an lm-eval task by name (`lm-eval ls tasks`), or the path of a task file",
        )


def _no_data(benchmark: Benchmark, manager: Any, data_dir: str | None, error: Exception) -> RcrayError:
    names = sorted(_datasets(benchmark.task, manager))
    where = (
        f"in evaluation.data_dir {data_dir}, on the hub or in its cache" if data_dir else "on the hub or in its cache"
    )
    folder = names[0] if names else "OWNER/NAME"
    return DataError(
        f"{benchmark.name}: its data ({', '.join(names) or benchmark.task}) is not {where}: {short_reason(error)}",
        fix=f"connect to the hub once, or download the dataset into DIR/{folder} and set evaluation.data_dir: DIR",
    )


def _datasets(task: str, manager: Any) -> set[str]:
    """Dataset names a task reads, without loading any."""
    from lm_eval.tasks._yaml_loader import load_yaml

    entry = manager.task_index.get(task)
    path = entry.yaml_path if entry is not None else (Path(task) if Path(task).is_file() else None)
    if path is None:
        return set()
    config = load_yaml(path, resolve_func=False)
    children = config.get("task")
    if isinstance(children, list):
        return {name for child in children if isinstance(child, str) for name in _datasets(child, manager)}
    return {str(config["dataset_path"])} if "dataset_path" in config else set()


def quiet() -> None:
    """lm-eval narrates; what matters of it is in the rows."""
    for name in ("lm_eval", "lm-eval"):
        logging.getLogger(name).setLevel(logging.ERROR)


def check_benchmarks(benchmarks: Sequence[Benchmark], data_dir: str | None) -> None:
    """Refuses unknown names and tasks whose data is out of reach, before anything is started."""
    if data_dir is not None and not Path(data_dir).is_dir():
        raise ConfigError(f"evaluation.data_dir: {data_dir}: no such directory")
    for benchmark in benchmarks:
        if not benchmark.embedded:
            with _random_state():
                load_tasks(benchmark, data_dir)
