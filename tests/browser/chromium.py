"""Headless Chromium, driven over its DevTools protocol: as much of a browser test tool as the tests need.

    with Chromium() as browser:
        page = browser.open("http://127.0.0.1:5000")  # or a Path
        page.wait_for("document.querySelectorAll('table tr').length > 3")
        page.screenshot(tmp_path / "page.png")
        assert page.errors == [] and page.requested_hosts() == {"127.0.0.1"}

Nothing needs a driver program: the protocol is JSON over a web socket, and aiohttp comes with Ray.
"""

import asyncio
import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless=new",
    "--no-sandbox",  # containers have no user namespaces
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--remote-debugging-port=0",  # it picks a free one and writes it down
)


def find_chromium() -> str | None:
    """The browser's path; None where there is none. RCRAY_CHROMIUM names one that is not on the path."""
    named = os.environ.get("RCRAY_CHROMIUM")
    return named or next((found for name in NAMES if (found := shutil.which(name))), None)


class Chromium:
    """A browser process with a profile of its own, both gone at the end."""

    def __init__(self, width: int = 1400, height: int = 1000, start_seconds: float = 60):
        self.size = (width, height)
        self.start_seconds = start_seconds

    def __enter__(self) -> "Chromium":
        binary = find_chromium()
        if binary is None:
            raise FileNotFoundError(f"no browser on the path: {', '.join(NAMES)}")
        self.profile = Path(tempfile.mkdtemp(prefix="chromium-"))
        flags = [*FLAGS, f"--user-data-dir={self.profile}", "--window-size={},{}".format(*self.size)]
        self.process = subprocess.Popen(
            [binary, *flags, "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # its helpers go with it
        )
        self.loop = asyncio.new_event_loop()
        self.pages: list[Page] = []
        try:
            self.port = self._wait_for_port()
            self.session = self.loop.run_until_complete(_new_session())
        except BaseException:
            self._end()
            raise
        return self

    def _wait_for_port(self) -> int:
        written = self.profile / "DevToolsActivePort"
        deadline = time.monotonic() + self.start_seconds
        while True:
            if written.exists() and (lines := written.read_text().split()):
                return int(lines[0])
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Chromium did not start (exit code {self.process.poll()})")
            time.sleep(0.05)

    def open(self, address: str | Path) -> "Page":
        """A new tab on an address or a file, loaded."""
        page = Page(self)
        self.pages.append(page)
        page.go(address)
        return page

    def __exit__(self, *_: object) -> None:
        for page in self.pages:
            self.loop.run_until_complete(page.socket.close())
        self.loop.run_until_complete(self.session.close())
        self._end()

    def _end(self) -> None:
        self.loop.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        shutil.rmtree(self.profile, ignore_errors=True)


async def _new_session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession()


class Page:
    """One tab. Events are read whenever a command or a wait is under way."""

    def __init__(self, browser: Chromium):
        self.browser = browser
        self.errors: list[str] = []  # uncaught exceptions and console errors of the page
        self.requests: list[str] = []  # every address it asked for
        self.loaded = False
        self._last = 0
        self.socket = self._run(self._connect())
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")
        self.resize(*browser.size)

    def _run(self, work: Any) -> Any:
        return self.browser.loop.run_until_complete(work)

    async def _connect(self) -> aiohttp.ClientWebSocketResponse:
        root = f"http://127.0.0.1:{self.browser.port}"
        async with self.browser.session.put(f"{root}/json/new?about:blank") as answer:
            target = await answer.json(content_type=None)
        return await self.browser.session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0)

    # -- the protocol

    def send(self, method: str, seconds: float = 60, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol and its result."""
        return self._run(asyncio.wait_for(self._send(method, parameters), seconds))

    async def _send(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        self._last += 1
        mine = self._last
        await self.socket.send_str(json.dumps({"id": mine, "method": method, "params": parameters}))
        while True:
            message = await self._receive()
            if message.get("id") == mine:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']['message']}")
                return message["result"]

    async def _receive(self) -> dict[str, Any]:
        frame = await self.socket.receive()
        if frame.type is not aiohttp.WSMsgType.TEXT:
            raise ConnectionError(f"the browser closed the connection: {frame.type.name}")
        message = json.loads(frame.data)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, method: str | None, event: dict[str, Any]) -> None:
        if method == "Page.loadEventFired":
            self.loaded = True
        elif method == "Network.requestWillBeSent":
            self.requests.append(event["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            details = event["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Runtime.consoleAPICalled" and event["type"] in ("error", "assert"):
            self.errors.append(" ".join(str(a.get("value", a.get("description", ""))) for a in event["args"]))
        elif method == "Log.entryAdded" and event["entry"]["level"] == "error":
            self.errors.append(f"{event['entry']['text']} {event['entry'].get('url', '')}".strip())

    # -- what tests use

    def go(self, address: str | Path, seconds: float = 60) -> None:
        """Loads an address, or a file, and waits for its load event."""
        url = address.resolve().as_uri() if isinstance(address, Path) else address
        self.loaded = False
        result = self.send("Page.navigate", url=url)
        if error := result.get("errorText"):
            raise RuntimeError(f"{url}: {error}")
        if "loaderId" not in result:
            return  # only the part after # changed: nothing is loaded

        async def load() -> None:
            while not self.loaded:
                await self._receive()

        self._run(asyncio.wait_for(load(), seconds))

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression; promises are awaited, exceptions raised."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description") or details["text"])
        return answer["result"].get("value")

    def wait_for(self, script: str, seconds: float = 60) -> Any:
        """Waits until an expression is true, and returns it; says what the page showed where it never was."""
        deadline = time.monotonic() + seconds
        while not (value := self.evaluate(script)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"never true in {seconds:g} s: {script}\nthe page says:\n{self.text()[:4000]}")
            time.sleep(0.1)
        return value

    def wait_for_text(self, text: str, seconds: float = 60) -> None:
        """Waits until the page shows a text."""
        self.wait_for(f"document.body && document.body.innerText.includes({json.dumps(text)})", seconds)

    def text(self) -> str:
        """What a person can read on the page."""
        return self.evaluate("document.body ? document.body.innerText : ''")

    def click(self, selector: str) -> None:
        """A real click in the middle of the first element that matches, scrolled into view."""
        script = (
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); if (!e) return null;"
            " e.scrollIntoView({block: 'center'}); const r = e.getBoundingClientRect();"
            " return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        place = self.evaluate(script)
        if place is None:
            raise LookupError(f"nothing matches {selector}")
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            count = 0 if kind == "mouseMoved" else 1
            self.send("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=count)

    def resize(self, width: int, height: int, *, mobile: bool = False) -> None:
        """The size of the window in CSS pixels."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)

    def prefer(self, *, scheme: str = "light", medium: str = "") -> None:
        """What the reader prefers: `light` or `dark`; `print` as medium shows the page as it would be printed."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.send("Emulation.setEmulatedMedia", media=medium, features=features)

    def screenshot(self, path: Path, *, whole: bool = False) -> Path:
        """Writes a PNG of the window, or of the whole page."""
        shot = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(shot["data"]))
        return path

    def requested_hosts(self) -> set[str]:
        """Hosts of every request so far; files and inline data have none."""
        return {host for url in self.requests if (host := urlsplit(url).hostname)}
