"""From YAML text and `--set` overrides to validated configs, with errors that name the field and the fix."""

import contextlib
import copy
import reprlib
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from rcray.config.bundled import bundled_experiments, find_experiment
from rcray.config.objectives import BY_NAME, Custom
from rcray.config.objectives.names import nearest_name
from rcray.config.schema import Experiment, RunConfig, open_short_forms
from rcray.errors import ConfigError, did_you_mean

_SHOWN_ERRORS = 8  # the whole message should fit one screen
_SHOWN_CHARS = 80  # of an offending value
_LINE_CHARS = 400  # of one error: the names of all objectives fit
_SHOWN_FILES = 8  # beside one that is missing, the nearest names first
_LARGEST_FILE = 100_000  # nodes, aliases written out: the largest grid is far below, a YAML bomb far above

_DEEPEST_QUICK = 2_000  # levels

_short = reprlib.Repr()  # looks at a part of a value only: one of many aliases would take for ever to write out
_short.maxlevel, _short.maxstring, _short.maxother, _short.maxlong = 3, 4 * _SHOWN_CHARS, 4 * _SHOWN_CHARS, _SHOWN_CHARS
_short.maxlist = _short.maxtuple = _short.maxdict = _short.maxset = 12


class _PlainLoader(yaml.SafeLoader):
    """Plain data only, so a file cannot run code; a field written twice is refused, not quietly decided.

    So is an alias inside what it stands for, and a file that its aliases make enormous.
    """

    def get_single_node(self) -> yaml.Node | None:
        return _checked(super().get_single_node())  # type: ignore[no-untyped-call]


class _QuickLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """The same in C, where libyaml is there: ten times as fast, but it knows no bottom when it descends."""

    def get_single_node(self) -> yaml.Node | None:
        return _checked(super().get_single_node())


def _checked(node: yaml.Node | None) -> yaml.Node | None:
    known: dict[int, int] = {}
    if node is not None and _size(node, known) > _LARGEST_FILE:
        raise yaml.MarkedYAMLError(problem=f"more than {_LARGEST_FILE} values", problem_mark=node.start_mark)
    return node


def _size(node: yaml.Node, known: dict[int, int]) -> int:
    """Values in a node with its aliases written out; a node that contains itself has no end."""
    if isinstance(node, yaml.ScalarNode):
        return 1
    if id(node) in known:
        if not known[id(node)]:
            raise yaml.MarkedYAMLError(problem="an alias inside what it stands for", problem_mark=node.start_mark)
        return known[id(node)]
    known[id(node)] = 0  # not known yet: whoever meets this is inside
    if isinstance(node, yaml.MappingNode):
        _check_keys(node)
    inner = node.value if isinstance(node, yaml.SequenceNode) else [part for pair in node.value for part in pair]
    known[id(node)] = 1 + sum(_size(part, known) for part in inner)
    return known[id(node)]


def _check_keys(node: yaml.MappingNode) -> None:
    seen: set[str] = set()
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode):
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"{key.value!r} is given twice", problem_mark=key.start_mark)
            seen.add(key.value)


def _parse_yaml(text: str) -> Any:
    """Plain data; ValueError says what is wrong with it."""
    # No deeper than it has openings, and a level of indentation takes a column.
    if sum(map(text.count, "[{-?")) + max(map(len, text.splitlines()), default=0) < _DEEPEST_QUICK:
        with contextlib.suppress(yaml.YAMLError, ValueError, RecursionError):  # the other one says what is wrong
            return yaml.load(text, _QuickLoader)
    try:
        return yaml.load(text, _PlainLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # a bad date and a deep nest are Python's errors
        raise ValueError(shortened(" ".join(str(error).split()), 3 * _SHOWN_CHARS)) from None


def read_yaml(path: Path) -> dict[str, Any]:
    """Reads one YAML mapping."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file", fix=_nearby(path)) from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: is a directory, not an experiment", fix=_nearby(path / "x.yaml")) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as text: {error}", fix="give a UTF-8 YAML file") from None
    try:
        content = _parse_yaml(text)
    except ValueError as error:
        raise ConfigError(f"{path}: not valid YAML: {error}") from None
    if not isinstance(content, dict):
        kind = "empty" if content is None else f"a {type(content).__name__}"
        raise ConfigError(f"{path}: expected a mapping of fields, the file is {kind}", fix="start with `name: ...`")
    return content


def to_yaml(model: BaseModel) -> str:
    """A resolved configuration as the text of its file."""
    return yaml.safe_dump(model.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `base` with `over` on top; mappings are merged, everything else is replaced."""
    merged = dict(copy.deepcopy(dict(base)))
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, dict) and isinstance(value, Mapping) else value
    return merged


