"""cluster.yaml against Ray's own schema and against what Ray accepts but should not; the Kubernetes manifest."""

import copy
import shlex
from pathlib import Path

import pytest
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config
from typer.main import get_command

from rcray.cli import app
from rcray.config import load_experiment
from rcray.sweep.grid import expand
from rcray.sweep.placement import check_placement, read_cluster_file

ROOT = Path(__file__).parents[2]
CLUSTER = yaml.safe_load((ROOT / "cluster.yaml").read_text())
JOB = yaml.safe_load((ROOT / "deploy" / "rayjob.yaml").read_text())
NODE_FILES = [ROOT / "cluster.yaml", ROOT / "deploy" / "nodes.yaml"]


def test_rays_schema_takes_it():
    validate_config(prepare_config(copy.deepcopy(CLUSTER)))


def test_rays_schema_is_looked_at():
    """The check above can fail: a misspelt field is refused."""
    wrong = copy.deepcopy(CLUSTER)
    wrong["available_node_types"]["gpu-spot"]["max_worker"] = 3
    with pytest.raises(Exception, match="max_worker"):
        validate_config(prepare_config(wrong))


def test_what_the_schema_lets_pass():
    """Ray accepts unknown provider fields and node types without a machine; both end in something nobody asked for."""
    assert CLUSTER["cluster_name"] == "rcray"
    assert set(CLUSTER["provider"]) <= {"type", "region", "availability_zone", "cache_stopped_nodes"}
    for kind in CLUSTER["available_node_types"].values():
        assert kind["node_config"]["InstanceType"]
        assert kind["resources"]


def test_head_stays_and_workers_are_spot_and_scale_from_nothing():
    head, gpu = (CLUSTER["available_node_types"][name] for name in ("head", "gpu-spot"))
    assert CLUSTER["head_node_type"] == "head"
    assert "InstanceMarketOptions" not in head["node_config"]
    assert gpu["node_config"]["InstanceMarketOptions"]["MarketType"] == "spot"
    assert (gpu["min_workers"], gpu["max_workers"]) == (0, CLUSTER["max_workers"])


def test_nothing_is_open_to_the_world():
    for kind in CLUSTER["available_node_types"].values():
        assert kind["node_config"]["SecurityGroupIds"], "else Ray makes a group that takes SSH from everywhere"
    commands = "\n".join(CLUSTER["head_start_ray_commands"])
    assert "--dashboard-host=127.0.0.1" in commands
    assert "mlflow server --host 127.0.0.1" in (ROOT / "deploy" / "mlflow.sh").read_text()
    assert "0.0.0.0" not in (ROOT / "cluster.yaml").read_text()


@pytest.mark.parametrize("key", ["head_start_ray_commands", "worker_start_ray_commands"])
def test_every_node_asks_for_the_token_and_knows_the_store(key):
    (start,) = [command for command in CLUSTER[key] if "ray start" in command]
    assert "RAY_AUTH_MODE=token" in start
    assert "RCRAY_STORE=/shared/rcray-store" in start
    assert "~/.ray/auth_token" in CLUSTER["file_mounts"]


@pytest.mark.parametrize("path", NODE_FILES, ids=lambda path: path.name)
def test_every_published_cell_fits_on_some_node(path):
    nodes = read_cluster_file(path)
    for file in sorted((ROOT / "experiments").glob("*.yaml")):
        check_placement(expand(load_experiment(file)), nodes)


def test_the_manifest_says_what_the_node_file_says():
    spec = JOB["spec"]["rayClusterSpec"]
    (group,) = spec["workerGroupSpecs"]
    gpu = next(kind for kind in read_cluster_file(ROOT / "deploy" / "nodes.yaml") if kind.name == "gpu")
    limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert group["maxReplicas"] == gpu.count
    assert {"CPU": float(limits["cpu"]), "GPU": float(limits["nvidia.com/gpu"])} == gpu.resources
    assert spec["authOptions"] == {"mode": "token"}
    assert spec["headGroupSpec"]["serviceType"] == "ClusterIP"
    for pod in (spec["headGroupSpec"], group):
        (container,) = pod["template"]["spec"]["containers"]
        assert {"name": "RCRAY_STORE", "value": "/shared/rcray-store"} in container["env"]
        assert container["volumeMounts"] == [{"name": "shared", "mountPath": "/shared"}]


def test_one_image_for_both_and_gpu_nodes_take_its_pods():
    spec = JOB["spec"]["rayClusterSpec"]
    groups = [spec["headGroupSpec"], *spec["workerGroupSpecs"]]
    images = {container["image"] for group in groups for container in group["template"]["spec"]["containers"]}
    assert images == {CLUSTER["docker"]["image"]}
    assert f"-t {CLUSTER['docker']['image']} " in (ROOT / "deploy" / "Dockerfile").read_text()
    assert not any("pip install" in line for line in CLUSTER["setup_commands"]), "a spot node installs nothing"
    (tolerated,) = spec["workerGroupSpecs"][0]["template"]["spec"]["tolerations"]
    assert tolerated == {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}


def test_the_manifests_command_parses_and_its_files_are_in_the_image():
    python, flag, module, name, *arguments = shlex.split(JOB["spec"]["entrypoint"])
    assert [python, flag, module] == ["python", "-m", "rcray"]
    get_command(app).commands[name].make_context(name, arguments)  # type: ignore[attr-defined]
    copied = (ROOT / "deploy" / "Dockerfile").read_text()
    for argument in arguments:
        if argument.endswith(".yaml"):
            assert (ROOT / argument).is_file()
            assert f" {argument.partition('/')[0]} " in copied


def test_rays_version_is_the_pinned_one():
    pinned = next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("ray=="))
    version = pinned.removeprefix("ray==")
    assert JOB["spec"]["rayClusterSpec"]["rayVersion"] == version
    assert f"rayproject/ray:{version}-" in (ROOT / "deploy" / "Dockerfile").read_text()
