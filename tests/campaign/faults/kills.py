"""Processes of a sweep killed in the middle of their work: SIGKILL, no goodbye."""

import time
from collections.abc import Callable

from rcray.store import RunDir
from tests.campaign.faults.ground import Command, Ground, kill
from tests.track.servers import MlflowServer

GROUP = {"execution.workers": 1}  # a cell as a Ray Train worker group
_HEAD_SECONDS = 30.0  # Ray alone would wait for a minute


def _disturbed(ground: Ground, moment: Callable[[], RunDir | None]) -> tuple[Command, RunDir]:
    command = ground.start()
    return command, ground.await_moment(command, moment)


def kill_writer(ground: Ground) -> str:
    """The process that trains: a Tune trial, or the worker of a group. It is replaced within the same command."""
    command, run = _disturbed(ground, ground.long_one_under_way)
    before = run.read_status()
    kill(command.one_of_its_own(before.writer.pid))
    command.wait(expect=0)
    after = run.read_status()
    assert after.writer.pid != before.writer.pid, "the process was not killed"
    return f"killed at step {before.step} of {before.total_steps}; replaced, went on, exit 0"


def kill_driver(ground: Ground) -> str:
    command, run = _disturbed(ground, ground.half_done)
    command.kill()
    status = run.read_status()
    return f"killed at step {status.step} of {status.total_steps}, one cell done"


def kill_head(ground: Ground) -> str:
    command, run = _disturbed(ground, ground.half_done)
    follower = command.called("--follow")  # ends by itself once it has delivered, however long that takes
    family = [process for process in command.processes() if process != follower]
    kill(command.called("gcs_server"))
    began = time.monotonic()
    said = command.wait(expect=1, seconds=_HEAD_SECONDS)
    seconds = time.monotonic() - began
    assert "Ray's head on this machine ended" in said and "the same command continues" in said, said
    assert "*** " not in said and "logging.cc" not in said, f"a stack of C++: {said}"
    assert run.read_status().status == "pending"
    deadline = time.monotonic() + _HEAD_SECONDS
    while left := [process for process in family if process.is_running() and process.status() != "zombie"]:
        assert time.monotonic() < deadline, f"left behind: {left}"
        time.sleep(0.1)
    return f"ended after {seconds:.0f} s with one clear error, no process left"


def kill_follower(ground: Ground) -> str:
    command, _ = _disturbed(ground, ground.half_done)
    kill(command.called("--follow"))
    said = command.wait(expect=0)
    assert "delivery ended early" in said and "rcray sync" in said, said
    return "training went on, exit 0, `rcray sync` named"


def kill_mlflow(ground: Ground) -> str:
    """A real server with SQLite; the second command finds it started again on the same database."""
    server = MlflowServer(ground.folder / "mlflow")
    ground.servers.append(server)
    server.start()
    ground.settings += ("--tracking-uri", server.url)
    ground.tracking_uri = server.url
    command, _ = _disturbed(ground, ground.half_done)
    server.kill()
    said = command.wait(expect=0)
    assert "not everything reached MLflow; nothing is lost" in said, said
    server.start()
    return "training went on, exit 0, records kept; delivered once it was back"
