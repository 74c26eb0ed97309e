"""MLflow as the tracker: its client used directly, no global state, nothing it does kept from the caller.

Facts this rests on (MLflow 3.17): a point with the same name, step, time and value is stored once; a batch of points
is one transaction; `log_table` appends, so tables are written as whole files; a fresh SQLite file opened by two
processes at once breaks, so it is made under a lock.
"""

import contextlib
import json
import logging
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, cast

# Read by MLflow at its requests: a follower that waits minutes inside one call cannot tell anybody. What failed is
# tried again by delivery itself.
for _name, _value in {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",  # stdout is not MLflow's
}.items():
    os.environ.setdefault(_name, _value)

from filelock import FileLock  # noqa: E402

from rcray.extras import explained_imports  # noqa: E402
from rcray.secrets import redact  # noqa: E402
from rcray.track.address import Address  # noqa: E402
from rcray.track.tracker import (  # noqa: E402
    PARAMS_PER_CALL,
    Point,
    TrackedRun,
    TrackerRefusedError,
    TrackerState,
    TrackerUnavailableError,
    in_calls,
)

with explained_imports():
    from mlflow.entities import Metric, Param, Run, RunTag, ViewType
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

_REFUSALS = ("INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_DOES_NOT_EXIST", "PERMISSION_DENIED",
             "UNAUTHENTICATED", "RESOURCE_ALREADY_EXISTS", "INVALID_STATE", "RESOURCE_LIMIT_EXCEEDED")  # fmt: skip
_KIND = {"mlflow.experimentKind": "custom_model_development"}  # the UI shows training, not chat traces
_TABLES_TAG = "mlflow.loggedArtifacts"  # tells the UI which files are tables


class MlflowTracker:
    """See Tracker. `artifacts` is where a local database's experiments keep their files."""

    def __init__(self, address: Address, artifacts: Path):
        for noisy in ("mlflow", "alembic"):
            logging.getLogger(noisy).setLevel(logging.WARNING)
        self.address = address
        self.artifacts = artifacts
        with errors(), _schema_lock(address):
            self.client = MlflowClient(tracking_uri=address.uri)
            if not address.is_server:
                self.client.search_experiments(max_results=1)  # makes or upgrades the schema, alone

    def open_experiment(self, name: str) -> str:
        """See Tracker."""
        with errors():
            known = self.client.get_experiment_by_name(name)
            if known is None:
                # An absolute place for a local database: processes with another working directory must find it too.
                place = None if self.address.is_server else (self.artifacts / name).as_uri()
                try:
                    return self.client.create_experiment(name, place, _KIND)
                except MlflowException:  # somebody was faster
                    known = self.client.get_experiment_by_name(name)
                    if known is None:
                        raise
            if known.lifecycle_stage == "deleted":
                self.client.restore_experiment(known.experiment_id)
            return known.experiment_id

    def find_run(self, experiment: str, tags: Mapping[str, str]) -> TrackedRun | None:
        """See Tracker."""
        condition = " and ".join(f"tags.`{name}` = '{value}'" for name, value in tags.items())
        with errors():
            matches = self.client.search_runs([experiment], condition, ViewType.ACTIVE_ONLY, max_results=1)
        return _view(matches[0]) if matches else None

    def read_run(self, run: str) -> TrackedRun | None:
        """See Tracker."""
        with errors():
            try:
                stored = self.client.get_run(run)
            except MlflowException as error:
                if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                    return None
                raise
        return _view(stored) if stored.info.lifecycle_stage == "active" else None

    def create_run(self, experiment: str, name: str, tags: Mapping[str, str], started: int) -> TrackedRun:
        """See Tracker."""
        with errors():
            created = self.client.create_run(experiment, start_time=started, tags=dict(tags), run_name=name)
            self.client.update_run(created.info.run_id, status="SCHEDULED")
        return replace(_view(created), state="SCHEDULED")  # MLflow's own answer says RUNNING

    def log_params(self, run: str, params: Mapping[str, str]) -> None:
        """See Tracker."""
        with errors():
            for some in in_calls(list(params.items()), PARAMS_PER_CALL):
                self.client.log_batch(run, params=[Param(name, value) for name, value in some])

    def log_points(self, run: str, points: Sequence[Point]) -> None:
        """See Tracker."""
        with errors():
            self.client.log_batch(run, metrics=[Metric(p.name, p.value, p.milliseconds, p.step) for p in points])

    def set_tags(self, run: str, tags: Mapping[str, str]) -> None:
        """See Tracker."""
        with errors():
            for some in in_calls(list(tags.items()), PARAMS_PER_CALL):
                self.client.log_batch(run, tags=[RunTag(name, value) for name, value in some])

    def set_state(self, run: str, state: TrackerState, ended: int | None = None) -> None:
        """See Tracker."""
        with errors():
            if state in ("SCHEDULED", "RUNNING"):
                self.client.update_run(run, status=state)
            else:
                self.client.set_terminated(run, state, ended)

    def log_files(self, run: str, files: Mapping[str, Path]) -> None:
        """See Tracker."""
        with errors(), tempfile.TemporaryDirectory() as folder:
            for name, path in files.items():
                place = PurePosixPath(name)
                source = path
                if path.name != place.name:  # MLflow keeps the file's own name
                    source = Path(folder) / place.name
                    source.unlink(missing_ok=True)
                    source.symlink_to(path.resolve())
                parent = None if place.parent == PurePosixPath(".") else str(place.parent)
                self.client.log_artifact(run, str(source), parent)

    def log_table(self, run: str, path: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """See Tracker. The file is what `mlflow.load_table` reads, and the tag makes the UI show it as a table."""
        columns = list(dict.fromkeys(name for row in rows for name in row))
        content = {"columns": columns, "data": [[row.get(name) for name in columns] for row in rows]}
        with errors():
            self.client.log_text(run, json.dumps(content), path)
            entry = {"path": path, "type": "table"}
            tables = json.loads(self.client.get_run(run).data.tags.get(_TABLES_TAG, "[]"))
            if entry not in tables:
                self.client.set_tag(run, _TABLES_TAG, json.dumps([*tables, entry]))


def _view(run: Run) -> TrackedRun:
    info, data = run.info, run.data
    state = cast(TrackerState, info.status)
    return TrackedRun(info.run_id, info.run_name, state, info.start_time, data.tags, data.params, data.metrics)


@contextlib.contextmanager
def errors() -> Iterator[None]:
    """Whatever the client and the libraries below it raise, as one of the two errors, without secrets."""
    try:
        yield
    except (TrackerUnavailableError, TrackerRefusedError):
        raise
    except MlflowException as error:
        kind = TrackerRefusedError if error.error_code in _REFUSALS else TrackerUnavailableError
        raise kind(_one_line(error)) from None
    except Exception as error:  # connections, timeouts, locked databases, full disks: any of it may pass
        raise TrackerUnavailableError(_one_line(error)) from None


def _one_line(error: Exception) -> str:
    return redact(f"{type(error).__name__}: {' '.join(str(error).split())}")[:600]


@contextlib.contextmanager
def _schema_lock(address: Address) -> Iterator[None]:
    file = address.sqlite_file
    if file is None:
        yield
        return
    with FileLock(file.with_name(f".{file.name}.lock")):
        yield
