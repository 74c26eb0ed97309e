"""`rcray evaluate`: which runs, what is asked of them, and what is printed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rcray.config import RunConfig, run_id
from rcray.config.evaluation import EvaluationConfig
from rcray.config.load import build_run, read_yaml
from rcray.errors import ConfigError, RcrayError, did_you_mean
from rcray.evaluate.stage import EvaluationStage, Outcome, evaluate_run
from rcray.records.progress import read_progress
from rcray.records.states import UNSUCCESSFUL, State
from rcray.store import RunDir, Store, is_plain_name
from rcray.train.launch import is_trained, restore_trained

Say = Callable[[str], None]


@dataclass(frozen=True)
class Target:
    """A run to measure, and where it lies."""

    label: str
    config: RunConfig
    store: Store


#: Told of every run as it is measured, with its outcome or what went wrong.
Show = Callable[[Target, Outcome | RcrayError], None]


def check_settings(settings: EvaluationConfig) -> None:
    """Refuses, before anything is started: unknown benchmarks, missing files, a backend that is not installed."""
    from rcray.evaluate.backends import require_backend

    require_backend(settings)
    benchmarks = settings.resolved()
    if benchmarks or settings.data_dir:
        from rcray.evaluate.harness import check_benchmarks

        check_benchmarks(benchmarks, settings.data_dir)


def find_runs(given: str, store: Store) -> list[Target]:
    """A run's directory or id, or a directory of runs (a store's, or the store itself)."""
    if is_plain_name(given) and store.run(given).config.is_file():
        return [_target(store.run(given))]
    path = Path(given).expanduser()
    for folder in (path, path / "runs"):
        if (folder / "config.yaml").is_file():
            return [_target(RunDir(folder.resolve()))]
        directories = sorted(file.parent for file in folder.glob("*/config.yaml"))
        if directories:
            return [_target(RunDir(directory.resolve())) for directory in directories]
    known = [directory.name for directory in (store.root / "runs").glob("*")]
    raise ConfigError(
        f"--run {given}: neither a run of {store.root} nor a directory of runs{did_you_mean(given, known)}",
        fix="give a run id, a run's directory, or a directory that holds runs; `rcray plan` prints the ids",
    )


def find_run(given: str, store: Store) -> Target:
    """Exactly one trained run."""
    targets = find_runs(given, store)
    if len(targets) > 1:
        raise ConfigError(
            f"--run {given}: holds {len(targets)} runs, and this command takes one", fix="name one of them"
        )
    if not is_trained(targets[0].store.run(run_id(targets[0].config))):
        raise RcrayError(f"{targets[0].label}: not finished", fix="run `rcray train` or `rcray sweep` first")
    return targets[0]


def _target(run: RunDir) -> Target:
    config = build_run(read_yaml(run.config), {}, str(run.config))
    if run_id(config) != run.run_id or run.path.parent.name != "runs":
        raise ConfigError(
            f"{run.path}: is not the directory of run {run_id(config)}",
            fix="a run lies in STORE/runs/RUN_ID; evaluate it there",
        )
    return Target(config.label, config, Store.open(run.path.parent.parent))


def evaluate(targets: Sequence[Target], settings: EvaluationConfig, say: Say, warn: Say) -> None:
    """Measures the trained runs on Ray and prints every row; what is measured is not measured again.

    A run whose evaluation had failed in its sweep is ok once it is measured.

    Raises:
        RcrayError: a run is not finished, failed to evaluate, or is degenerate.
    """
    finished = [target for target in targets if is_trained(target.store.run(run_id(target.config)))]
    for target in targets:
        if target not in finished:
            warn(f"{target.label}: not finished, skipped")
    stage = EvaluationStage(settings)
    troubles: list[State] = []

    def show(target: Target, result: Outcome | RcrayError) -> None:
        if isinstance(result, RcrayError):
            warn(f"{target.label}: failed: {result}")
            troubles.append(State.FAILED)
            return
        for row in result.rows:
            say(f"{target.label}: {row.describe()}")
        if result.degenerate or any(row.status is State.DEGENERATE for row in result.rows):
            troubles.append(State.DEGENERATE)
        else:
            restore_trained(target.store.run(run_id(target.config)))

    todo = [target for target in finished if not stage.is_done(target.config, target.store)]
    if todo or not finished:  # what is measured can be shown again without hub, data or backend
        check_settings(settings)
    for target in finished:
        if target not in todo:
            show(target, evaluate_run(target.config, target.store, settings))
    _on_ray(todo, settings, show, warn)
    if len(finished) < len(targets):
        raise RcrayError(
            f"{len(targets) - len(finished)} of {len(targets)} cells are not finished", fix="run `rcray sweep` first"
        )
    if troubles:
        counts = ", ".join(f"{troubles.count(state)} {state}" for state in UNSUCCESSFUL if state in troubles)
        raise RcrayError(f"of {len(targets)} runs: {counts}")


def _on_ray(targets: Sequence[Target], settings: EvaluationConfig, show: Show, say: Say) -> None:
    if not targets:
        return
    from rcray.evaluate.remote import evaluate_many

    by_store: dict[Path, list[Target]] = {}
    for target in targets:
        by_store.setdefault(target.store.root, []).append(target)
    for group in by_store.values():
        named = {run_id(target.config): target for target in group}

        def under_way(group: Sequence[Target] = group) -> None:
            for target in group:
                if doing := read_progress(target.store.run(run_id(target.config)).path):
                    say(f"{target.label}: {doing.text}")

        evaluate_many(
            [target.config for target in group],
            group[0].store,
            settings,
            lambda config, result, named=named: show(named[run_id(config)], result),  # type: ignore[misc]
            on_wait=under_way,
        )
