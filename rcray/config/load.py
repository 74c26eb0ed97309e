"""From YAML text and `--set` overrides to validated configs, with errors that name the field and the fix."""

import copy
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from rcray.config.objectives import BY_NAME, Custom, objective_tag
from rcray.config.schema import Experiment, RunConfig
from rcray.errors import ConfigError, did_you_mean

_SHOWN_ERRORS = 8  # the whole message should fit one screen
_SHOWN_CHARS = 80  # of an offending value


def read_yaml(path: Path) -> dict[str, Any]:
    """Reads one YAML mapping; plain data only, so a file cannot run code."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        near = sorted(p.name for p in path.parent.glob("*.y*ml")) if path.parent.is_dir() else []
        hint = f"files there: {', '.join(near)}" if near else "check the path"
        raise ConfigError(f"{path}: no such file", fix=hint) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read as text: {error}", fix="give a UTF-8 YAML file") from None
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        kind = "empty" if content is None else f"a {type(content).__name__}"
        raise ConfigError(f"{path}: expected a mapping of fields, the file is {kind}", fix="start with `name: ...`")
    return content


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `base` with `over` on top; mappings are merged, everything else is replaced."""
    merged = dict(copy.deepcopy(dict(base)))
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, dict) and isinstance(value, Mapping) else value
    return merged


def load_experiment(path: Path) -> Experiment:
    """Reads an experiment file, with at most one level of `base: other.yaml` below it."""
    content = read_yaml(path)
    if "base" in content:
        base_path = path.parent / str(content.pop("base"))
        base = read_yaml(base_path)
        if "base" in base:
            raise ConfigError(
                f"{base_path}: is itself built on {base['base']!r}; `base` goes one level deep",
                fix=f"name {base['base']!r} directly, or copy the settings you need",
            )
        # Settings are inherited; the cells to make of them are replaced when the file has its own.
        shared = {**base, "run": merge(base.get("run") or {}, content.get("run") or {})}
        content = {**shared, **{key: value for key, value in content.items() if key != "run"}}
    try:
        return Experiment.model_validate(content)
    except ValidationError as error:
        raise explain(error, Experiment, content, str(path)) from None


def set_path(target: dict[str, Any], path: str, value: Any) -> None:
    """Sets a dotted path; a section written in its short form (`objective: dpo`) is opened first."""
    *sections, field = path.split(".")
    for section in sections:
        inner = target.get(section)
        if isinstance(inner, str):
            inner = {"name": inner}
        elif isinstance(inner, bool):
            inner = {"enabled": inner}
        target[section] = inner = dict(inner) if isinstance(inner, dict) else {}
        target = inner
    target[field] = value


def parse_overrides(pairs: Iterable[str]) -> dict[str, Any]:
    """Parses `--set objective.beta=0.2` items; values are YAML scalars or flow collections."""
    overrides: dict[str, Any] = {}
    for item in pairs:
        path, sign, text = item.partition("=")
        if not sign or not all(part for part in path.strip().split(".")):
            raise ConfigError(f"--set {item!r}: expected FIELD=VALUE", fix="for example --set objective.beta=0.2")
        try:
            overrides[path.strip()] = yaml.safe_load(text)
        except yaml.YAMLError:
            raise ConfigError(f"--set {item!r}: the value is not valid YAML", fix="quote it") from None
    return overrides


def build_run(settings: Mapping[str, Any], overrides: Mapping[str, Any], where: str) -> RunConfig:
    """Validates one run: settings, then dotted overrides on top."""
    content = copy.deepcopy(dict(settings))
    for path, value in overrides.items():
        set_path(content, path, copy.deepcopy(value))
    try:
        return RunConfig.model_validate(content)
    except ValidationError as error:
        raise explain(error, RunConfig, content, where) from None


def explain(error: ValidationError, model: type[BaseModel], given: Any, where: str) -> ConfigError:
    """Turns pydantic's report into one line per field: the field, the value, what is allowed."""
    problems = error.errors(include_url=False)
    lines = [_explain_one(dict(problem), model, given) for problem in problems[:_SHOWN_ERRORS]]
    if len(problems) > _SHOWN_ERRORS:
        lines.append(f"... and {len(problems) - _SHOWN_ERRORS} more")
    return ConfigError(f"{where}: " + ("\n  ".join(["not valid", *lines])))


def _explain_one(problem: dict[str, Any], model: type[BaseModel], given: Any) -> str:
    location = tuple(problem["loc"])
    parts = [part for i, part in enumerate(location) if not (i == 1 and location[0] == "objective")]
    field = ".".join(map(str, parts)) or "the whole"
    kind, value = problem["type"], _shown(problem.get("input"))
    if kind == "missing":
        return f"{field}: is missing and has no default"
    if kind == "extra_forbidden":
        return f"{field}: unknown field{did_you_mean(str(parts[-1]), _known_fields(model, location[:-1]))}"
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        name = given.get("objective", {}) if isinstance(given, dict) else {}
        name = name.get("name", "") if isinstance(name, dict) else name
        return f"{field}.name: unknown objective {name!r}{did_you_mean(str(name), BY_NAME)}"
    if kind == "literal_error":
        allowed = [str(option) for option in _literals(model, location)]
        return f"{field}: {value} is not allowed{did_you_mean(str(problem.get('input')), allowed)}"
    message = problem["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    if kind == "value_error":
        return f"{field}: {message}" if parts else message
    return f"{field}: {value} is not allowed; it should be {message}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"


def _model_at(model: type[BaseModel], location: tuple[Any, ...]) -> type[BaseModel] | None:
    current: type[BaseModel] | None = model
    for i, part in enumerate(location):
        if current is None:
            return None
        if part == "objective" and i == 0:
            tag = str(location[1]) if len(location) > 1 else ""
            return BY_NAME.get(tag, Custom)
        field = current.model_fields.get(str(part))
        annotation = field.annotation if field else None
        current = annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
    return current


def _known_fields(model: type[BaseModel], location: tuple[Any, ...]) -> list[str]:
    parent = _model_at(model, location)
    return list(parent.model_fields) if parent else []


def _literals(model: type[BaseModel], location: tuple[Any, ...]) -> list[Any]:
    parent = _model_at(model, location[:-1])
    field = parent.model_fields.get(str(location[-1])) if parent else None
    return list(get_args(field.annotation)) if field else []


__all__ = [
    "build_run",
    "load_experiment",
    "merge",
    "objective_tag",
    "parse_overrides",
    "read_yaml",
    "set_path",
]
