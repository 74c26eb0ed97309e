"""The bad-input campaign: wrong configurations and wrong rows, each refused on one screen that names the place.

    python -m tests.campaign.bad_input [CONFIGS]

Every wrong input goes through the program's own entry point, in this process. It must end with exit code 2, without a
traceback, print nothing on stdout and leave nothing behind.
"""

import contextlib
import io
import json
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import typer.main
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from rcray import cli
from rcray.config.data import DataConfig
from rcray.data.pairs import check_pairs
from rcray.errors import EXIT_USAGE, DataError
from tests.campaign.wrong_values import OUTER, SECTIONS, fields, words, wrong_values

LINES, WIDTH = 25, 120  # one screen
#: Commands that refuse a file before they do anything; the first starts nothing even where it accepts one.
SAFE = "show-config"
COMMANDS = ("plan", "train", "sweep", "evaluate", "report")
PARSER = typer.main.get_command(cli.app)  # built once: typer would make it anew for each of thousands of commands
SEARCH = {"method": "random", "space": {"train.learning_rate": {"low": 1e-6, "high": 1e-3}}}


@dataclass(frozen=True)
class Wrong:
    """A wrong input: the file's bytes, arguments beside it, and what the message has to name."""

    kind: str
    content: bytes
    arguments: tuple[str, ...] = ()
    named: str = "bad.yaml"


@dataclass
class Tally:
    """What the campaign saw."""

    kinds: Counter[str] = field(default_factory=Counter)
    seen: set[tuple[bytes, tuple[str, ...]]] = field(default_factory=set)
    most_lines: int = 0
    most_characters: int = 0
    rows: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def configs(self) -> int:
        """Different ones."""
        return len(self.seen)

    def describe(self) -> str:
        """The campaign's figures."""
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.kinds.most_common())
        rows = ", ".join(f"{count} {kind}" for kind, count in self.rows.most_common())
        return (
            f"bad input: {self.configs} different invalid configurations refused with exit code {EXIT_USAGE} and the "
            f"field named, no traceback; longest message {self.most_lines} lines, {self.most_characters} characters\n"
            f"  configurations: {kinds}\n"
            f"  {sum(self.rows.values())} wrong data rows, each refused by its line: {rows}\n"
            f"  {self.seconds:.1f} s"
        )


# -- wrong configurations


def _experiment(**sections: Any) -> bytes:
    return yaml.safe_dump({"name": "x", **sections}, sort_keys=False, allow_unicode=True).encode()


def _nested(path: str, value: Any) -> dict[str, Any]:
    for part in reversed(path.split(".")):
        value = {part: value}
    return value


@st.composite
def wrong_field(draw: st.DrawFn) -> Wrong:
    """One field with a value it does not take: in the file, on an axis, in a cell, or by --set."""
    chosen = draw(st.sampled_from(fields()))
    value = draw(wrong_values(chosen))
    path = chosen.path
    if path.partition(".")[0] in OUTER:
        section, _, rest = path.partition(".")
        inner = {**(SEARCH if section == "search" else {}), **_nested(rest, value)}
        return Wrong(f"{section} field", _experiment(**{section: inner}), named=path)
    run = {"objective": {"name": chosen.objective}} if chosen.objective else {}
    way = draw(st.sampled_from(["file", "axis", "cell", "--set"]))
    if way == "file":
        section, _, rest = path.partition(".")
        inner = {**run.get(section, {}), **_nested(rest, value)}
        return Wrong("field in a file", _experiment(run={**run, section: inner}), named=path)
    if way == "axis":
        return Wrong("field on an axis", _experiment(run=run, grid={path: [value]}), named=path)
    if way == "cell":
        return Wrong("field in a cell", _experiment(run=run, cells=[{path: value}]), named=path)
    text = yaml.safe_dump(value, default_flow_style=True, width=10**9).removesuffix("\n").removesuffix("\n...")
    return Wrong("field by --set", _experiment(run=run), ("--set", f"{path}={text}"), named=path)


