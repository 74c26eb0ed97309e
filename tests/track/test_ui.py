"""`rcray ui` as a process: where it listens, and that nothing of it stays."""

import contextlib
import subprocess
import urllib.request

import psutil

from tests.processes import listeners, tree
from tests.ray.sweeping import RCRAY, environment
from tests.track.servers import free_port


def test_a_terminated_ui_takes_its_server_with_it(tmp_path):
    port = free_port()
    process = subprocess.Popen(
        [*RCRAY, "ui", "--store", str(tmp_path / "store"), "--port", str(port)],
        env=environment(), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    family: list[psutil.Process] = []
    try:
        said = process.stdout.readline()
        assert f"http://127.0.0.1:{port}" in said
        with urllib.request.urlopen(f"http://127.0.0.1:{port}", timeout=600) as page:
            assert "MLflow" in page.read().decode()
        family = tree(process.pid)
        listening = listeners(process.pid)
        assert port in {listener.port for listener in listening} and all(listener.is_loopback for listener in listening)
        process.terminate()
        assert process.wait(timeout=600) == 0
        _, left = psutil.wait_procs(family, timeout=600)
        assert not left, f"still there: {left}"
        assert len(family) > 1, "the server was not seen"
    finally:
        for other in family:
            with contextlib.suppress(psutil.Error):
                other.kill()
        process.kill()
        process.wait()
