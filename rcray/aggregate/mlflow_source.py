"""Runs from an MLflow server: the records that a sweep delivered there, brought back in the shape of a store."""

import logging
from collections.abc import Iterator, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING

from rcray.errors import StoreError
from rcray.store import Store
from rcray.sweep.grid import Cell

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

#: What a report reads of a run; everything else (weights, checkpoints, figures) stays on the server.
_FILES = ("config.yaml", "status.json", "evaluation.json")
_FOLDER = "dynamics"


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
        ids = [found.experiment_id for name in experiments if (found := client.get_experiment_by_name(name))]
        if not ids:
            raise StoreError(
                f"{uri}: has no experiment {' or '.join(map(repr, experiments))}",
                fix="check the address; experiments have the names that their files give",
            )
        for mlflow_run, run_id in _runs(client, ids, wanted):
            _download(client, mlflow_run, store.run(run_id).path)
    except MlflowException as error:
        reason = " ".join(str(error).split())[:300]
        raise StoreError(f"{uri}: MLflow says: {reason}", fix="check the address and the server") from None
    return store


def _runs(client: "MlflowClient", experiment_ids: list[str], wanted: Set[str]) -> Iterator[tuple[str, str]]:
    """MLflow's runs of the wanted cells, page by page."""
    token = None
    while True:
        page = client.search_runs(experiment_ids, "tags.`rcray.kind` = 'cell'", max_results=500, page_token=token)
        for run in page:
            run_id = run.data.tags.get("rcray.run_id", "")
            if run_id in wanted:
                yield run.info.run_id, run_id
        token = page.token
        if not token:
            return


def _download(client: "MlflowClient", mlflow_run: str, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for entry in client.list_artifacts(mlflow_run):
        if entry.path in _FILES or entry.path == _FOLDER:
            client.download_artifacts(mlflow_run, entry.path, str(target))
