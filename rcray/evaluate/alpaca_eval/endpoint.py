"""One call to an OpenAI-compatible chat endpoint: retried while that can help, never repeated after an answer.

The `openai` client makes it. What that client would do beyond this is switched off: redirects (they would carry the key
to another host), headers and keys from its own environment variables (they belong to another account), its retries
(they cannot be interrupted, and know nothing of answers that cannot be read).

The key is read from the environment at the moment of the call, stands in one header, and is cut out of every message
that leaves this file: servers like to quote what they were sent.
"""

import json
import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from rcray.config.alpaca_eval import JudgeConfig
from rcray.errors import ConfigError, RcrayError
from rcray.extras import explained_imports

with explained_imports():
    import httpx2
    from openai import APIConnectionError, APIStatusError, DefaultHttpxClient, OpenAI

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds before the first retry; it doubles up to the longest
_RETRIED = (408, 409, 425, 429, 500, 502, 503, 504, 529)
_SHOWN = 200  # characters of a server's message
#: All that is sent beside the key. The last one is how the client knows that the raw answer was asked for.
_HEADERS = (
    "host", "connection", "accept", "accept-encoding", "content-type", "content-length", "x-stainless-raw-response",
)  # fmt: skip


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


def call(config: JudgeConfig, messages: list[Any], *, sleep: Callable[[float], None] = time.sleep) -> Reply:
    """Asks once; after load, a server's error, silence or an unreadable answer asks again, with growing pauses.

    Raises:
        EndpointRefusedError: the key, the model or the request itself is refused.
        CallFailedError: no usable answer after all retries.
    """
    body: dict[str, Any] = {"model": config.model, "temperature": 0, "max_tokens": 8}
    if config.judging.vote == "logprobs":
        body |= {"logprobs": True, "top_logprobs": 5, "max_tokens": 1}
    trouble = ""
    for attempt in range(config.retries + 1):
        pause: float | None = None
        try:
            client = _client(config.base_url, config.timeout, config.key_env)
            return _read(client.chat.completions.with_raw_response.create(messages=messages, **body).content)
        except APIStatusError as error:
            trouble = f"HTTP {error.status_code}: {_quoted(config, error.response.text)}"
            if error.status_code not in _RETRIED:
                raise EndpointRefusedError(
                    f"judge {config.model} at {config.base_url}: {trouble}",
                    fix=f"check judge.model, judge.base_url and the key in {config.key_env or 'no variable'}",
                ) from None
            pause = _asked_pause(error.response)
        except APIConnectionError as error:
            trouble = _quoted(config, f"{error.message} {error.__cause__ or ''}")
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            trouble = _quoted(config, f"{type(error).__name__}: {error}")
        if attempt < config.retries:
            growing = min(LONGEST_PAUSE, FIRST_PAUSE * 2**attempt) * random.uniform(0.5, 1.0)
            sleep(growing if pause is None else min(pause, LONGEST_PAUSE))
    raise CallFailedError(f"no usable answer after {config.retries + 1} calls, the last: {trouble}")


@lru_cache(maxsize=8)
def _client(base_url: str, timeout: float, key_env: str | None) -> OpenAI:
    """One client per server: its connections are kept between calls, and threads may share it."""

    def ours_alone(request: httpx2.Request) -> None:
        for name in set(request.headers) - set(_HEADERS):
            del request.headers[name]
        request.headers["User-Agent"] = "rcray"
        if key_env:
            request.headers["Authorization"] = f"Bearer {os.environ.get(key_env, '')}"

    def bounded(response: httpx2.Response) -> None:
        assert isinstance(response.stream, httpx2.SyncByteStream)
        response.stream = _Bounded(response.stream, timeout)

    http = DefaultHttpxClient(
        timeout=timeout, follow_redirects=False, event_hooks={"request": [ours_alone], "response": [bounded]}
    )
    return OpenAI(base_url=base_url, api_key="set for each request", timeout=timeout, max_retries=0, http_client=http)


class _Bounded(httpx2.SyncByteStream):
    """A body that must arrive in time: a socket's timeout starts anew with every byte a slow server drips."""

    def __init__(self, stream: httpx2.SyncByteStream, seconds: float):
        self._stream = stream
        self._seconds = seconds
        self._deadline = time.monotonic() + seconds

    def __iter__(self) -> Iterator[bytes]:
        for part in self._stream:
            yield part
            if time.monotonic() > self._deadline:
                raise httpx2.ReadTimeout(f"the answer took more than {self._seconds:g} s")

    def close(self) -> None:
        self._stream.close()


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


def _asked_pause(response: httpx2.Response) -> float | None:
    try:
        return max(0.0, float(response.headers.get("Retry-After", "")))
    except ValueError:
        return None


def _quoted(config: JudgeConfig, text: str) -> str:
    key = os.environ.get(config.key_env or "") or None
    if key:
        text = text.replace(key, "[key]")
    return " ".join(text.split())[:_SHOWN]
