"""Sweeps as jobs against a real head with token authentication: `ray job submit`, and `rcray submit`."""

import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml

from rcray.config import load_experiment
from rcray.sweep.grid import expand
from tests.ray.heads import free_ports, running_head
from tests.ray.sweeping import USER_CODE
from tests.small_runs import SMALL

pytestmark = pytest.mark.ray

ROOT = Path(__file__).parents[2]
RAY = str(Path(sys.executable).parent / "ray")


class Line:
    """A TCP connection that a test can cut and mend: what lies between a laptop and a cluster."""

    def __init__(self, target):
        self.target, self.port = target, free_ports(1)[0]
        self.open, self.pipes = True, []
        self.server = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near, _ = self.server.accept()
            except OSError:
                return
            if not self.open:
                near.close()
                continue
            far = socket.create_connection(("127.0.0.1", self.target))
            self.pipes += [near, far]
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._copy, args=(source, sink), daemon=True).start()

    def _copy(self, source, sink):
        try:
            while data := source.recv(65536):
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            end.close()

    def cut(self):
        self.open = False
        for pipe in self.pipes:
            pipe.close()


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """What a user would upload: the package, an objective and one experiment."""
    directory = tmp_path_factory.mktemp("project")
    shutil.copytree(ROOT / "rcray", directory / "rcray", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(Path(USER_CODE) / "my_objectives.py", directory)
    waits = {"name": "my_objectives:waits", "params": {"after": 2}}
    content = {"name": "small", "run": SMALL, "grid": {"objective": [waits, "cpo"]}}
    (directory / "small.yaml").write_text(yaml.safe_dump(content))
    broken = {"name": "broken", "run": {**SMALL, "objective": "nowhere:to_be_found"}}
    (directory / "broken.yaml").write_text(yaml.safe_dump(broken))
    return directory


@pytest.fixture(scope="module")
def shared_store(tmp_path_factory, model_cache):
    root = tmp_path_factory.mktemp("shared-store")
    shutil.copytree(model_cache, root / "cache")
    return root


@pytest.fixture(scope="module")
def head(shared_store):
    with running_head(lambda _: ["--num-cpus=2"], RCRAY_STORE=str(shared_store)) as started:
        yield started


def rcray(project, head, *arguments):
    command = [sys.executable, "-m", "rcray", *arguments]
    return subprocess.run(command, cwd=project, env=head.environment, capture_output=True, text=True, timeout=600)


def log_of(head, job):
    """What the job itself wrote."""
    asks = "from rcray.sweep import submit; import sys; submit._use_token(); "
    asks += "sys.stdout.write(submit.job_client(sys.argv[1]).get_job_logs(sys.argv[2]))"
    command = [sys.executable, "-c", asks, head.dashboard, job]
    return subprocess.run(command, env=head.environment, stdout=subprocess.PIPE, text=True, check=True).stdout


def test_submit_follows_over_a_dropped_connection(project, head, shared_store, tmp_path):
    """Its first cell waits until the connection was lost, however busy the machine is."""
    gate = tmp_path / "gate"
    gate.touch()
    line = Line(int(head.dashboard.rpartition(":")[2]))
    command = [sys.executable, "-m", "rcray", "submit", "small.yaml", "--address", f"http://127.0.0.1:{line.port}"]
    command += ["--env", f"RCRAY_TEST_GATE={gate}"]
    process = subprocess.Popen(
        command, cwd=project, env=head.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    seen = []
    for text in process.stdout:
        seen.append(text)
        if text.startswith("running") and "[connection lost" not in "".join(seen):  # once, whenever cells start
            line.cut()
        if text.startswith("[connection lost"):
            line.open = True
            gate.unlink()
    output = "".join(seen)
    assert process.wait(240) == 0, output
    assert output.count("[connection lost") == 1
    assert "[connected again]" in output
    assert "2 ok" in output
    submitted, _, shown = output.partition("submitted ")[2].partition("\n")
    shown = shown.replace("\n[connection lost; the job goes on, trying to reach it]\n[connected again]\n", "")
    assert shown == log_of(head, submitted.partition(":")[0]), "nothing twice, nothing left out"
    for cell in expand(load_experiment(project / "small.yaml")):
        assert (shared_store / "runs" / cell.run_id / "final").is_dir(), "on the cluster's storage"


def test_ray_job_submit_continues_the_same_store(project, head):
    """After the test above: everything is cached, and the second job trains nothing."""
    command = [RAY, "job", "submit", "--address", head.dashboard, "--working-dir", ".", "--"]
    done = subprocess.run(
        [*command, "python", "-m", "rcray", "sweep", "small.yaml", "--no-tracking", "--no-figures"],
        cwd=project,
        env=head.environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 cached" in done.stdout


def test_exit_codes_and_refusals(project, head):
    failed = rcray(project, head, "submit", "broken.yaml", "--address", head.dashboard)
    assert failed.returncode == 1, failed.stdout
    assert "nowhere" in failed.stdout

    refused = rcray(project, head, "submit", "small.yaml", "--address", head.dashboard, "--env", "HF_TOKEN=x")
    assert refused.returncode == 2
    assert "looks secret" in refused.stderr
    relative = rcray(project, head, "submit", "small.yaml", "--address", head.dashboard, "--store", "here")
    assert relative.returncode == 2
    assert "not absolute" in relative.stderr
    outside = rcray(project, head, "submit", str(ROOT / "experiments" / "smoke.yaml"), "--address", head.dashboard)
    assert outside.returncode == 2
    assert "outside" in outside.stderr


def test_ray_itself_shows_its_token_only_when_told(project, head, tmp_path):
    """A user's environment: the token in the home directory, nothing else. The README says what to put before `ray`."""
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text(head.environment["RAY_AUTH_TOKEN"])
    user = {name: value for name, value in head.environment.items() if not name.startswith("RAY_AUTH")}
    user["HOME"] = str(tmp_path)

    def listed(**more):
        return subprocess.run(
            [RAY, "job", "list", "--address", head.dashboard], env={**user, **more}, capture_output=True, text=True
        )

    silent = listed()
    assert silent.returncode != 0 and "authentication token" in silent.stdout + silent.stderr
    assert listed(RAY_AUTH_MODE="token").returncode == 0
    refused = subprocess.run(
        [sys.executable, "-m", "rcray", "submit", "missing.yaml", "--address", head.dashboard],
        cwd=project, env=user, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert refused.returncode == 2 and "no such file" in refused.stderr, "rcray needs no telling"


def test_no_token_no_entry(project, head):
    stranger = {name: value for name, value in head.environment.items() if not name.startswith("RAY_AUTH")}
    command = [sys.executable, "-m", "rcray", "submit", "small.yaml", "--address", head.dashboard]
    done = subprocess.run(
        command,
        cwd=project,
        env={**stranger, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "wrong" * 8},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 2
    assert "does not take this token" in done.stderr
    assert "Traceback" not in done.stderr
