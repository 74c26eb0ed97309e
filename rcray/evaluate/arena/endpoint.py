"""One call to an OpenAI-compatible chat endpoint: retried while that can help, never repeated after an answer.

The key is read from the environment at the moment of the call, stands in one header, and is cut out of every message
that leaves this file: servers like to quote what they were sent.
"""

import http.client
import json
import os
import random
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rcray.config.alpaca_eval import JudgeConfig
from rcray.errors import ConfigError, RcrayError

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds before the first retry; it doubles up to the longest
_RETRIED = (408, 409, 425, 429, 500, 502, 503, 504, 529)
_SHOWN = 200  # characters of a server's message


class CallFailedError(RcrayError):
    """A call without a usable answer, after every retry; the job goes on without it."""


class EndpointRefusedError(RcrayError):
    """The endpoint refuses every such call (key, model, address): going on would repeat it hundreds of times."""


@dataclass(frozen=True)
class Reply:
    """A usable answer."""

    text: str
    top_logprobs: dict[str, float]  # of the first token; empty where the server gives none
    tokens_in: int
    tokens_out: int


def require_key(config: JudgeConfig) -> None:
    """Refuses a job whose key is not in the environment."""
    if config.key_env and not os.environ.get(config.key_env):
        raise ConfigError(
            f"judge: the environment has no {config.key_env}, which should hold the key of {config.base_url}",
            fix=f"export {config.key_env}=..., or judge.key_env: null for a server without a key",
        )


def call(config: JudgeConfig, messages: list[dict[str, str]], *, sleep: Callable[[float], None] = time.sleep) -> Reply:
    """Asks once; after load, a server's error, silence or an unreadable answer asks again, with growing pauses.

    Raises:
        EndpointRefusedError: the key, the model or the request itself is refused.
        CallFailedError: no usable answer after all retries.
    """
    body: dict[str, Any] = {"model": config.model, "messages": messages, "temperature": 0, "max_tokens": 8}
    if config.judging.vote == "logprobs":
        body |= {"logprobs": True, "top_logprobs": 5, "max_tokens": 1}
    trouble = ""
    for attempt in range(config.retries + 1):
        pause: float | None = None
        try:
            return _read(_post(config, body))
        except urllib.error.HTTPError as error:
            trouble = f"HTTP {error.code}: {_quoted(config, _body(error))}"
            if error.code not in _RETRIED:
                raise EndpointRefusedError(
                    f"judge {config.model} at {config.base_url}: {trouble}",
                    fix=f"check judge.model, judge.base_url and the key in {config.key_env or 'no variable'}",
                ) from None
            pause = _asked_pause(error)
        except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError, AttributeError) as error:
            trouble = _quoted(config, f"{type(error).__name__}: {error}")
        if attempt < config.retries:
            growing = min(LONGEST_PAUSE, FIRST_PAUSE * 2**attempt) * random.uniform(0.5, 1.0)
            sleep(growing if pause is None else min(pause, LONGEST_PAUSE))
    raise CallFailedError(f"no usable answer after {config.retries + 1} calls, the last: {trouble}")


def _post(config: JudgeConfig, body: dict[str, Any]) -> bytes:
    headers = {"Content-Type": "application/json", "User-Agent": "rcray"}
    if config.key_env:
        headers["Authorization"] = f"Bearer {os.environ.get(config.key_env, '')}"
    request = urllib.request.Request(
        f"{config.base_url}/chat/completions", json.dumps(body).encode(), headers, method="POST"
    )
    with _opener.open(request, timeout=config.timeout) as response:
        # The socket's timeout starts anew with every byte, so a server that drips would hold a thread for ever.
        deadline, parts = time.monotonic() + config.timeout, []
        while part := response.read1(65536):
            parts.append(part)
            if time.monotonic() > deadline:
                raise TimeoutError(f"the answer took more than {config.timeout:g} s")
    return b"".join(parts)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the key to another host."""

    def redirect_request(self, *_: Any) -> None:
        return None


_opener = urllib.request.build_opener(_NoRedirect())


def _read(data: bytes) -> Reply:
    content = json.loads(data)
    choice = content["choices"][0]
    text = choice["message"]["content"]
    if not isinstance(text, str):
        raise ValueError("the answer has no text")
    logprobs: dict[str, float] = {}
    first = ((choice.get("logprobs") or {}).get("content") or [None])[0]
    for entry in (first or {}).get("top_logprobs") or []:
        logprobs[str(entry["token"])] = float(entry["logprob"])
    usage = content.get("usage") or {}
    return Reply(text, logprobs, int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0))


def _body(error: urllib.error.HTTPError) -> str:
    try:
        return error.read(4096).decode(errors="replace")
    except OSError:
        return ""


def _asked_pause(error: urllib.error.HTTPError) -> float | None:
    try:
        return max(0.0, float(error.headers.get("Retry-After", "")))
    except (TypeError, ValueError):
        return None


def _quoted(config: JudgeConfig, text: str) -> str:
    key = os.environ.get(config.key_env or "") or None
    if key:
        text = text.replace(key, "[key]")
    return " ".join(text.split())[:_SHOWN]