def load_experiment(path: Path) -> Experiment:
    """Reads an experiment, a file or one that ships by name; at most one level of `base: other.yaml` is below it."""
    path = find_experiment(path)
    content = read_yaml(path)
    if "base" in content:
        name = content.pop("base")
        if not isinstance(name, str):
            raise ConfigError(f"{path}: base: {shown(name)} is not a file name", fix="give the path of one YAML file")
        base_path = path.parent / name
        base = read_yaml(base_path)
        if "base" in base:
            raise ConfigError(
                f"{base_path}: is itself built on {base['base']!r}; `base` goes one level deep",
                fix=f"name {base['base']!r} directly, or copy the settings you need",
            )
        for source, run in ((base_path, base.get("run")), (path, content.get("run"))):
            if not isinstance(run or {}, dict):
                raise ConfigError(f"{source}: run: {shown(run)} is not a mapping of fields")
        # Settings are inherited; the cells to make of them are replaced when the file has its own. The base's short
        # forms are opened, so that `objective: {beta: 0.2}` on top of `objective: cpo` is still CPO.
        shared = {**base, "run": merge(open_short_forms(base.get("run") or {}), content.get("run") or {})}
        content = {**shared, **{key: value for key, value in content.items() if key != "run"}}
    try:
        experiment = Experiment.model_validate(content)
    except ValidationError as error:
        raise explain(error, Experiment, content, str(path)) from None
    return experiment.model_copy(update={"evaluation": experiment.evaluation.beside(path.parent)})


def set_path(target: dict[str, Any], path: str, value: Any) -> None:
    """Sets a dotted path; a section written in its short form (`objective: dpo`) is opened first."""
    *sections, field = path.split(".")
    for section in sections:
        inner = open_short_forms({section: target.get(section)})[section]
        if not isinstance(inner, dict | None):
            said = f"{path}: {section} is {shown(inner)}, a section is a mapping"
            raise ConfigError(said, fix=f"write {section}: {{...}} or leave it out")
        target[section] = target = dict(inner or {})
    target[field] = value


def set_paths(target: dict[str, Any], values: Mapping[str, Any]) -> None:
    """Sets dotted paths, sections before the fields in them: the order they are written in does not matter."""
    for path in sorted(values, key=lambda path: path.count(".")):
        set_path(target, path, copy.deepcopy(values[path]))


def parse_overrides(pairs: Iterable[str]) -> dict[str, Any]:
    """Parses `--set objective.beta=0.2` items; values are YAML scalars or flow collections."""
    overrides: dict[str, Any] = {}
    for item in pairs:
        path, sign, text = item.partition("=")
        if not sign or not all(part for part in path.strip().split(".")):
            raise ConfigError(f"--set {shown(item)}: expected FIELD=VALUE", fix="for example --set objective.beta=0.2")
        try:
            overrides[path.strip()] = _parse_yaml(text)
        except ValueError:
            raise ConfigError(f"--set {shown(item)}: the value is not valid YAML", fix="quote it") from None
    return overrides


def build_run(settings: Mapping[str, Any], overrides: Mapping[str, Any], where: str) -> RunConfig:
    """Validates one run: settings, then dotted overrides on top."""
    content = copy.deepcopy(dict(settings))
    set_paths(content, overrides)
    try:
        return RunConfig.model_validate(content)
    except ValidationError as error:
        raise explain(error, RunConfig, content, where) from None


def explain(error: ValidationError, model: type[BaseModel], given: Any, where: str) -> ConfigError:
    """Turns pydantic's report into one line per field: the field, the value, what is allowed."""
    problems = error.errors(include_url=False)
    lines = [_fitted(_explain_one(dict(problem), model, given)) for problem in problems[:_SHOWN_ERRORS]]
    if len(problems) > _SHOWN_ERRORS:
        lines.append(f"... and {len(problems) - _SHOWN_ERRORS} more")
    return ConfigError(f"{where}: " + ("\n  ".join(["not valid", *lines])))


