"""`rcray watch`: the page on the loopback address, fed from a store while cells are trained. It only reads."""

import contextlib
import json
import signal
import sys
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from rcray.aggregate.explore.page import to_page
from rcray.aggregate.explore.watch import Watch
from rcray.errors import ConfigError, RcrayError
from rcray.secrets import redact

HOST = "127.0.0.1"
_NAMES = (HOST, "localhost")
_TEXT = "text/plain; charset=utf-8"


class PageServer(ThreadingHTTPServer):
    """Answers GET alone, and only under its own names: a page of somebody else cannot ask it by another."""

    daemon_threads = True

    def __init__(self, watch: Watch, port: int):
        self.watch = watch
        super().__init__((HOST, port), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A page that was closed while it was answered is no fault."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    @property
    def address(self) -> str:
        """What to open."""
        return f"http://{HOST}:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        if self.headers.get("Host", "").partition(":")[0] not in _NAMES:
            return self._answer(HTTPStatus.FORBIDDEN, b"ask by 127.0.0.1\n", _TEXT)
        asked = urlsplit(self.path)
        try:
            if asked.path == "/":
                title = self.server.watch.state()["head"]["title"]
                return self._answer(HTTPStatus.OK, to_page(title, None).encode(), "text/html; charset=utf-8")
            content = self._content(asked.path, parse_qs(asked.query))
        except RcrayError as error:  # a file that cannot be read now; asked again in a moment
            return self._answer(HTTPStatus.SERVICE_UNAVAILABLE, f"{redact(error.message)}\n".encode(), _TEXT)
        if content is None:
            return self._answer(HTTPStatus.NOT_FOUND, b"nothing here\n", _TEXT)
        body = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
        return self._answer(HTTPStatus.OK, body, "application/json")

    def _content(self, path: str, query: dict[str, list[str]]) -> Any:
        watch = self.server.watch
        if path == "/state":
            after = query.get("after", ["0"])[0]
            return watch.state(int(after) if after.isdecimal() else 0)
        what, _, name = path.removeprefix("/").partition("/")
        asked = {"details": watch.details, "records": watch.records, "differences": watch.differences}
        return asked[what](unquote(name)) if what in asked else None

    def _answer(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        headers = {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Cross-Origin-Resource-Policy": "same-origin",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nobody reads a line per request."""


def serve(watch: Watch, port: int, say: Callable[[str], None]) -> None:
    """Serves until it is interrupted; says the address once the page can be loaded.

    Raises:
        ConfigError: the port is taken.
    """
    try:
        server = PageServer(watch, port)
    except OSError as error:
        raise ConfigError(
            f"--port {port}: cannot be listened on: {error.strerror or error}", fix="give another --port"
        ) from None
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with server:
        state = watch.state()  # the first look takes longest: nobody waits for it in a browser
        say(f"{len(state['head']['groups'])} settings, {len(state['runs'])} cells on {server.address} (Ctrl-C ends it)")
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
