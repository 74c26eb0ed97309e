"""A real `mlflow server` that can be killed and started again, and a proxy that loses answers."""

import http.server
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class MlflowServer:
    """One worker on SQLite, with artifacts through the server, as on a cluster."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen | None = None

    def start(self) -> "MlflowServer":
        self.folder.mkdir(parents=True, exist_ok=True)
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "mlflow", "server", "--workers", "1"),
                *("--backend-store-uri", f"sqlite:///{self.folder / 'server.db'}"),
                *("--artifacts-destination", str(self.folder / "artifacts")),
                *("--host", "127.0.0.1", "--port", str(self.port)),
            ],
            # Without its eight job runners, which tracking does not use.
            env={**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        deadline = time.monotonic() + 600
        while not self.is_up():
            assert self.process.poll() is None, "mlflow server ended"
            assert time.monotonic() < deadline, "mlflow server did not start"
            time.sleep(0.2)
        return self

    def is_up(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=5):
                return True
        except OSError:
            return False

    def kill(self) -> None:
        """No goodbye: every process of it at once."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


class LosingProxy:
    """Passes every request on; of those that log, every second answer is lost: the client cannot know it arrived."""

    def __init__(self, target: str):
        self.lost = 0
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def _pass_on(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                names = ("Content-Type", "Authorization")
                headers = {name: self.headers[name] for name in names if self.headers[name]}
                request = urllib.request.Request(
                    target + self.path, self.rfile.read(length) or None, headers, method=self.command
                )
                try:
                    with urllib.request.urlopen(request, timeout=30) as answer:
                        status, body = answer.status, answer.read()
                except urllib.error.HTTPError as error:
                    status, body = error.code, error.read()
                if "log-batch" in self.path:
                    proxy.seen += 1
                    if proxy.seen % 2:
                        proxy.lost += 1
                        self.close_connection = True
                        return
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _pass_on

            def log_message(self, *_: object) -> None:
                pass

        self.seen = 0
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self) -> "LosingProxy":
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()
