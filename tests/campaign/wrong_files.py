"""Experiment files that are wrong in one way or another, drawn, and what the refusal has to name."""

import re
from dataclasses import dataclass
from typing import Any

import yaml
from hypothesis import strategies as st

from tests.campaign.wrong_values import OUTER, SECTIONS, fields, trees, words, wrong_values

SEARCH = {"method": "random", "space": {"train.learning_rate": {"low": 1e-6, "high": 1e-3}}}


@dataclass(frozen=True)
class Wrong:
    """A wrong input: the file's bytes, arguments beside it, and what the message has to name."""

    kind: str
    content: bytes
    arguments: tuple[str, ...] = ()
    named: str = "bad.yaml"


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


@st.composite
def no_experiment(draw: st.DrawFn) -> Wrong:
    """Bytes, text or trees that are nothing like an experiment."""
    leaves = st.none() | st.booleans() | st.integers() | st.floats() | words()
    tree = trees(leaves).map(lambda value: yaml.safe_dump(value, allow_unicode=True).encode())
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
