"""The table of the paper's items in experiments/README.md is the generated one, whole, and its commands exist."""

import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from rcray.aggregate.items import items_markdown, paper_items
from rcray.aggregate.paper import BENCHMARK_TABLES
from rcray.cli import app
from rcray.config import load_experiment

ROOT = Path(__file__).parents[2]
ITEMS = paper_items()


def test_the_table_in_the_readme_is_the_generated_one():
    text = (ROOT / "experiments" / "README.md").read_text()
    assert items_markdown() in text, "python -m rcray.aggregate.items prints it"


def test_no_row_is_empty_and_none_stands_twice():
    assert all(cell.strip() for item in ITEMS for cell in (item.what, item.run, item.where, item.differs))
    assert len({item.what for item in ITEMS}) == len(ITEMS)


def test_every_published_grid_and_table_has_a_row():
    published = {
        path.name
        for path in (ROOT / "experiments").glob("*.yaml")
        if load_experiment(path).run.get("fidelity") == "official"
    }
    assert (
        published == {name for item in ITEMS for name in re.findall(r"experiments/(\S+\.yaml)", item.run)} & published
    )
    assert {f"tables/{spec.name}.md" for spec in BENCHMARK_TABLES} <= {item.where for item in ITEMS}


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.what)
def test_its_command_parses_and_its_files_are_there(item):
    name, *arguments = shlex.split(item.run)[1:]
    command = get_command(app).commands[name]
    command.make_context(name, arguments, resilient_parsing=False)
    for file in re.findall(r"(?:experiments|rcray)/[\w/.-]+\.(?:yaml|py)", f"{item.run} {item.where}"):
        assert (ROOT / file).is_file()
