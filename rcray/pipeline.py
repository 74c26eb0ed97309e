"""A whole sweep, composed: cells, training and evaluation on Ray, delivery to MLflow, tables, figures, report."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

from rcray.aggregate.report import Report, build_report
from rcray.config import Experiment
from rcray.store import Store
from rcray.sweep.grid import Cell
from rcray.sweep.ledger import Ledger


@dataclass(frozen=True)
class Outcome:
    """What a sweep left behind."""

    ledger: Ledger
    report: Report
    tracking_uri: str | None


def sweep(
    experiment: Experiment,
    cells: Sequence[Cell],
    store: Store,
    *,
    tracking_uri: str | None,
    concurrency: int | None = None,
    on_refresh: Callable[[Ledger], None] | None = None,
) -> Outcome:
    """Runs what is unfinished, evaluates it, tracks it and writes the report. `tracking_uri=None` tracks nowhere."""
    # Imported here: the command line answers `plan` and `--help` without ray, torch or mlflow.
    from rcray.evaluate.command import check_settings
    from rcray.evaluate.stage import EvaluationStage
    from rcray.sweep.runner import SweepOptions, run_sweep

    evaluation = EvaluationStage(experiment.evaluation)
    if not all(evaluation.is_done(cell.config, store) for cell in cells):
        check_settings(experiment.evaluation)
    directory = store.experiment(experiment.name)
    ledger = Ledger(directory / "ledger.json", cells)
    options = SweepOptions(concurrency, (evaluation,), on_refresh)
    delivery = None
    if tracking_uri is not None:
        from rcray.track.mlflow import Delivery, LiveDelivery, open_tracking

        tracking = open_tracking(tracking_uri, store, experiment.name, experiment.title, cells)
        delivery = Delivery(tracking, store)
    with LiveDelivery(delivery) if delivery else nullcontext():
        run_sweep(cells, store, ledger, options)
    report = build_report(store, experiment, cells)
    if delivery:
        delivery.deliver_all()
        artifacts = [ledger.path, report.html, directory / "tables", directory / "figures"]
        delivery.finish(complete=ledger.complete, artifacts=[path for path in artifacts if path.exists()])
    return Outcome(ledger, report, tracking_uri)
