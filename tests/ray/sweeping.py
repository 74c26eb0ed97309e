"""What the sweep tests share: small experiment files and the real command line in a process of its own."""

import os
import subprocess
import sys
import time
from pathlib import Path

import yaml

from tests.small_runs import SMALL

RCRAY = [sys.executable, "-c", "from rcray.cli import main; main()"]
USER_CODE = str(Path(__file__).parent / "user_code")


def environment():
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([USER_CODE, os.environ.get("PYTHONPATH", "")]),
        "COLUMNS": "160",
    }


def sweep_command(file, store):
    return [*RCRAY, "sweep", str(file), "--store", str(store.root)]


def write_experiment(path, **content):
    run = {**SMALL, **content.pop("run", {})}
    path.write_text(yaml.safe_dump({"name": "small", "run": run, **content}))
    return path


def run(command, expect=0, **more):
    done = subprocess.run(command, env={**environment(), **more}, capture_output=True, text=True, timeout=240)
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout + done.stderr


def wait_for(condition, process, seconds=120):
    deadline = time.monotonic() + seconds
    while not condition():
        if process.poll() is not None:
            said = process.stdout.read() if process.stdout else ""
            raise AssertionError(f"the sweep ended before the test could disturb it: {said}")
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.05)
