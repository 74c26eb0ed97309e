"""Search on top of sweeps: Tune's ASHA stops what falls behind; Optuna chooses points from what earlier ones showed.

Points become ordinary cells with ordinary ids, so a search continues after a kill like any sweep: finished points are
cached, and Optuna, asked again with the same seed and told the same results in the same batches, asks for the same
points. Nothing of a search is kept but its runs and the list of those that were stopped.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rcray.config import Experiment
from rcray.config.search import SearchConfig
from rcray.errors import ConfigError
from rcray.extras import explained_imports
from rcray.records.ledger import write_stopped
from rcray.store import Store
from rcray.sweep.grid import Cell
from rcray.sweep.transit import run_id_of
from rcray.sweep.trial import SCORE


def scheduler(search: SearchConfig, cells: Sequence[Cell]) -> Any:
    """Tune's ASHA over the held-out margin, by our own step: Tune's iteration count restarts with a resumed trial."""
    from ray.tune.schedulers import ASHAScheduler

    for cell in cells:
        if cell.config.execution.workers:
            raise ConfigError(
                f"{cell.label}: search.method asha stops trials in their own process, and this one is a worker group",
                fix="set execution.workers to 0, or use method random",
            )
    longest = max((cell.config.total_steps or 0 for cell in cells), default=0)
    if longest and longest <= search.grace_steps:
        raise ConfigError(
            f"search.grace_steps {search.grace_steps}: the runs have {longest} steps, none would ever be compared",
            fix="lower it, and see that train.probe_every is not above it",
        )
    return ASHAScheduler(
        time_attr="step",
        metric=SCORE,
        mode="max",
        max_t=longest + 1 if longest else 10**9,  # never reached: a run at its end has still to save its model
        grace_period=search.grace_steps,
        reduction_factor=search.reduction,
    )


def early_stops(directory: Path) -> Any:
    """A Tune callback that writes down which trials the scheduler ended before they were finished."""
    from ray.tune import Callback

    class EarlyStops(Callback):  # type: ignore[misc]
        def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
            last = trial.last_result or {}
            if not last.get("finished"):
                score = f"{last.get(SCORE, float('nan')):.3g}"
                reason = f"ASHA stopped it at step {last.get('step')}, held-out margin {score} nats"
                write_stopped(directory, run_id_of(trial.config), reason)

    return EarlyStops()


def best_cell(cells: Sequence[Cell], store: Store, metric: str) -> tuple[Cell, float] | None:
    """The cell with the highest score, the first of equals; None where no finished one has it."""
    scored = [(cell, score) for cell in cells if (score := store.run(cell.run_id).scores().get(metric)) is not None]
    return max(scored, key=lambda item: item[1], default=None)


def choose_with_optuna(
    search: SearchConfig,
    cell_at: Callable[[Mapping[str, Any]], Cell],
    store: Store,
    run: Callable[[list[Cell], frozenset[str]], Any],
) -> Any:
    """Batches of points until all samples are made; `run` trains the cells so far, and its last outcome is returned.

    `cell_at` makes the cell of a point. A batch is chosen when the one before it is complete, so that the same command
    asks for the same points again. `run` also gets the ids of earlier batches, which are not tried again: what Optuna
    was told of them stands.
    """
    study, space = _new_study(search)
    cells: dict[str, Cell] = {}
    done = 0
    outcome = None
    while done < search.samples:
        asked = [study.ask(space) for _ in range(min(search.batch, search.samples - done))]
        rounded = [{path: search.space[path].rounded(trial.params[path]) for path in space} for trial in asked]
        batch = [cell_at(point) for point in rounded]
        tried = frozenset(cells)
        cells |= {cell.run_id: cell for cell in batch}
        outcome = run(list(cells.values()), tried)
        if outcome.ledger.interrupted:  # interrupted: the same command continues
            break
        for trial, cell in zip(asked, batch, strict=True):
            _tell(study, trial, store.run(cell.run_id).scores().get(search.metric))
        done += len(asked)
    return outcome


def _new_study(search: SearchConfig) -> tuple[Any, dict[str, Any]]:
    with explained_imports():
        import optuna
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=search.seed, n_startup_trials=search.batch, constant_liar=True)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for point in search.points():
        study.enqueue_trial(point)
    space = {
        path: optuna.distributions.FloatDistribution(r.low, r.high, log=r.scale == "log")
        for path, r in search.space.items()
    }
    return study, space


def _tell(study: Any, trial: Any, score: float | None) -> None:
    import optuna

    if score is None:  # failed, out of memory or degenerate: no value, and no zero in its place
        study.tell(trial, state=optuna.trial.TrialState.FAIL)
    else:
        study.tell(trial, score)


def best_of_search(experiment: Experiment, cells: Sequence[Cell], store: Store) -> str:
    """One line about the best point; empty where nothing was searched or nothing has a score."""
    search = experiment.search
    best = best_cell(cells, store, search.metric) if search else None
    if search is None or best is None:
        return ""
    point = {path: value for path, value in best[0].varied if path in search.space}
    return f"best {search.metric}: {best[1]:.4f} at {json.dumps(point)} (run {best[0].run_id})"
