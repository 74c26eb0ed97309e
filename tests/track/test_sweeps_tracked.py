"""Whole sweeps through the command line, tracked by a real server that is killed on the way, or by one SQLite file."""

import json
import os
import sqlite3
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from rcray.config import load_experiment
from rcray.sweep.grid import expand
from rcray.track.describe import params_of
from tests.small_runs import SMALL
from tests.track.servers import MlflowServer
from tests.track.test_secrets import SECRETS, leaks
from tests.track.test_server import RCRAY, assert_every_point_once, files_of, runs_of

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]

STEPS = 24
CELL_FILES = {
    "benchmarks.json", "checkpoints.json", "config.yaml", "dynamics.parquet", "environment.json", "evaluation.json",
    "figures/dynamics.png", "figures/dynamics.svg", "requirements.txt", "status.json",
}  # fmt: skip


def cell_files(store, cell) -> set[str]:
    """With what was measured on each held-out pair."""
    return CELL_FILES | {f"items/{key}.parquet" for key in store.run(cell.run_id).read_evaluation().keys.values()}


def write_experiment(folder: Path, name: str, objectives: list[str]) -> Path:
    run = {**SMALL, "data": {"train_pairs": 8 * STEPS, "eval_pairs": 16}}
    grid = {"objective": objectives, "calibration.enabled": [False, True]}
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({"name": name, "run": run, "grid": grid}))
    return path


def start_sweep(file: Path, store: Path, uri: str, **more: str) -> subprocess.Popen:
    command = [*RCRAY, "sweep", str(file), "--store", str(store), "--tracking-uri", uri]
    environment = {**os.environ, "COLUMNS": "160", **more}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def steps_made(store, cells) -> int:
    return sum(store.run(cell.run_id).read_status().step for cell in cells)


@pytest.fixture
def server(tmp_path):
    running = MlflowServer(tmp_path / "server").start()
    yield running
    running.kill()


def test_four_cells_on_a_server_that_is_killed_and_restarted(store, server, tmp_path):
    """One parent, four nested runs, every point once, every file; no secret anywhere, not even the URI's."""
    uri = server.url.replace("http://", "http://somebody:topsecret@")
    file = write_experiment(tmp_path, "four", ["dpo", "cpo"])
    cells = expand(load_experiment(file))
    process = start_sweep(file, store.root, uri, **SECRETS)
    try:
        deadline = time.monotonic() + 600
        while steps_made(store, cells) < 12:
            assert process.poll() is None and time.monotonic() < deadline, process.communicate()[0]
            time.sleep(0.05)
        server.kill()
        before = steps_made(store, cells)
        while steps_made(store, cells) < before + 12:  # training goes on without it
            assert process.poll() is None and time.monotonic() < deadline, process.communicate()[0]
            time.sleep(0.05)
        server.start()
        output, _ = process.communicate(timeout=600)
    finally:
        process.kill()
        process.wait()
    try:
        assert process.returncode == 0, output
        later = "rcray sync" in output
        if later:  # it came back too late for the sweep
            assert subprocess.run([*RCRAY, "sync", "--store", str(store.root), "--tracking-uri", uri]).returncode == 0
        client, parents, tracked = runs_of(server.url, "four")
        assert len(parents) == 1 and set(tracked) == {cell.run_id for cell in cells} and len(tracked) == 4
        parent = parents[0]
        assert parent.info.run_name == "four (sweep)" and parent.info.status == "FINISHED"
        assert {"ledger.json", "report.html", "explore.html", "tables/results.md"} <= set(
            files_of(client, parent.info.run_id)
        )
        assert any(name.startswith("figures/") for name in files_of(client, parent.info.run_id))
        for cell in cells:
            run = tracked[cell.run_id]
            assert run.info.status == "FINISHED" and run.info.run_name == cell.label
            assert run.data.tags["mlflow.parentRunId"] == parent.info.run_id
            assert run.data.params == params_of(cell.config)
            assert_every_point_once(client, run, store, cell)
            assert len(client.get_metric_history(run.info.run_id, "dynamics/in_band")) == STEPS
            # Only what delivers beside the training knows the environment that it ran in.
            unknown = {"environment.json", "requirements.txt"} if later else set()
            expected = cell_files(store, cell)
            assert expected - unknown <= set(files_of(client, run.info.run_id)) <= expected
            rows = json.loads(store.run(cell.run_id).evaluation.read_text())["rows"]
            for row in rows:
                name = f"{row['benchmark']}/{row['metric']}"
                if row["value"] is None:  # not defined here, as a correlation with lengths that are all alike
                    assert name not in run.data.metrics
                else:
                    assert run.data.metrics[name] == row["value"]
    finally:
        server.kill()
    places = [output.encode(), "\n".join(sqlite3.connect(server.folder / "server.db").iterdump()).encode()]
    folders = [server.folder / "artifacts", store.root / "runs", store.root / "experiments"]
    places += [path.read_bytes() for folder in folders for path in folder.rglob("*") if path.is_file()]
    assert len(places) > 60
    for content in places:
        assert leaks(content) == [] and b"topsecret" not in content


@pytest.mark.slow
def test_two_sweeps_at_once_on_one_fresh_database(store, tmp_path):
    """Two real sweeps, two clusters, one SQLite file that neither has opened yet."""
    database = f"sqlite:///{tmp_path / 'shared.db'}"
    files = {name: write_experiment(tmp_path, name, [name]) for name in ("dpo", "cpo")}
    processes = {name: start_sweep(file, store.root, database) for name, file in files.items()}
    for name, process in processes.items():
        output, _ = process.communicate(timeout=600)
        assert process.returncode == 0, output
        assert "rcray sync" not in output
        client, parents, tracked = runs_of(database, name)
        cells = expand(load_experiment(files[name]))
        assert len(parents) == 1 and set(tracked) == {cell.run_id for cell in cells}
        for cell in cells:
            assert_every_point_once(client, tracked[cell.run_id], store, cell)
            assert set(files_of(client, tracked[cell.run_id].info.run_id)) == cell_files(store, cell)
    assert sqlite3.connect(tmp_path / "shared.db").execute("pragma integrity_check").fetchone() == ("ok",)
