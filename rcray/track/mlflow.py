"""MLflow: one experiment, a parent run for the sweep, one nested run per cell.

The step records on disk are the spool: delivery reads what MLflow does not have yet and sends it in batches, so it can
be repeated at any time, after a kill or a dead server, and nothing is lost or doubled. Runs are found by their tags,
so no file has to agree with the server. The training processes never see MLflow.
"""

import logging
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlflow.entities import Metric, Param, Run, RunTag
from mlflow.tracking import MlflowClient

from rcray.config import RunConfig
from rcray.records import METRICS
from rcray.store import Store, read_json
from rcray.sweep.grid import Cell
from rcray.track.provenance import provenance
from rcray.train.dynamics import read_dynamics

log = logging.getLogger(__name__)

BATCH = 900  # entries per call; MLflow's limit is 1000
DELIVERED = "step"  # this metric closes every batch: its newest step tells how far delivery got
_POLL_SECONDS = 2.0
_STATUS = {"ok": "FINISHED", "failed": "FAILED", "oom": "FAILED", "degenerate": "FAILED"}


@dataclass(frozen=True)
class Tracking:
    """Where an experiment is tracked."""

    uri: str
    experiment_id: str
    parent_id: str
    cells: dict[str, str]  # run_id -> MLflow run id


def open_tracking(uri: str, store: Store, name: str, title: str, cells: Sequence[Cell]) -> Tracking:
    """Finds or makes the experiment, its parent run and a nested run per cell. Called once, before any trial."""
    for noisy in ("mlflow", "alembic"):  # the schema of a fresh database is made here, and is nobody's news
        logging.getLogger(noisy).setLevel(logging.WARNING)
    client = MlflowClient(tracking_uri=uri)
    experiment_id = _experiment(client, name, store)
    parent = _find(client, experiment_id, "rcray.kind = 'sweep'") or client.create_run(
        experiment_id, run_name=f"{name} (sweep)", tags={"rcray.kind": "sweep", "rcray.title": title or name}
    )
    for key, value in provenance().items():
        client.set_tag(parent.info.run_id, f"rcray.{key}", value)
    client.update_run(parent.info.run_id, status="RUNNING")
    found = {}
    for cell in cells:
        run = _find(client, experiment_id, f"rcray.run_id = '{cell.run_id}'")
        if run is None:
            tags = {"mlflow.parentRunId": parent.info.run_id, "rcray.kind": "cell", "rcray.run_id": cell.run_id}
            run = client.create_run(experiment_id, run_name=cell.label, tags={**tags, **_tags(cell.config)})
            params = [Param(path, str(value)) for path, value in flatten(cell.config.model_dump(mode="json")).items()]
            client.log_batch(run.info.run_id, params=params)
        found[cell.run_id] = run.info.run_id
    return Tracking(uri, experiment_id, parent.info.run_id, found)


def _experiment(client: MlflowClient, name: str, store: Store) -> str:
    existing = client.get_experiment_by_name(name)
    if existing is not None:
        return existing.experiment_id
    # An absolute place for a local store: processes with another working directory must find it too.
    local = client.tracking_uri.startswith("sqlite:")
    return client.create_experiment(name, (store.root / "mlartifacts" / name).as_uri() if local else None)


def _find(client: MlflowClient, experiment_id: str, condition: str) -> Run | None:
    key, _, value = condition.partition(" = ")
    found = client.search_runs([experiment_id], f"tags.`{key}` = {value}", max_results=1)
    return found[0] if found else None


def _tags(config: RunConfig) -> dict[str, str]:
    return {
        "model": config.model.name,
        "method": config.model.method,
        "objective": config.objective.name,
        "family": config.objective.traits.family,
        "rc": str(config.calibration.enabled).lower(),
        "ema_beta": str(config.calibration.ema_beta) if config.calibration.enabled else "none",
        "epochs": str(config.train.epochs),
        "seed": str(config.train.seed),
        "fidelity": config.fidelity,
        "likelihood": config.likelihood,
    }


