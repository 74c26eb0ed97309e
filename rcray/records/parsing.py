"""From JSON to typed records. Fields that a file does not have get their defaults, those it has beyond are left out."""

from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

Record = TypeVar("Record")
_SHOWN = 40  # characters of a wrong value


def parser(kind: type[Record]) -> Callable[[Any], Record]:
    """A function that makes a record of what JSON says; it raises ValueError with one line about the first fault."""
    adapter = TypeAdapter(kind)

    def parse(content: Any) -> Record:
        try:
            return adapter.validate_python(content)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(map(str, first["loc"]))
            given = "" if first["type"] == "missing" else f", not {repr(first['input'])[:_SHOWN]}"
            raise ValueError(f"{place}: {first['msg']}{given}".removeprefix(": ")) from None

    return parse