@st.composite
def unknown_field(draw: st.DrawFn) -> Wrong:
    """A field that does not exist, in any section; also keys that are no text."""
    section = draw(st.sampled_from(["", "run", "objective", *SECTIONS, *OUTER]))
    key = draw(words() | st.integers() | st.booleans() | st.none() | st.dates() | st.floats(allow_nan=False))
    shown = key if isinstance(key, str) and key.isprintable() and len(key) < 30 else ""
    if section in ("", "run"):
        content = {key: 1} if section == "" else {"run": {key: 1}}
        return Wrong("unknown field", _experiment_of(content), named=shown)
    inner = {key: 1, **(SEARCH if section == "search" else {})}
    content = {section: inner} if section in OUTER else {"run": {section: inner}}
    return Wrong("unknown field", _experiment_of(content), named=f"{section}.{shown}" if shown else section)


def _experiment_of(content: dict[Any, Any]) -> bytes:
    return yaml.safe_dump({"name": "x", **content}, sort_keys=False, allow_unicode=True).encode()


@st.composite
def unknown_name(draw: st.DrawFn) -> Wrong:
    """An objective, model or dataset nobody knows; a section that is no section."""
    section = draw(st.sampled_from(["objective", "model", "data"]))
    word = draw(words().filter(lambda text: not set("/:.") & set(text)))
    short = draw(st.booleans())
    way = draw(st.sampled_from(["file", "axis"]))
    value: Any = word if short else {"name": word}
    content = {"run": {section: value}} if way == "file" else {"grid": {section: [value]}}
    return Wrong("unknown name", _experiment(**content), named=f"{section}.name")


@st.composite
def wrong_section(draw: st.DrawFn) -> Wrong:
    """A number, a list or a word where a mapping belongs, and the other way round."""
    scalar = st.integers() | st.floats(allow_nan=False) | st.lists(st.integers(), max_size=3)
    where = draw(st.sampled_from([*SECTIONS, "run", "grid", "cells", "exclude", *OUTER]))
    if where in SECTIONS:
        return Wrong("wrong section", _experiment(run={where: draw(scalar)}), named=where)
    given = draw(scalar.filter(lambda value: value != []))
    return Wrong("wrong section", _experiment(**{where: given}), named=where)


@st.composite
def wrong_grid(draw: st.DrawFn) -> Wrong:
    """Axes without values or of nothing known, rules that match nothing, names that are no file names."""
    path = draw(words().filter(lambda text: "." not in text and text.isprintable() and len(text) < 30))
    kind = draw(st.sampled_from(["empty axis", "unknown axis", "no such cell", "twice", "name", "space"]))
    if kind == "empty axis":
        return Wrong("wrong grid", _experiment(grid={path: []}), named="grid")
    if kind == "unknown axis":
        return Wrong("wrong grid", _experiment(grid={path: [1]}), named=path)
    if kind == "no such cell":
        return Wrong("wrong grid", _experiment(exclude=[{path: 1}]), named="exclude.0")
    if kind == "twice":
        return Wrong("wrong grid", _experiment(grid={path: [1]}, cells=[{path: 1}]), named=path)
    if kind == "space":
        low = draw(st.floats(-10, 10))
        search = {**SEARCH, "space": {path: {"low": low, "high": low - draw(st.floats(0, 5))}}}
        return Wrong("wrong grid", _experiment(search=search), named=f"search.space.{path}")
    name = draw(words() | st.sampled_from(["..", "../x", "/etc/x", "a/b", "", "-x", "x\n", "x;ls", "$(ls)", "x" * 65]))
    good = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name) is not None and len(name) <= 64
    bad = yaml.safe_dump({"name": f"{name}/" if good else name}, allow_unicode=True)
    return Wrong("wrong name", bad.encode(), named="name")


