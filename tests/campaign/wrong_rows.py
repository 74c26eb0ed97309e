"""Rows of preference data that are no pairs, by kind."""

import json
from typing import Any

from hypothesis import strategies as st

from tests.campaign.wrong_values import trees

GOOD = {"prompt": "What is it?", "chosen": "This.", "rejected": "That."}
_ANSWER = st.sampled_from(["chosen", "rejected"])
_NO_TEXT = st.integers() | st.floats(allow_nan=False) | st.booleans() | st.dictionaries(st.text(max_size=3), st.none())


def row(**changes: Any) -> bytes:
    return json.dumps({**GOOD, **changes}).encode()


def _blank() -> st.SearchStrategy[str]:
    return st.text(" \t\n\r\u00a0\u2003", max_size=5)


def _without(name: str) -> bytes:
    return json.dumps({key: value for key, value in GOOD.items() if key != name}).encode()


_SOME_TEXT = st.text("abc é", min_size=1, max_size=9).filter(str.strip)
_MESSAGE = st.dictionaries(st.sampled_from(["role", "content", "x"]), st.none() | st.text(max_size=4))
WRONG_ROWS: dict[str, st.SearchStrategy[bytes]] = {
    "no text": st.builds(lambda side, value: row(**{side: value}), _ANSWER, _NO_TEXT),
    "null": _ANSWER.map(lambda side: row(**{side: None})),
    "missing": st.sampled_from([*GOOD]).map(_without),
    "empty": st.builds(lambda side, text: row(**{side: text}), _ANSWER, _blank()),
    "equal": _SOME_TEXT.map(lambda text: row(chosen=text, rejected=text)),
    "surrogate": st.builds(lambda side: row(**{side: "a\ud800b"}), st.sampled_from([*GOOD])),
    "no object": trees(st.none() | st.integers() | st.text(max_size=5))
    .filter(lambda value: not isinstance(value, dict))
    .map(lambda value: json.dumps(value).encode()),
    "no JSON": st.integers(1, 50).map(lambda cut: row()[:-cut]),
    "no UTF-8": st.integers(20, 50).map(lambda place: row()[:place] + b"\xff" + row()[place:]),
    "deep": st.integers(2000, 60000).map(lambda depth: b'{"prompt": ' + b"[" * depth),
    "messages": st.builds(
        lambda side, turns: row(**{side: turns}),
        _ANSWER,
        st.lists(_MESSAGE, max_size=3),
    ),
}  # fmt: skip
