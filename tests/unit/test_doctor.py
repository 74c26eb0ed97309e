"""`rcray doctor`: real faults are found, named and come with a fix; nothing is started or left behind."""

import json
import socket
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import metadata
from pathlib import Path

import pytest

from rcray import cli, doctor


@pytest.fixture(autouse=True)
def quiet_machine(monkeypatch):
    """No network in tests: the hub is switched off unless a test offers one."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name in ("RAY_ADDRESS", "RAY_TMPDIR", "HF_ENDPOINT", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server():
    """A loopback server that answers everything with `status`."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.send_response(self.server.status)
            self.end_headers()

        do_GET = do_HEAD

        def log_message(self, *_):
            pass

    listening = HTTPServer(("127.0.0.1", 0), Handler)
    listening.status = 200
    thread = threading.Thread(target=listening.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    listening.url = f"http://127.0.0.1:{listening.server_port}"
    yield listening
    listening.shutdown()
    listening.server_close()


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["rcray", "doctor", *map(str, arguments)])
    try:
        cli.main()
        code = 0
    except SystemExit as end:
        code = end.code or 0
    return code, capsys.readouterr().out


def only(findings):
    (finding,) = findings
    return finding


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_a_sound_machine(monkeypatch, capsys, tmp_path):
    code, out = run(monkeypatch, capsys, "--json", "--store", tmp_path / "store")
    findings = {finding["name"]: finding for finding in json.loads(out)}
    assert code == 0
    assert {"python", "packages", "cpu", "gpu", "disk", "store", "ray", "mlflow", "hub"} <= set(findings)
    assert all(set(finding) == {"name", "state", "detail", "fix"} for finding in findings.values())
    assert "torch" in findings["packages"]["detail"]
    assert findings["hub"]["state"] == "warning" and "HF_HUB_OFFLINE" in findings["hub"]["detail"]
    assert list(tmp_path.iterdir()) == [], "no store is made"


def test_a_broken_one_ends_with_1_and_says_how_to_fix_it(monkeypatch, capsys, tmp_path):
    (tmp_path / "taken").write_text("mine")
    code, out = run(monkeypatch, capsys, "--store", tmp_path / "taken" / "store")
    assert code == 1
    line = next(line for line in out.splitlines() if line.startswith("broken"))
    assert "store" in line and str(tmp_path / "taken") in out and "fix: give another --store" in out
    assert "1 broken" in out.splitlines()[-1]
    assert all(len(line) <= 120 for line in out.splitlines() if " " in line.strip())


def test_packages_that_are_missing_or_too_old(monkeypatch):
    monkeypatch.setattr(metadata, "requires", lambda _: ["torch>=99", "no-such-package>=1", "absent; extra == 'dev'"])
    finding = only(doctor.check_packages())
    assert finding.state == "broken" and "pip install" in finding.fix
    assert "is not >=99" in finding.detail and "no-such-package is missing" in finding.detail
    assert "absent" not in finding.detail, "extras are the user's choice"


def test_a_check_that_fails_by_itself_is_a_finding(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "check_devices", lambda: (_ for _ in ()).throw(ImportError("libcudart.so.12")))
    findings = doctor.examine(tmp_path)
    broken = only([finding for finding in findings if finding.state == "broken"])
    assert (broken.name, "libcudart.so.12" in broken.detail) == ("devices", True)
    assert [finding.name for finding in findings][-1] == "hub", "the others are still looked at"


@pytest.mark.parametrize(("free", "state"), [(2**20, "broken"), (5 * 2**30, "warning"), (2**40, "ok")])
def test_disk(monkeypatch, tmp_path, free, state):
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: type("Usage", (), {"free": free}))
    finding = only(doctor.check_disk(tmp_path / "not" / "there"))
    assert finding.state == state and str(tmp_path) in finding.detail
    assert bool(finding.fix) == (state != "ok")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a place where even root cannot write")
def test_a_place_that_cannot_be_written():
    finding = only(doctor.check_store(Path("/proc/store")))
    assert finding.state == "broken" and "/proc/store: cannot be written" in finding.detail


def test_a_ray_cluster_that_is_not_there(monkeypatch, server):
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{closed_port()}")
    finding = only(doctor.check_ray())
    assert finding.state == "broken" and "RAY_ADDRESS" in finding.fix and "refused" in finding.detail
    monkeypatch.setenv("RAY_ADDRESS", "nonsense")
    assert "not HOST:PORT" in only(doctor.check_ray()).detail
    monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{server.server_port}")
    assert only(doctor.check_ray()).state == "ok"


def test_what_a_local_cluster_needs(monkeypatch, tmp_path):
    long = tmp_path / ("x" * 60)
    long.mkdir()
    monkeypatch.setenv("RAY_TMPDIR", str(long))
    finding = only(doctor.check_ray())
    assert finding.state == "warning" and "too long" in finding.detail and "RAY_TMPDIR" in finding.fix
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "gone"))
    assert only(doctor.check_ray()).state == "broken"


def test_mlflow(tmp_path, server):
    away = only(doctor.check_mlflow(tmp_path, f"http://127.0.0.1:{closed_port()}"))
    assert away.state == "warning" and "rcray sync" in away.fix
    assert only(doctor.check_mlflow(tmp_path, server.url)).state == "ok"
    server.status = 401
    refused = only(doctor.check_mlflow(tmp_path, server.url))
    assert refused.state == "broken" and "MLFLOW_TRACKING_TOKEN" in refused.fix
    (tmp_path / "mlflow.db").write_text("not a database at all, but text")
    assert only(doctor.check_mlflow(tmp_path, None)).state == "broken"
    wrong = only(doctor.check_mlflow(tmp_path, "htp://x"))
    assert wrong.state == "broken" and "did you mean 'http'" in wrong.detail


def test_hub(monkeypatch, server):
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    assert only(doctor.check_hub()).state == "ok"
    server.status = 503
    assert "HTTP 503" in only(doctor.check_hub()).detail
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{closed_port()}")
    finding = only(doctor.check_hub())
    assert finding.state == "warning" and "HTTPS_PROXY" in finding.fix


def test_silence_is_not_waited_for(monkeypatch):
    """A server that takes the connection and says nothing, and a name that does not resolve."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setattr(doctor, "HUB_SECONDS", 0.3)
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{mute.getsockname()[1]}")
        assert only(doctor.check_hub()).state == "warning"
        resolved = threading.Event()
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: resolved.wait(240) and [])
        assert "no answer within" in only(doctor.check_hub()).detail
        resolved.set()


def test_secrets_stay_inside(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setenv("HF_TOKEN", "hf_abcdefghijklmnopqrst")
    monkeypatch.setenv("HF_ENDPOINT", f"http://user:hunter22@127.0.0.1:{closed_port()}")
    uri = f"http://user:hunter22@127.0.0.1:{closed_port()}"
    for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"):
        monkeypatch.setenv(name, "")  # put back afterwards: the address moves its password there
    _, out = run(monkeypatch, capsys, "--json", "--store", tmp_path, "--tracking-uri", uri)
    assert "hunter22" not in out and "hf_abc" not in out
