"""The table of docs/trl.md from TRL's names to ours says what both packages say."""

import dataclasses
import re

import pytest

from rcray.config import RunConfig
from rcray.records.columns import METRICS
from tests.contract.pages import ROOT, page

OURS_BY_HAND = {"objective": "dpo"}  # the name stands for the section


def rows():
    text = page("trl.md").partition("## Names, if you come from TRL")[2]
    lines = text.partition("\n## ")[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| `")]
    return [(re.findall(r"`([^`]+)`", theirs), default, re.findall(r"`([^`]+)`", here), value)
            for theirs, default, here, value in cells]  # fmt: skip


def ours(field):
    value = RunConfig().model_dump()
    for part in field.split("."):
        value = value[part]
    return str(OURS_BY_HAND.get(field, value))


def default_of(field):
    """A list of one, as `loss_type` is there, as what is in it."""
    default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    return default[0] if isinstance(default, list) and len(default) == 1 else default


def test_the_readmes_names_are_among_them():
    table = (ROOT / "README.md").read_text().partition("| TRL's name |")[2].partition("\n\n")[0]
    short = [re.findall(r"`([^`]+)`", line) for line in table.splitlines() if line.startswith("| `")]
    known = {name: {*theirs, *here} for theirs, _, here, _ in rows() for name in theirs}
    assert len(short) == 4
    for name, *here in short:
        assert set(here) <= known[name], name


def test_our_fields_and_defaults():
    table = rows()
    assert len(table) == 19
    for _, _, here, value in table:
        if value and value != "–":
            assert ours(here[0]) == value, here[0]
    columns = {name for theirs, default, here, _ in table if not default for name in here}
    assert columns - {"likelihood: sum", "preference/accuracy"} <= set(METRICS)


def test_trls_names_and_defaults():
    config = pytest.importorskip("trl").DPOConfig
    fields = {field.name: default_of(field) for field in dataclasses.fields(config)}
    settings = [(theirs[0], default) for theirs, default, *_ in rows() if default]
    assert len(settings) == 15
    for name, default in settings:
        assert str(fields[name]) == default, name
