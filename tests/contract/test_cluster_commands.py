"""The commands of cluster.yaml run as Ray runs them: in login shells, and in the container's where it says so.

`sudo`, `docker` and `ray` are stand-ins that write down how they were called; the rest is real: bash, deploy/mlflow.sh
and the MLflow server that it starts.
"""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.request
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import yaml
from ray.autoscaler._private.command_runner import _with_interactive
from ray.autoscaler._private.docker import with_docker_exec
from ray.autoscaler._private.util import with_head_node_ip

from tests.track.servers import free_port

ROOT = Path(__file__).parents[2]
CLUSTER = yaml.safe_load((ROOT / "cluster.yaml").read_text())
NOTES = 'echo "$(basename "$0") $*" >> {log}; env | grep -E "^(RAY|RCRAY|MLFLOW|HF)_" | sort >> {log}'
STAND_INS = {
    "sudo": f"#!/bin/bash\n{NOTES}\n",
    "ray": f"#!/bin/bash\n{NOTES}\n",
    "docker": '#!/bin/bash\nwhile [ "$1" != /bin/bash ]; do shift; done\nexec "$@"\n',
}


@dataclass(frozen=True)
class Machine:
    """A node with a home directory and commands of its own."""

    home: Path
    port: int

    @property
    def shared(self) -> Path:
        return self.home / "shared"

    def run(self, command: str, *, in_container: bool = True) -> str:
        """One command of the file, as Ray hands it to the node; returns what the stand-ins wrote down."""
        command = command.replace("/shared", str(self.shared)).replace("5000", str(self.port))
        line = " ".join(_with_interactive(command))
        if in_container:
            (line,) = with_docker_exec([line], CLUSTER["docker"]["container_name"], "docker", with_interactive=True)
            line = " ".join(_with_interactive(line))
        log = self.home / "calls"
        log.unlink(missing_ok=True)
        environment = {"HOME": str(self.home), "PATH": os.environ["PATH"], "MLFLOW_BACKUP_SECONDS": "1"}
        done = subprocess.run(
            ["bash", "-c", line], env=environment, capture_output=True, text=True, timeout=240, stdin=subprocess.DEVNULL
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return log.read_text() if log.exists() else ""

    def servers(self) -> list[psutil.Process]:
        """Every `mlflow server` of this machine."""
        commands = []
        for process in psutil.process_iter(["cmdline"]):
            line = process.info["cmdline"] or []
            if "server" in line and f"sqlite:///{self.home}/mlflow/mlflow.db" in line:
                commands.append(process)
        return commands

    def stop(self) -> None:
        pid = self.home / "mlflow" / "pid"
        if pid.exists():
            os.killpg(int(pid.read_text()), signal.SIGKILL)


@pytest.fixture
def machine(tmp_path):
    binaries = tmp_path / "bin"
    binaries.mkdir()
    for name, text in STAND_INS.items():
        (binaries / name).write_text(text.format(log=tmp_path / "calls"))
        (binaries / name).chmod(0o755)
    # As in the image: its Python is on the path of every shell. A login shell has forgotten the caller's.
    (tmp_path / ".bashrc").write_text(f"export PATH={binaries}:{Path(sys.executable).parent}:/usr/bin:/bin\n")
    (tmp_path / "rcray").symlink_to(ROOT)
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("t" * 40)
    machine = Machine(tmp_path, free_port())
    machine.shared.mkdir()
    yield machine
    machine.stop()


def mlflow_line():
    (line,) = [line for line in CLUSTER["head_start_ray_commands"] if "mlflow.sh" in line]
    return line


def wait_until(condition, what, seconds=600):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def test_every_other_command_runs_and_says_what_it_should(machine):
    """But MLflow's: twice, as an update does."""
    for _ in range(2):
        mounted = "".join(machine.run(line, in_container=False) for line in CLUSTER["initialization_commands"])
        asks = "sudo apt-get -o DPkg::Lock::Timeout=300 install -y -qq nfs-common" in mounted
        assert asks == (shutil.which("mount.nfs4") is None), "only where the image has it not: spot nodes come often"
        assert f" {machine.shared}\n" in mounted
        for line in CLUSTER["setup_commands"]:
            machine.run(line)
    assert (machine.home / ".ray" / "auth_token").stat().st_mode & 0o777 == 0o600
    stop, start, _ = CLUSTER["head_start_ray_commands"]
    assert machine.run(stop).splitlines()[0] == "ray stop"
    said = machine.run(start).splitlines()
    assert said[0].startswith("ray start --head --port=6379 --dashboard-host=127.0.0.1 --autoscaling-config=")
    url = f"MLFLOW_TRACKING_URI=http://127.0.0.1:{machine.port}"
    assert {"RAY_AUTH_MODE=token", f"RCRAY_STORE={machine.shared}/rcray-store", url} <= set(said)
    stop, start = with_head_node_ip(CLUSTER["worker_start_ray_commands"], "10.0.0.7")
    assert machine.run(stop).splitlines()[0] == "ray stop"
    said = machine.run(start).splitlines()
    assert said[0] == "ray start --address=10.0.0.7:6379"
    assert {"RAY_AUTH_MODE=token", f"RCRAY_STORE={machine.shared}/rcray-store"} <= set(said)


def test_mlflow_starts_once(machine):
    def is_up():
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{machine.port}/health", timeout=5):
                return True
        except OSError:
            return False

    machine.run(mlflow_line())
    machine.run(mlflow_line())  # while the first one's server is starting
    wait_until(is_up, (machine.home / "mlflow" / "log").read_text())
    machine.run(mlflow_line())  # where a server answers
    assert len(machine.servers()) == 1
    kept = machine.shared / "mlflow" / "mlflow.db"
    wait_until(kept.exists, "no backup was made")
    with closing(sqlite3.connect(kept)) as database:
        assert database.execute("select name from experiments").fetchall() == [("Default",)]


def test_a_new_machine_begins_with_the_backup(machine):
    (machine.home / "bin" / "mlflow").write_text("#!/bin/bash\nexec sleep 60\n")
    (machine.home / "bin" / "mlflow").chmod(0o755)
    (machine.shared / "mlflow").mkdir()
    with closing(sqlite3.connect(machine.shared / "mlflow" / "mlflow.db")) as database, database:
        database.execute("create table experiments (name)")
        database.execute("insert into experiments values ('kept')")
    machine.run(mlflow_line())
    with closing(sqlite3.connect(machine.home / "mlflow" / "mlflow.db")) as database:
        assert database.execute("select name from experiments").fetchall() == [("kept",)]