def _json(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words(), inner, max_size=4))


@st.composite
def no_experiment(draw: st.DrawFn) -> Wrong:
    """Bytes, text or trees that are nothing like an experiment."""
    leaves = st.none() | st.booleans() | st.integers() | st.floats() | words()
    tree = _json(leaves).map(lambda value: yaml.safe_dump(value, allow_unicode=True).encode())
    odd = st.sampled_from(
        [
            b"!!python/name:os.system",
            b"a: &a [*a]",
            b"&a {name: x, run: *a}",
            b"a: 2024-99-99",
            b"{",
            b"a: b: c",
            b"- " * 300,
        ]
    )
    return Wrong("no experiment", draw(st.binary(max_size=60) | tree | odd))


@st.composite
def wrong_override(draw: st.DrawFn) -> Wrong:
    """--set with anything."""
    value = draw(words() | st.sampled_from(["2024-99-99", "[", "{a: 1, a: 2}", "!!python/none", "&a [*a]", "[" * 500]))
    path = draw(st.sampled_from(["train.seed", "train.learning_rate", "execution.workers", "data.eval_pairs"]))
    name = draw(st.sampled_from([f"{path}={value}", value, f"={value}", f"{path}.={value}", f"{path}.x={value}"]))
    return Wrong("wrong --set", _experiment(), ("--set", name), named="--set" if "=" not in name else "")


WRONG = st.one_of(
    wrong_field(), wrong_field(), wrong_field(), unknown_field(), unknown_name(), wrong_section(), wrong_grid(),
    no_experiment(), wrong_override(),
)  # fmt: skip


# -- running it


