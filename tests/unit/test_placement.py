"""What can never be placed is refused with its reason; how many cells fit at once."""

import re

import pytest

from rcray.config import Experiment
from rcray.errors import ConfigError
from rcray.sweep.grid import expand
from rcray.sweep.placement import NodeKind, check_placement, concurrency, demand, places, read_cluster_file

GIB = 2**30


def cells(**execution):
    settings = {"execution": execution, "train": {"micro_batch_size": 8}}
    return expand(Experiment(name="x", run=settings, grid={"train.seed": [1, 2, 3]}))


def nodes(*resources, memory=64 * GIB):
    return [NodeKind(f"node-{i}", {"memory": memory, **r}, 1) for i, r in enumerate(resources)]


def test_a_bundle_lies_on_one_node():
    two_gpu_worker = cells(workers=1, gpus_per_worker=2)
    with pytest.raises(ConfigError, match="the largest node has 1 GPU, one bundle needs 2"):
        check_placement(two_gpu_worker, nodes({"CPU": 8, "GPU": 1}, {"CPU": 8, "GPU": 1}))
    check_placement(two_gpu_worker, nodes({"CPU": 8, "GPU": 2}))


def test_a_group_may_be_spread():
    group = cells(workers=2, gpus_per_worker=1)
    check_placement(group, nodes({"CPU": 8, "GPU": 1}, {"CPU": 8, "GPU": 1}))
    with pytest.raises(ConfigError, match="hold 1 of its 2 bundles"):
        check_placement(group, nodes({"CPU": 8, "GPU": 1}, {"CPU": 8}))


def test_resources_on_different_nodes_do_not_add_up():
    with pytest.raises(ConfigError, match="hold 0 of its 1 bundles"):
        check_placement(cells(gpus_per_worker=1, cpus_per_worker=4), nodes({"CPU": 64}, {"CPU": 2, "GPU": 8}))


def test_memory_counts():
    small = nodes({"CPU": 64}, memory=3 * GIB)
    assert concurrency(cells(), small, None) == 3 * GIB // demand(cells()[0].config).bundle["memory"] < 64
    with pytest.raises(ConfigError, match=r"the largest node has 0\.2 GiB memory"):
        concurrency(cells(), nodes({"CPU": 64}, memory=GIB // 4), None)


def test_a_node_that_does_not_tell_its_memory_is_not_asked_for_it():
    assert concurrency(cells(), [NodeKind("gpu", {"CPU": 4}, 1)], None) == 4


def test_fractions_of_a_gpu():
    wanted = demand(cells(gpus_per_worker=0.1, cpus_per_worker=0.1)[0].config, with_memory=False)
    assert places(wanted, nodes({"CPU": 4, "GPU": 1})) == 10


def test_an_autoscaler_counts_with_what_it_may_start():
    kinds = [NodeKind("head", {"CPU": 1}, 1), NodeKind("gpu", {"CPU": 8, "GPU": 1}, 4)]
    assert concurrency(cells(gpus_per_worker=1), kinds, None) == 4
    assert concurrency(cells(gpus_per_worker=1), kinds, 2) == 2


def test_groups_are_counted_strictly():
    """A group reserves after its trial has started: one too many would sit in memory and wait."""
    mixed = [*cells(workers=4), *cells(workers=2)]
    assert concurrency(mixed, nodes({"CPU": 8}), None) == 2
    assert concurrency([*cells(cpus_per_worker=4), *cells()], nodes({"CPU": 8}), None) == 8


def test_a_cluster_file(tmp_path):
    file = tmp_path / "cluster.yaml"
    file.write_text(
        "cluster_name: x\nprovider: {type: aws}\nmax_workers: 3\nhead_node_type: head\navailable_node_types:\n"
        "  head: {resources: {CPU: 0}, node_config: {}}\n"
        "  gpu: {resources: {CPU: 8, GPU: 1}, max_workers: 9, node_config: {}}\n"
    )
    head, gpu = read_cluster_file(file)
    assert (head.count, gpu.count) == (1, 3)
    file.write_text("cluster_name: x\navailable_node_types: {gpu: {node_config: {}}}\n")
    with pytest.raises(ConfigError, match=r"available_node_types\.gpu: no resources"):
        read_cluster_file(file)
    file.write_text("cluster_name: x\n")
    with pytest.raises(ConfigError, match="has no available_node_types"):
        read_cluster_file(file)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("max_workers: many\navailable_node_types: {a: {resources: {CPU: 1}}}", "max_workers"),
        ("available_node_types: {a: {resources: {CPU: lots}}}", "available_node_types.a.resources.CPU"),
        ("available_node_types: {a: {resources: {CPU: true}}}", "available_node_types.a.resources.CPU"),
        ("available_node_types: {a: {resources: {CPU: 1}, max_workers: [1]}}", "available_node_types.a.max_workers"),
        ("available_node_types: {a: {resources: {CPU: -1}}}", "available_node_types.a.resources.CPU"),
        ("available_node_types: {a: {resources: {CPU: .inf}}}", "available_node_types.a.resources.CPU"),
    ],
)
def test_a_cluster_file_with_a_wrong_number_names_it(tmp_path, text, field):
    (tmp_path / "cluster.yaml").write_text(text)
    with pytest.raises(ConfigError, match=re.escape(f"{field}: ")):
        read_cluster_file(tmp_path / "cluster.yaml")
