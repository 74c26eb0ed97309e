"""The table of the paper's items in experiments/README.md: whole, named as the tables are, its commands exist."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.main import get_command

from rcray.aggregate import published
from rcray.aggregate.paper import BENCHMARK_TABLES, RUNTIME_MODELS, RUNTIME_OBJECTIVES
from rcray.cli import app
from rcray.config import load_experiment
from rcray.config.models import model_title

ROOT = Path(__file__).parents[2]
README = (ROOT / "experiments" / "README.md").read_text()


@dataclass(frozen=True)
class Item:
    what: str
    run: str  # a command
    where: str  # a file of the report, or of the package
    differs: str


def items() -> list[Item]:
    _, _, section = README.partition("## Every item of the paper")
    rows = re.findall(r"^\| (.+) \| `(.+)` \| (.+) \| (.+) \|$", section.partition("\n## ")[0], re.MULTILINE)
    return [Item(*row) for row in rows]


ITEMS = items()


def test_the_table_has_all_nineteen_items():
    assert len(ITEMS) == 19


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


def test_rows_are_called_as_the_tables_are():
    by_place = {item.where: item for item in ITEMS}
    for spec in BENCHMARK_TABLES:
        item = by_place[f"tables/{spec.name}.md"]
        assert item.what == f"{'Table' if spec.axis == 'rc' else 'Ablation'}: {spec.title}"
        assert item.run == f"rcray sweep experiments/{spec.name}.yaml"
    models = ", ".join(map(model_title, RUNTIME_MODELS))
    runtime = f"Table: training duration, {len(RUNTIME_OBJECTIVES)} objectives on {models}"
    assert by_place["tables/runtime.md"].what == runtime
    judged = " and ".join(dict.fromkeys(rate.objective for rate in published.win_rates()))
    assert by_place["tables/alpaca-eval.md"].what == f"Text: AlpacaEval, {judged} with RC against without"
    for model in ("pythia-410m", "pythia-2.8b", "mistral-7b", "qwen2.5-7b"):
        title = f"Figures: dynamics of {model_title(model)}, entangled and disentangled objectives"
        assert by_place[f"figures/dynamics-{model}-*.svg"].what == title


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.what)
def test_its_command_parses_and_its_files_are_there(item):
    name, *arguments = shlex.split(item.run)[1:]
    command = get_command(app).commands[name]
    command.make_context(name, arguments, resilient_parsing=False)
    for file in re.findall(r"(?:experiments|rcray)/[\w/.-]+\.(?:yaml|py)", f"{item.run} {item.where}"):
        assert (ROOT / file).is_file()
