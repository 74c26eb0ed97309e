"""One name means one thing: a public function, class or alias is defined in one module of the package."""

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "rcray"

#: Functions of two modules, and why neither gives way.
FUNCTIONS = {
    "estimate": "of a mean over seeds, of what a run costs",
    "render": "a dialogue as tokens, a starter's text",
}
#: Records that two packages have for themselves, where the package says of what.
RECORDS = {
    "Answer", "Answers", "Asked", "Batch", "Column", "Comparison", "Finding", "Interval", "Joined", "Measured",
    "Measurement", "Number", "Origin", "Progress", "Reader", "Report", "Row", "Rows", "Say", "Score", "Seen", "Subject",
    "Tally", "Training", "Verdict", "Watch",
}  # fmt: skip


def public_names(module: ast.Module) -> Iterator[str]:
    """Functions, classes, and aliases of types, which are spelled as classes are."""
    for node in module.body:
        names = [node.name] if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else []
        if isinstance(node, ast.Assign):
            names = [t.id for t in node.targets if isinstance(t, ast.Name) and t.id[0].isupper() and not t.id.isupper()]
        yield from (name for name in names if not name.startswith("_"))


def defined_twice() -> dict[str, list[str]]:
    """Names by the modules that define them. A command has the name of what it calls."""
    where: dict[str, set[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if not name.startswith("cli/"):
            for defined in public_names(ast.parse(path.read_text())):
                where.setdefault(defined, set()).add(name)
    return {name: sorted(modules) for name, modules in where.items() if len(modules) > 1}


def test_a_name_is_defined_once():
    twice = defined_twice()
    new = {name: modules for name, modules in twice.items() if name not in RECORDS | FUNCTIONS.keys()}
    assert new == {}, "another name, or one definition for both"
    assert (RECORDS | FUNCTIONS.keys()) <= twice.keys(), "take what is defined once off the list"
