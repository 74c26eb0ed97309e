"""Values that a field must refuse, derived from the schema of the configuration: new fields are covered by being there.

A field's JSON schema says what it takes; the strategies here draw what it does not. What fields accept beyond their
schema (short forms) is listed in `ALSO`, so that nothing acceptable is called wrong.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from hypothesis import strategies as st
from pydantic import BaseModel

from rcray.config.calibration import CalibrationConfig
from rcray.config.data import DataConfig
from rcray.config.evaluation import EvaluationConfig
from rcray.config.model import ModelConfig
from rcray.config.objectives import BUILT_IN
from rcray.config.search import SearchConfig
from rcray.config.training import ExecutionConfig, TrainConfig

#: Sections of `run`, by their path; an objective's depends on its name.
SECTIONS: dict[str, type[BaseModel]] = {
    "model": ModelConfig,
    "data": DataConfig,
    "calibration": CalibrationConfig,
    "train": TrainConfig,
    "execution": ExecutionConfig,
}
#: Sections of an experiment beside `run`.
OUTER: dict[str, type[BaseModel]] = {"evaluation": EvaluationConfig, "search": SearchConfig}

#: Taken beside what the schema says: a lone benchmark, a pair of estimators.
ALSO = {"evaluation.benchmarks": {"string"}, "calibration.scores": {"array"}}
_BOOLEAN_WORDS = {"0", "1", "y", "n", "t", "f", "yes", "no", "on", "off", "true", "false"}


@dataclass(frozen=True)
class Field:
    """A field with what its schema says; `objective` where the path is one of that objective's."""

    path: str
    schema: dict[str, Any]
    definitions: dict[str, Any]
    objective: str | None = None


@cache
def fields() -> list[Field]:
    """Every leaf of every section."""
    leaves = [leaf for path, model in {**SECTIONS, **OUTER}.items() for leaf in _leaves(path, model)]
    for params in BUILT_IN:
        name = params.model_fields["name"].default
        leaves += [
            Field(leaf.path, leaf.schema, leaf.definitions, name)
            for leaf in _leaves("objective", params)
            if leaf.path != "objective.name"
        ]
    return leaves


def _leaves(path: str, model: type[BaseModel]) -> Iterator[Field]:
    schema = model.model_json_schema()
    yield from _walk(path, schema, schema.get("$defs", {}))


def _walk(path: str, schema: dict[str, Any], definitions: dict[str, Any]) -> Iterator[Field]:
    for name, inner in schema["properties"].items():
        target = definitions[inner["$ref"].rpartition("/")[2]] if "$ref" in inner else inner
        if "properties" in target:
            yield from _walk(f"{path}.{name}", target, definitions)
        else:
            yield Field(f"{path}.{name}", inner, definitions)


def wrong_values(field: Field) -> st.SearchStrategy[Any]:
    """Values this field does not take."""
    options = [option for option in field.schema.get("anyOf", [field.schema])]
    types = {_type(option) for option in options} | ALSO.get(field.path, set())
    numeric = [option for option in options if _type(option) in ("integer", "number")]
    drawn: list[st.SearchStrategy[Any]] = []
    if "null" not in types:
        drawn.append(st.none())
    if "array" not in types:
        drawn.append(st.lists(st.integers() | st.text(max_size=4), max_size=3))
    if "object" not in types:
        drawn.append(st.dictionaries(st.text("abc", min_size=1, max_size=4), st.integers(), max_size=3))
    if numeric and not types & {"boolean", "string"}:
        drawn += [st.booleans(), st.just(math.nan), st.just(math.inf), st.just(-math.inf), words()]
        drawn += [_outside(option) for option in numeric]
    if types <= {"string", "null"} and not any("enum" in option or "const" in option for option in options):
        drawn.append(st.integers() | st.floats(allow_nan=False) | st.booleans())
    if types <= {"boolean", "null"}:
        drawn += [words().filter(lambda text: text.lower() not in _BOOLEAN_WORDS), st.integers(min_value=2)]
    allowed = [
        value for option in options for value in option.get("enum", [option["const"]] if "const" in option else [])
    ]
    if allowed:
        drawn.append(words().filter(lambda text: text not in map(str, allowed)))
    return st.one_of(drawn)


def _type(option: dict[str, Any]) -> str:
    if "$ref" in option:
        return "object"
    if "enum" in option or "const" in option:
        return "enum"
    return str(option.get("type", "any"))


def _outside(option: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Beyond a bound; for whole numbers also between two of them."""
    beyond: list[st.SearchStrategy[Any]] = []
    whole = _type(option) == "integer"
    if whole:
        beyond.append(st.integers(-100, 100).map(lambda number: number + 0.5))
    numbers = st.integers if whole else lambda low=None, high=None: st.floats(low, high, allow_nan=False)
    if "minimum" in option or "exclusiveMinimum" in option:
        edge = option.get("exclusiveMinimum", option.get("minimum", 0))
        below = edge if "exclusiveMinimum" in option else edge - 1
        beyond.append(numbers(None, int(below) if whole else below))
    if "maximum" in option or "exclusiveMaximum" in option:
        edge = option.get("exclusiveMaximum", option.get("maximum", 0))
        above = edge if "exclusiveMaximum" in option else edge + 1
        beyond.append(numbers(int(above) if whole else above, None))
    return st.one_of(beyond) if beyond else st.nothing()


def words() -> st.SearchStrategy[str]:
    """Text that is no number: plain words, odd characters, very long ones, control characters."""
    text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.text("xyz\x1b[2J\n\t", max_size=6)
    long = st.integers(200, 20_000).map(lambda size: "z" * size)
    return (text | long).map(lambda word: f"q{word}").filter(_no_number)


def _no_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return True
    return False


def trees(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Lists and mappings of such leaves, as JSON and YAML have them."""
    return st.recursive(leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words(), inner, max_size=4))
