"""A judge on the loopback: real HTTP, scripted verdicts and faults. It stands for a paid service."""

import json
import math
import re
import threading
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: What the server does with the n-th call of a question: a word of `_Handler`, by default a proper answer.
Script = Callable[[str, int], str]


class JudgeServer:
    """Prefers the answer with the larger number in it: `answer 7` beats `answer 3`; `verdicts` is what it would say."""

    def __init__(self, script: Script = lambda question, number: "ok", *, strength: float = 3.0):
        self.script, self.strength = script, strength
        self.lock = threading.Lock()
        self.calls: Counter[str] = Counter()  # question -> calls that arrived
        self.answered: Counter[str] = Counter()  # question -> proper answers sent
        self.keys: set[str] = set()
        self.headers: set[str] = set()  # names of all that were sent
        self.bodies: list[dict[str, Any]] = []
        self.open = threading.Event()  # set: hanging calls let go
        self.under_way = 0  # calls that arrived and are not done with
        handler = type("Handler", (_Handler,), {"judge": self})
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.http.daemon_threads = True
        self.thread = threading.Thread(target=self.http.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http.server_port}/v1"

    def __enter__(self) -> "JudgeServer":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.open.set()
        self.http.shutdown()
        self.http.server_close()


def number_of(text: str) -> float:
    return float(re.search(r"answer (-?[\d.]+)", text).group(1))  # type: ignore[union-attr]


class _Handler(BaseHTTPRequestHandler):
    judge: JudgeServer

    def log_message(self, *_: object) -> None:
        pass

    def do_POST(self) -> None:
        judge = self.judge
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        question = body["messages"][-1]["content"]
        with judge.lock:
            judge.calls[question] += 1
            number = judge.calls[question]
            judge.keys.add(self.headers.get("Authorization", ""))
            judge.headers |= {name.lower() for name in self.headers}
            judge.bodies.append(body)
            judge.under_way += 1
        try:
            getattr(self, f"do_{judge.script(question, number)}")(body, question)
        finally:
            with judge.lock:
                judge.under_way -= 1

    def reply(self, code: int, content: bytes, **headers: str) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_ok(self, body: dict[str, Any], question: str) -> None:
        first, second = re.findall(r"<answer_[ab]>\n(.*?)\n</answer_[ab]>", question, re.DOTALL)
        odds = self.judge.strength * (number_of(first) - number_of(second))
        p = 1 / (1 + math.exp(-odds))
        choice: dict[str, Any] = {"message": {"content": "A" if p > 0.5 else "B" if p < 0.5 else "tie"}}
        if body.get("logprobs"):
            top = [{"token": "A", "logprob": math.log(p)}, {"token": " B", "logprob": math.log(1 - p)}]
            choice["logprobs"] = {"content": [{"token": "A", "top_logprobs": top}]}
        content = {"choices": [choice], "usage": {"prompt_tokens": 100, "completion_tokens": 1}}
        self.reply(200, json.dumps(content).encode())
        with self.judge.lock:
            self.judge.answered[question] += 1

    def do_busy(self, *_: Any) -> None:
        self.reply(429, b'{"error": "slow down"}', Retry_After="0.01")

    def do_broken(self, *_: Any) -> None:
        self.reply(500, b"<html>oops</html>")

    def do_garbage(self, *_: Any) -> None:
        self.reply(200, b"{not json")

    def do_wrong_shape(self, *_: Any) -> None:
        self.reply(200, b'{"choices": []}')

    def do_ramble(self, *_: Any) -> None:
        content = {"choices": [{"message": {"content": "Well, it depends on"}}]}
        self.reply(200, json.dumps(content).encode())

    def do_hang(self, *_: Any) -> None:
        self.judge.open.wait(240)

    def do_drip_error(self, *_: Any) -> None:
        self.do_drip(code=500)

    def do_drip(self, *_: Any, code: int = 200) -> None:
        self.send_response(code)
        self.send_header("Content-Length", "1000000")
        self.end_headers()
        while not self.judge.open.wait(0.05):  # until the client is gone
            self.wfile.write(b" ")
            self.wfile.flush()

    def do_cut(self, *_: Any) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(b'{"choices"')
        self.close_connection = True

    def do_drop(self, *_: Any) -> None:
        self.close_connection = True

    def do_redirect(self, *_: Any) -> None:
        self.reply(302, b"", Location="http://127.0.0.1:9/steal")

    def do_refuse(self, *_: Any) -> None:
        text = {"error": f"bad key {self.headers.get('Authorization')}"}
        self.reply(401, json.dumps(text).encode())