def _explain_one(problem: dict[str, Any], model: type[BaseModel], given: Any) -> str:
    location = tuple(problem["loc"])
    parts = [part for i, part in enumerate(location) if not (i == 1 and location[0] == "objective")]
    field = ".".join(map(_named, parts)) or "the whole"
    kind, value = problem["type"], shown(problem.get("input"))
    if kind == "missing":
        return f"{field}: is missing and has no default"
    if kind == "extra_forbidden":
        return f"{field}: unknown field{did_you_mean(str(parts[-1]), _known_fields(model, location[:-1]))}"
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        name = given.get("objective", {}) if isinstance(given, dict) else {}
        name = name.get("name", "") if isinstance(name, dict) else name
        return f"{field}.name: unknown objective {shown(name)}{nearest_name(str(name))}"
    if kind == "literal_error":
        allowed = [str(option) for option in _literals(model, location)]
        return f"{field}: {value} is not allowed{did_you_mean(str(problem.get('input')), allowed)}"
    message = problem["msg"].removeprefix("Value error, ")
    if kind == "value_error":
        return f"{field}: {message}" if parts else message
    if kind in ("model_type", "dict_type"):
        message = "it should be a mapping of fields"
    message = message.replace("Input should", "it should", 1).replace("String should", "it should", 1)
    return f"{field}: {value} is not allowed; {message}"


def _nearby(path: Path) -> str:
    there = sorted(p.name for p in path.parent.glob("*.y*ml")) if path.parent.is_dir() else []
    if (inside := path.parent / "experiments" / path.name).is_file():
        return f"did you mean {inside}?"
    if path.parent == Path() and not path.suffix and (bundled := bundled_experiments()):
        return f"give a file, or one that ships with rcray{did_you_mean(path.name, bundled)}"
    if not there:
        return "check the path; `rcray init FILE` writes an experiment to start from"
    near = get_close_matches(path.name, there, n=_SHOWN_FILES, cutoff=0.5)
    shown = [*near, *(name for name in there if name not in near)]
    return "files there: " + ", ".join(shown[:_SHOWN_FILES]) + (", …" if len(shown) > _SHOWN_FILES else "")


def shown(value: Any) -> str:
    """A value in a message: as Python writes it, and never much of it."""
    return shortened(_short.repr(value))


def shortened(text: str, length: int = _SHOWN_CHARS) -> str:
    """The text, or its beginning."""
    return text if len(text) <= length else text[: length - 1] + "…"


def _fitted(line: str) -> str:
    """The line, less the middle of a very long one: it opens with the field, and ends with what to do."""
    return line if len(line) <= _LINE_CHARS else f"{line[: _LINE_CHARS // 3]} … {line[-_LINE_CHARS // 2 :]}"


def _named(part: Any) -> str:
    """A field's name; one that would spoil the message is shown as a value."""
    text = str(part)
    return text if text.isprintable() and len(text) <= _SHOWN_CHARS else shown(text)


def _model_at(model: type[BaseModel], location: tuple[Any, ...]) -> type[BaseModel] | None:
    current: type[BaseModel] | None = model
    for i, part in enumerate(location):
        if current is None:
            return None
        if part == "objective" and i == 0:
            tag = str(location[1]) if len(location) > 1 else ""
            return BY_NAME.get(tag, Custom)
        field = current.model_fields.get(str(part))
        options = (field.annotation, *get_args(field.annotation)) if field else ()  # also of `SearchConfig | None`
        models = [option for option in options if isinstance(option, type) and issubclass(option, BaseModel)]
        current = models[0] if models else None
    return current


def _known_fields(model: type[BaseModel], location: tuple[Any, ...]) -> list[str]:
    parent = _model_at(model, location)
    return list(parent.model_fields) if parent else []


def _literals(model: type[BaseModel], location: tuple[Any, ...]) -> list[Any]:
    parent = _model_at(model, location[:-1])
    field = parent.model_fields.get(str(location[-1])) if parent else None
    return list(get_args(field.annotation)) if field else []
