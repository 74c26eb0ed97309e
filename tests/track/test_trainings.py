"""`rcray train` by itself: tracked by default, and none the worse for a tracker that is away."""

import json
import subprocess
import sys

import pytest

from rcray.track.book import Book
from tests.track.servers import free_port
from tests.track.stored_runs import make_cell
from tests.track.test_server import RCRAY, files_of, runs_of


def test_a_single_training_is_tracked_by_default(store, tmp_path):
    """`rcray train`: one run, not nested, in the store's own database; the training process never imports mlflow."""
    file = tmp_path / "one.yaml"
    settings = {name: section for name, section in make_cell(steps=8).config.model_dump(mode="json").items()}
    file.write_text(json.dumps({"name": "one", "run": settings}))
    code = (
        "import sys\nfrom rcray.cli import main\ntry:\n    main()\nfinally:\n"
        "    print('imported' if 'mlflow' in sys.modules else 'never imported')"
    )
    command = [sys.executable, "-c", code, "train", str(file), "--store", str(store.root)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "never imported" in done.stdout
    client, parents, cells = runs_of(store.default_tracking_uri, "one")
    assert parents == [] and len(cells) == 1
    ((key, run),) = cells.items()
    assert run.info.status == "FINISHED" and "mlflow.parentRunId" not in run.data.tags
    assert len(client.get_metric_history(run.info.run_id, "z_w")) == 8
    assert "figures/dynamics.png" in files_of(client, run.info.run_id)
    assert Book(store, "one").server(store.default_tracking_uri).runs == {key: run.info.run_id}


@pytest.mark.slow
def test_a_dead_server_costs_a_training_nothing_but_a_message(store, tmp_path):
    file = tmp_path / "one.yaml"
    settings = make_cell(steps=8).config.model_dump(mode="json")
    file.write_text(json.dumps({"name": "one", "run": settings}))
    uri = f"http://somebody:topsecret@127.0.0.1:{free_port()}"
    command = [*RCRAY, "train", str(file), "--store", str(store.root), "--tracking-uri", uri]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "does not answer" in done.stderr
    assert f"rcray sync --store {store.root}" in done.stderr
    assert "topsecret" not in done.stdout + done.stderr
    for path in store.experiment("one").rglob("*"):
        assert not path.is_file() or b"topsecret" not in path.read_bytes(), path
    done = subprocess.run(
        [*RCRAY, "sync", "--store", str(store.root), "--tracking-uri", store.default_tracking_uri],
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    client, _, cells = runs_of(store.default_tracking_uri, "one")
    (run,) = cells.values()
    assert len(client.get_metric_history(run.info.run_id, "z_w")) == 8
