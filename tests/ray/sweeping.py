"""What the sweep tests share: small experiment files and the real command line in a process of its own."""

import os
import subprocess
import sys
import time
from pathlib import Path

import yaml
from mlflow.tracking import MlflowClient
from typer.testing import CliRunner

from rcray.cli import app
from rcray.faults import HOLD_SECONDS
from tests.small_runs import SMALL

RCRAY = [sys.executable, "-c", "from rcray.cli import main; main()"]
USER_CODE = str(Path(__file__).parent / "user_code")


def environment():
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([USER_CODE, os.environ.get("PYTHONPATH", "")]),
        "COLUMNS": "160",
        HOLD_SECONDS: "0",
    }


def sweep_command(file, store):
    """Without figures: they take seconds, and a sweep's do not depend on what is tried here."""
    return [*RCRAY, *_sweep(file, store)]


def _sweep(file, store):
    return ["sweep", str(file), "--store", str(store.root), "--no-figures"]


def sweep_here(file, store, *options, expect=0, error=None):
    """The same command inside this process, on the Ray that it is connected to; returns what it said, or the error.

    One cell at a time, unless told otherwise: starting a second process takes longer than such cells.
    """
    done = CliRunner().invoke(app, [*_sweep(file, store), "--concurrency", "1", *options])
    assert done.exit_code == expect and isinstance(done.exception, error or SystemExit | None), (
        f"{done.output}{done.exception!r}"
    )
    return done.exception if error else done.output


def write_experiment(path, **content):
    run = {**SMALL, **content.pop("run", {})}
    path.write_text(yaml.safe_dump({"name": "small", "run": run, **content}))
    return path


def run(command, expect=0, **more):
    done = subprocess.run(command, env={**environment(), **more}, capture_output=True, text=True, timeout=600)
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout + done.stderr


def wait_for(condition, process, seconds=600):
    deadline = time.monotonic() + seconds
    while not condition():
        if process.poll() is not None:
            said = process.stdout.read() if process.stdout else ""
            raise AssertionError(f"the sweep ended before the test could disturb it: {said}")
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.05)


def tracked(store):
    """The parent runs and the cell runs of `write_experiment`'s sweep in the store's MLflow database."""
    client = MlflowClient(store.default_tracking_uri)
    experiment = client.get_experiment_by_name("small")
    runs = client.search_runs([experiment.experiment_id])
    parents = [r for r in runs if r.data.tags["rcray.kind"] == "sweep"]
    cells = {r.data.tags["rcray.run_id"]: r for r in runs if r.data.tags["rcray.kind"] == "cell"}
    assert len(parents) + len(cells) == len(runs), "a cell has two MLflow runs"
    return client, parents, cells
