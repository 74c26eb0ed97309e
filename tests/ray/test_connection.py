"""The private Ray as it is started: what its workers run at, and what was known of it before."""

import os

import pytest
import ray
import yaml

from rcray import cli
from rcray.errors import RcrayError
from rcray.sweep.connection import connected
from rcray.sweep.placement import present_nodes, this_machine

pytestmark = pytest.mark.ray


def test_workers_are_as_nice_as_the_command_and_the_machine_is_counted_rightly(monkeypatch):
    monkeypatch.delenv("RAY_worker_niceness", raising=False)
    expected = this_machine()
    with connected(needs_dashboard=False):
        niceness = ray.remote(num_cpus=0)(lambda: os.nice(0))
        assert ray.get(niceness.remote()) == os.nice(0)
        (node,) = present_nodes()
    later = this_machine()
    for name in ("CPU", "GPU"):
        assert node.resources.get(name) == expected.resources.get(name)
    free = sorted(machine.resources["memory"] for machine in (expected, later))  # it changes
    assert 0.7 * free[0] <= node.resources["memory"] <= 1.3 * free[1]


def test_what_cannot_be_placed_is_refused_before_ray_is_started(monkeypatch, tmp_path, capsys):
    def start(**_):
        raise AssertionError("Ray was started")

    monkeypatch.setattr(ray, "init", start)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.chdir(tmp_path)
    content = {"name": "large", "run": {"execution": {"gpus_per_worker": 64}}}
    (tmp_path / "large.yaml").write_text(yaml.safe_dump(content))
    for command in (["sweep"], ["train", "--set", "execution.workers=2"]):
        monkeypatch.setattr("sys.argv", ["rcray", *command, "large.yaml", "--store", "store"])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        shown = capsys.readouterr()
        assert ended.value.code == 2 and "no place for it can exist" in shown.err
        assert shown.err.index(" ...") < shown.err.index("error:"), "what it does is said first"
    assert not (tmp_path / "store" / "mlflow.db").exists(), "nothing was delivered"


def test_a_machine_too_busy_to_start_ray_is_said_in_one_line(monkeypatch):
    def start(**_):
        raise Exception("The current node timed out during startup. This could happen because ...")

    monkeypatch.setattr(ray, "init", start)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with pytest.raises(RcrayError, match=r"Ray did not start .* in time") as refused, connected(needs_dashboard=False):
        pass
    assert "same command again" in str(refused.value)
