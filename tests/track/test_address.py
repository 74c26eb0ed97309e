"""Tracking addresses: refused before anything starts, with what is wrong and how to mend it."""

import http.server
import socketserver
import threading
from contextlib import contextmanager

import pytest

from rcray.errors import ConfigError
from rcray.track.address import Address, tracking_address, why_unreachable
from tests.track.servers import free_port


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("htp://host", "unknown kind 'htp'; did you mean 'http'"),
        ("./mlruns", "a directory cannot be tracked into"),
        ("file:///data/mlruns", "a directory cannot be tracked into"),
        ("sqlite://mlflow.db", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("sqlite:////no/such/place/mlflow.db", "no such directory: /no/such/place"),
        ("http://", "names no host"),
        ("http://host:port", "Port could not be cast"),
    ],
)
def test_refused(uri, expected):
    with pytest.raises(ConfigError, match="--tracking-uri") as refused:
        tracking_address(uri)
    assert expected in str(refused.value) and "fix:" in str(refused.value)


def test_a_file_that_is_no_database_is_refused(tmp_path):
    (tmp_path / "notes.db").write_text("my notes, long enough to have a header of its own, or so it seems" * 10)
    with pytest.raises(ConfigError, match="not an SQLite database"):
        tracking_address(f"sqlite:///{tmp_path / 'notes.db'}")
    assert (tmp_path / "notes.db").read_text().startswith("my notes")


def test_a_relative_database_is_made_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert tracking_address("sqlite:///m.db") == Address(f"sqlite:///{tmp_path / 'm.db'}")
    assert tracking_address("sqlite:///m.db").sqlite_file == tmp_path / "m.db"
    assert not (tmp_path / "m.db").exists()


@pytest.mark.parametrize(
    "uri", ["http://h:5000", "https://h/x", "postgresql+psycopg2://h/db", "databricks", "mysql://h/x"]
)
def test_accepted_as_they_are(uri):
    assert tracking_address(uri) == Address(uri)


@pytest.mark.parametrize(
    ("code", "expected"),
    [(401, "refuses us"), (403, "refuses us"), (404, "not an MLflow server"), (503, None), (200, None)],
)
def test_asking_a_server(code, expected):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(code)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        address = tracking_address(f"http://127.0.0.1:{server.server_address[1]}")
        if expected:
            with pytest.raises(ConfigError, match=expected):
                why_unreachable(address)
        else:
            assert why_unreachable(address) == (None if code == 200 else "HTTP 503")
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def answering(handler):
    """A server on loopback; yields its address."""
    server = socketserver.TCPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def test_a_token_does_not_follow_a_redirect(monkeypatch):
    seen = []

    class Elsewhere(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            seen.append(self.headers.get("Authorization"))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    with answering(Elsewhere) as elsewhere:

        class Redirect(Elsewhere):
            def do_GET(self):
                seen.append(self.headers.get("Authorization"))
                self.send_response(302)
                self.send_header("Location", elsewhere)
                self.end_headers()

        monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "topsecret")
        with answering(Redirect) as first:
            assert why_unreachable(Address(first)) is None
    assert seen == ["Bearer topsecret", None]


def test_something_that_speaks_no_http():
    class Ssh(socketserver.BaseRequestHandler):
        def handle(self):
            self.request.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")

    with answering(Ssh) as address, pytest.raises(ConfigError, match="not an MLflow server"):
        why_unreachable(Address(address))


def test_a_server_that_hangs_up_may_be_back_later():
    class HangsUp(socketserver.BaseRequestHandler):
        def handle(self):
            self.request.recv(1)

    with answering(HangsUp) as address:
        assert why_unreachable(Address(address))


def test_nobody_there():
    assert "refused" in str(why_unreachable(Address(f"http://127.0.0.1:{free_port()}"))).lower()
    assert why_unreachable(Address("sqlite:////anything.db")) is None