def flatten(content: Any, prefix: str = "") -> dict[str, Any]:
    """Nested settings as dotted names."""
    if not isinstance(content, dict):
        return {prefix: content}
    flat: dict[str, Any] = {}
    for key, value in content.items():
        flat.update(flatten(value, f"{prefix}.{key}" if prefix else str(key)))
    return flat


class Delivery:
    """Sends what the store has and MLflow does not, for the cells of one experiment."""

    def __init__(self, tracking: Tracking, store: Store):
        self.tracking = tracking
        self.store = store
        self.client = MlflowClient(tracking_uri=tracking.uri)
        self.delivered: dict[str, int] = {}  # run_id -> last step MLflow has
        self.closed: set[str] = set()

    def deliver_all(self) -> None:
        """One pass over all cells."""
        for key, mlflow_run in self.tracking.cells.items():
            if key not in self.closed:
                self._deliver(key, mlflow_run)

    def _deliver(self, key: str, mlflow_run: str) -> None:
        run = self.store.run(key)
        status = run.read_status().get("status", "pending")
        if key not in self.delivered:
            history = self.client.get_metric_history(mlflow_run, DELIVERED)
            self.delivered[key] = max((point.step for point in history), default=0)
        for batch, last in _batches(read_dynamics(run.dynamics, after_step=self.delivered[key]).to_pylist()):
            self.client.log_batch(mlflow_run, metrics=batch)
            self.delivered[key] = last
        if status in _STATUS and (status != "ok" or run.evaluation.exists()):
            self._close(key, mlflow_run, status)

    def _close(self, key: str, mlflow_run: str, status: str) -> None:
        """Final metrics, artifacts and state; repeated without harm."""
        run = self.store.run(key)
        have = self.client.get_run(mlflow_run)
        rows = read_json(run.evaluation, default={}).get("rows", [])
        wanted = {f"{row['benchmark']}/{row['metric']}": row.get("value") for row in rows}
        metrics = [
            Metric(name, value, 0, 0)
            for name, value in wanted.items()
            if value is not None and have.data.metrics.get(name) != value
        ]
        self.client.log_batch(mlflow_run, metrics=metrics, tags=[RunTag("rcray.status", status)])
        for path in (run.config, run.evaluation, run.status):
            if path.exists():
                self.client.log_artifact(mlflow_run, str(path))
        if run.dynamics.is_dir():
            self.client.log_artifacts(mlflow_run, str(run.dynamics), "dynamics")
        if have.info.status != _STATUS[status]:
            self.client.set_terminated(mlflow_run, _STATUS[status])
        self.closed.add(key)

    def finish(self, *, complete: bool, artifacts: Sequence[Path] = ()) -> None:
        """Closes the parent run with the ledger, tables, figures and report."""
        for path in artifacts:
            (self.client.log_artifacts if path.is_dir() else self.client.log_artifact)(
                self.tracking.parent_id, str(path), *([path.name] if path.is_dir() else [])
            )
        self.client.set_terminated(self.tracking.parent_id, "FINISHED" if complete else "FAILED")


def _batches(rows: list[dict[str, Any]]) -> list[tuple[list[Metric], int]]:
    """Rows as metric batches; a step is never split, and the closing metric comes last."""
    batches: list[tuple[list[Metric], int]] = []
    batch: list[Metric] = []
    for i, row in enumerate(rows):
        step = row["step"]
        values = {name: float(row[name]) for name in METRICS if row[name] is not None}
        # MLflow would store an infinite edge as 1.8e308 and ruin the axis
        batch += [Metric(name, value, 0, step) for name, value in values.items() if math.isfinite(value)]
        if len(batch) + len(METRICS) + 1 > BATCH or i == len(rows) - 1:
            batch.append(Metric(DELIVERED, step, 0, step))
            batches.append((batch, step))
            batch = []
    return batches


class LiveDelivery:
    """Delivers in the background while a sweep runs; a slow or dead server delays curves, never training."""

    def __init__(self, delivery: Delivery):
        self.delivery = delivery
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mlflow", daemon=True)

    def __enter__(self) -> "LiveDelivery":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(_POLL_SECONDS):
            try:
                self.delivery.deliver_all()
            except Exception as error:
                log.warning("MLflow delivery failed and will be tried again: %s", error)