@contextlib.contextmanager
def working_directory(path: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(path)
    try:
        yield
    finally:
        os.chdir(before)


def run(arguments: Sequence[str]) -> tuple[Any, str, str]:
    """The program with these arguments: exit code, stdout, stderr."""
    out, err = io.StringIO(), io.StringIO()
    code: Any = 0
    with (
        mock.patch.object(sys, "argv", ["rcray", *arguments]),
        mock.patch("typer.main.get_command", return_value=PARSER),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            cli.main()
        except SystemExit as end:
            code = end.code or 0
    return code, out.getvalue(), err.getvalue()


def check(wrong: Wrong, command: str, folder: Path, tally: Tally) -> None:
    """Refused as it should be: by the safe command first, since another would start what it accepts."""
    (folder / "bad.yaml").write_bytes(wrong.content)
    for name in dict.fromkeys((SAFE, command)):
        code, out, err = run([name, "bad.yaml", *wrong.arguments])
        lines = err.splitlines()
        assert code == EXIT_USAGE, f"exit code {code}, not {EXIT_USAGE}: {err[-2000:]}"
        assert out == "", out
        assert "Traceback" not in err
        assert wrong.named in err, f"{wrong.named!r} is not named: {err[:2000]}"
        assert len(lines) <= LINES and len(err) <= LINES * WIDTH, f"{len(lines)} lines, {len(err)} characters"
        assert all(line.isprintable() for line in err.split("\n")), f"control characters reach the terminal: {err!r}"
        assert [path.name for path in folder.iterdir()] == ["bad.yaml"], "something was left behind"
    tally.most_lines = max(tally.most_lines, len(lines))
    tally.most_characters = max(tally.most_characters, len(err))
    key = (wrong.content, wrong.arguments)
    if key not in tally.seen:
        tally.seen.add(key)
        tally.kinds[wrong.kind] += 1


def _settings(examples: int) -> settings:
    return settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
    )


def refuse_configs(examples: int, folder: Path, tally: Tally) -> None:
    """So many drawn configurations."""

    @_settings(examples)
    @given(WRONG, st.sampled_from([*COMMANDS, *[SAFE] * len(COMMANDS)]))
    def each(wrong: Wrong, command: str) -> None:
        check(wrong, command, folder, tally)

    with working_directory(folder):
        each()


# -- wrong rows

GOOD = {"prompt": "What is it?", "chosen": "This.", "rejected": "That."}
_ANSWER = st.sampled_from(["chosen", "rejected"])
_NO_TEXT = st.integers() | st.floats(allow_nan=False) | st.booleans() | st.dictionaries(st.text(max_size=3), st.none())


def _row(**changes: Any) -> bytes:
    return json.dumps({**GOOD, **changes}).encode()


def _blank() -> st.SearchStrategy[str]:
    return st.text(" \t\n\r\u00a0\u2003", max_size=5)


def _without(name: str) -> bytes:
    return json.dumps({key: value for key, value in GOOD.items() if key != name}).encode()


_SOME_TEXT = st.text("abc é", min_size=1, max_size=9).filter(str.strip)
_MESSAGE = st.dictionaries(st.sampled_from(["role", "content", "x"]), st.none() | st.text(max_size=4))
WRONG_ROWS: dict[str, st.SearchStrategy[bytes]] = {
    "no text": st.builds(lambda side, value: _row(**{side: value}), _ANSWER, _NO_TEXT),
    "null": _ANSWER.map(lambda side: _row(**{side: None})),
    "missing": st.sampled_from([*GOOD]).map(_without),
    "empty": st.builds(lambda side, text: _row(**{side: text}), _ANSWER, _blank()),
    "equal": _SOME_TEXT.map(lambda text: _row(chosen=text, rejected=text)),
    "surrogate": st.builds(lambda side: _row(**{side: "a\ud800b"}), st.sampled_from([*GOOD])),
    "no object": _json(st.none() | st.integers() | st.text(max_size=5))
    .filter(lambda value: not isinstance(value, dict))
    .map(lambda value: json.dumps(value).encode()),
    "no JSON": st.integers(1, 50).map(lambda cut: _row()[:-cut]),
    "no UTF-8": st.integers(20, 50).map(lambda place: _row()[:place] + b"\xff" + _row()[place:]),
    "deep": st.integers(2000, 60000).map(lambda depth: b'{"prompt": ' + b"[" * depth),
    "messages": st.builds(
        lambda side, turns: _row(**{side: turns}),
        _ANSWER,
        st.lists(_MESSAGE, max_size=3),
    ),
}  # fmt: skip


def refuse_rows(examples: int, folder: Path, tally: Tally) -> None:
    """So many wrong rows, each at a drawn line of a file of good ones."""
    path = folder / "rows.jsonl"

    @_settings(examples)
    @given(
        st.sampled_from([*WRONG_ROWS]).flatmap(lambda kind: st.tuples(st.just(kind), WRONG_ROWS[kind])),
        st.integers(0, 3),
    )
    def each(drawn: tuple[str, bytes], before: int) -> None:
        kind, row = drawn
        path.write_bytes(b"\n".join([*[_row()] * before, row, _row()]) + b"\n")
        try:
            check_pairs(DataConfig(name=str(path), bad_rows="fail"))
        except DataError as error:
            message = str(error)
            assert error.exit_code == EXIT_USAGE
        else:
            raise AssertionError(f"accepted: {row[:200]!r}")
        assert f"{path}:{before + 1}:" in message and "fix:" in message
        assert len(message) <= LINES * WIDTH and len(message.splitlines()) <= LINES
        check_pairs(DataConfig(name=str(path)))  # counted and left out, where that is asked for
        tally.rows[kind] += 1

    each()


def campaign(configs: int, rows: int) -> Tally:
    """Both parts, in a directory of their own."""
    tally = Tally()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        inner = Path(folder) / "configs"
        inner.mkdir()
        refuse_configs(configs, inner, tally)
        refuse_rows(rows, Path(folder), tally)
    tally.seconds = time.perf_counter() - started
    return tally


if __name__ == "__main__":
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 2500
    print(campaign(wanted, wanted // 5).describe())
