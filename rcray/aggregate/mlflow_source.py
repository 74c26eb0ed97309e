"""Runs from an MLflow server: the records that a sweep delivered there, brought back in the shape of a store."""

import logging
import re
import shutil
from collections.abc import Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING

from rcray.errors import StoreError
from rcray.store import RunDir, Store
from rcray.sweep.grid import Cell
from rcray.train.dynamics import part_name

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

# What a report reads of a run, beside its records; everything else (weights, checkpoints, figures) stays on the server.
_ITEMS = re.compile(r"items/([0-9A-Za-z-]+)\.parquet")
_RECORDS = "dynamics.parquet"  # step records in one piece, as they are delivered


def fetch_runs(uri: str, experiments: Sequence[str], cells: Sequence[Cell], folder: Path) -> Store:
    """Downloads the records of these cells from the named experiments; a cell that is not there stays pending."""
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    for noisy in ("mlflow", "alembic"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    wanted = {cell.run_id for cell in cells}
    store = Store.open(folder)
    try:
        client = MlflowClient(tracking_uri=uri)
        known = [client.get_experiment_by_name(name) for name in experiments]
        ids = [experiment.experiment_id for experiment in known if experiment]
        if not ids:
            raise StoreError(
                f"{uri}: has no experiment {' or '.join(map(repr, experiments))}",
                fix="check the address; experiments have the names that their files give",
            )
        for run_id, mlflow_run in _runs(client, ids, wanted).items():
            _download(client, mlflow_run, store.run(run_id))
    except MlflowException as error:
        reason = " ".join(str(error).split())[:300]
        raise StoreError(f"{uri}: MLflow says: {reason}", fix="check the address and the server") from None
    return store


def _runs(client: "MlflowClient", experiment_ids: list[str], wanted: Set[str]) -> dict[str, str]:
    """MLflow's run of every wanted cell; of several (other stores, other experiments) a finished one, the newest."""
    chosen: dict[str, str] = {}
    finished: set[str] = set()
    token = None
    while True:
        page = client.search_runs(experiment_ids, "tags.`rcray.kind` = 'cell'", max_results=500, page_token=token)
        for run in page:  # the newest first
            run_id = run.data.tags.get("rcray.run_id", "")
            better = run.info.status == "FINISHED" and run_id not in finished
            if run_id in wanted and (run_id not in chosen or better):
                chosen[run_id] = run.info.run_id
                finished |= {run_id} if run.info.status == "FINISHED" else set()
        token = page.token
        if not token:
            return chosen


def _download(client: "MlflowClient", mlflow_run: str, run: RunDir) -> None:
    import pyarrow.parquet as pq

    shutil.rmtree(run.path, ignore_errors=True)  # an earlier fetch: its records may be of other steps
    run.path.mkdir(parents=True)
    for entry in client.list_artifacts(mlflow_run):
        if entry.path in run.records:
            client.download_artifacts(mlflow_run, entry.path, str(run.path))
        elif entry.path == "items":  # one by one: the names are the server's, only our own kind is taken
            for part in client.list_artifacts(mlflow_run, entry.path):
                if named := _ITEMS.fullmatch(part.path):
                    target = run.items(named[1])
                    target.parent.mkdir(exist_ok=True)
                    Path(client.download_artifacts(mlflow_run, part.path, str(run.path))).rename(target)
        elif entry.path == _RECORDS:
            whole = Path(client.download_artifacts(mlflow_run, entry.path, str(run.path)))
            steps = pq.read_table(whole, columns=["step"])["step"].to_pylist()
            if steps:
                run.dynamics.mkdir(exist_ok=True)
                whole.rename(run.dynamics / part_name(steps[0], steps[-1]))
