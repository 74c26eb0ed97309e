"""Secrets come from the environment and stay there: everything written or shown goes through `redact` first.

What counts as one: the values of environment variables named like a key, token, password or secret; the part before @
in an address; what follows `token=` and its like; tokens of well-known shapes.
"""

import logging
import os
import re
import traceback
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import quote, quote_plus

MASK = "***"

_SECRET_NAME = re.compile(
    r"(^|_)(APIKEY|KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?)(_|$)|(KEY|TOKEN|SECRET|PASSWORD)$", re.I
)
_SHORTEST = 6  # shorter values stand in too many innocent words

_PATTERNS = (
    (re.compile(r"://[^/\s'\"<>]*@"), f"://{MASK}@"),
    (re.compile(r"(?i)([?&][a-z_-]*(?:token|key|password|secret|signature)=)[^&\s'\"]+"), rf"\1{MASK}"),
    (re.compile(r"(?i)(authorization['\"]?\s*[:=]\s*['\"]?(?:basic|bearer)\s+)[^\s'\"]+"), rf"\1{MASK}"),
    (re.compile(r"\b(?:sk-[\w-]{16,}|hf_\w{16,}|gh[pousr]_\w{16,}|AKIA[0-9A-Z]{16})\b"), MASK),
)


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Whether an environment variable of this name holds a secret."""
    return _SECRET_NAME.search(name) is not None


def secret_values() -> list[str]:
    """Values of the environment that must not be shown, longest first, also as they stand in an address."""
    values = set()
    for name, value in os.environ.items():
        if is_secret_name(name) and len(value.strip()) >= _SHORTEST:
            values |= {value, value.strip(), quote(value, safe=""), quote_plus(value)}
    return sorted(values, key=len, reverse=True)


def redact(text: str) -> str:
    """The text with every secret masked."""
    for value in secret_values():
        text = text.replace(value, MASK)
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


def redact_content(content: Any) -> Any:
    """The same for JSON content: every string in it, keys included."""
    if isinstance(content, str):
        return redact(content)
    if isinstance(content, Mapping):
        return {redact(key) if isinstance(key, str) else key: redact_content(v) for key, v in content.items()}
    if isinstance(content, list | tuple):
        return [redact_content(value) for value in content]
    return content


def redact_logs() -> None:
    """Masks secrets in every log record of this process, whichever library writes it and wherever it goes."""
    make = logging.getLogRecordFactory()
    if getattr(make, "redacts", False):
        return

    def redacting(*arguments: Any, **named: Any) -> logging.LogRecord:
        record = make(*arguments, **named)
        try:
            record.msg, record.args = redact(record.getMessage()), ()
        except (TypeError, ValueError):  # a wrong format string is its author's to see
            return record
        if record.exc_info and record.exc_info[1] is not None:
            record.exc_text = redact("".join(traceback.format_exception(*record.exc_info)).rstrip())
        return record

    redacting.redacts = True  # type: ignore[attr-defined]
    logging.setLogRecordFactory(redacting)
