"""What listens, listens on the loopback address; what a cluster opens, it opens to itself."""

import ast
import inspect
import re
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from rcray.cli import app
from rcray.sweep import connection
from rcray.track import ui

ROOT = Path(__file__).parents[2]
CLUSTER = yaml.safe_load((ROOT / "cluster.yaml").read_text())
COMMANDS = [
    command
    for key in ("setup_commands", "head_start_ray_commands", "worker_start_ray_commands")
    for command in CLUSTER.get(key, [])
]
#: Inside the security group: Ray's head. On the loopback address: MLflow.
PORTS = {"6379", "5000"}


def option(command, name):
    options = get_command(app).commands[command].params  # type: ignore[attr-defined]
    return next(parameter for parameter in options if parameter.name == name)


def test_defaults_are_loopback():
    assert option("ui", "host").default == "127.0.0.1"
    assert option("submit", "address").default.startswith("http://127.0.0.1:")


def test_rays_dashboard_is_on_loopback():
    calls = [node for node in ast.walk(ast.parse(inspect.getsource(connection))) if isinstance(node, ast.Call)]
    local = [
        call
        for call in calls
        if ast.unparse(call.func) == "ray.init" and any(k.arg == "address" for k in call.keywords)
    ]
    assert local
    for call in local:
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        assert (given["address"], given["dashboard_host"]) == ("'local'", "'127.0.0.1'")


def test_no_password_among_the_servers_arguments():
    """Arguments are for everybody on the machine to read."""
    source = inspect.getsource(ui.serve_runs)
    arguments = re.search(r"Popen\(\s*\[(.*?)\]", source, re.DOTALL).group(1)
    assert "--host" in arguments and "uri" not in arguments


def test_the_cluster_names_its_own_ports_only():
    ports = {port for command in COMMANDS for port in re.findall(r"(?:--[\w-]*port[= ]|:)(\d{4,5})\b", command)}
    assert ports == PORTS


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_of_the_cluster_listens_to_the_world(command):
    hosts = re.findall(r"--[\w-]*host[= ](\S+)", command)
    assert set(hosts) <= {"127.0.0.1"}
    assert not re.search(r"0\.0\.0\.0|--ray-client-server-port|::(?:\s|$)|chmod 777|StrictHostKeyChecking", command)
    if "ray start" in command:
        assert "RAY_AUTH_MODE=token" in command, "whoever reaches the port must still show the token"


def test_the_cluster_makes_no_security_group_of_rays():
    assert "security_group" not in CLUSTER["provider"], "Ray would make one; SSH would be open to the world"
    for kind in CLUSTER["available_node_types"].values():
        assert kind["node_config"]["SecurityGroupIds"]
        assert "NetworkInterfaces" not in kind["node_config"]
    options = " ".join(CLUSTER["docker"]["run_options"])
    assert not re.search(r"(^|\s)(-p|--publish|-P|--privileged|--cap-add|--device)\b", options), options


def test_kubernetes_exposes_nothing():
    text = (ROOT / "deploy" / "rayjob.yaml").read_text()
    assert not re.search(r"NodePort|LoadBalancer|Ingress|hostPort|hostNetwork|privileged", text)
    (job,) = [part for part in yaml.safe_load_all(text) if part["kind"] == "RayJob"]
    spec = job["spec"]["rayClusterSpec"]
    assert spec["authOptions"] == {"mode": "token"} and spec["headGroupSpec"]["serviceType"] == "ClusterIP"
    assert "EXPOSE" not in (ROOT / "deploy" / "Dockerfile").read_text()


def test_no_secret_lies_in_the_files_of_the_cluster():
    for path in [ROOT / "cluster.yaml", *(ROOT / "deploy").iterdir()]:
        assert not re.search(r"AKIA[0-9A-Z]{16}|hf_\w{16,}|sk-[\w-]{16,}|BEGIN [A-Z ]*PRIVATE KEY", path.read_text())
