"""A worker group that Ray gives up: started again where a node was lost meanwhile, and not where processes were."""

import pytest
from ray.train import WorkerGroupError

from rcray.train import launch

HERE = {"head", "one", "two"}


@pytest.fixture
def cluster(monkeypatch):
    """The nodes that are there, which a test changes."""
    nodes = set(HERE)
    monkeypatch.setattr(launch, "_nodes", lambda: set(nodes))
    monkeypatch.setattr(launch, "NODE_LOSS_SECONDS", 0.0)
    return nodes


def given_up():
    return WorkerGroupError("lost", {0: RuntimeError("The actor died unexpectedly")})


def test_after_a_lost_node_it_is_started_again(cluster):
    """Spot instances go one after the other, and new ones come."""
    calls = []

    def train(number):
        calls.append(number)
        if number < 5:
            cluster.discard(sorted(cluster - {"head"})[0])
            cluster.add(f"new {number}")
            raise given_up()

    launch.outlive_nodes(train)
    assert calls == [0, 1, 2, 3, 4, 5]


def test_after_lost_processes_it_is_not(cluster):
    calls = []

    def train(number):
        calls.append(number)
        raise given_up()

    with pytest.raises(WorkerGroupError):
        launch.outlive_nodes(train)
    assert calls == [0]


def test_a_cell_that_ends_its_nodes_is_given_up(cluster):
    calls = []

    def train(number):
        calls.append(number)
        cluster.discard(f"node {number}")
        cluster.add(f"node {number + 1}")
        raise given_up()

    cluster.add("node 0")
    with pytest.raises(WorkerGroupError):
        launch.outlive_nodes(train)
    assert len(calls) == launch.NODE_RETRIES + 1


def test_a_node_that_is_missed_after_its_processes_counts(cluster, monkeypatch):
    """The processes of a node often die before it does."""
    monkeypatch.setattr(launch, "NODE_LOSS_SECONDS", 60.0)
    monkeypatch.setattr(launch.time, "sleep", lambda seconds: cluster.discard("two"))
    calls = []

    def train(number):
        calls.append(number)
        if number == 0:
            raise given_up()

    launch.outlive_nodes(train)
    assert calls == [0, 1]


def test_any_other_error_is_raised_at_once(cluster):
    def train(number):
        cluster.discard("one")
        raise ValueError("not of a group")

    with pytest.raises(ValueError, match="not of a group"):
        launch.outlive_nodes(train)
