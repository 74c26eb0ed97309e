"""Private names of other packages that are reached into stand in CONTRIBUTING.md, each with the test that guards it."""

import ast
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "rcray"
#: Not private, for all their underscores; the standard library's own documentation has them.
DOCUMENTED = {"os._exit", "sys._getframe", "parts._replace"}


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def dotted(node):
    """`a.b.c` and the name it begins with; a call or an index ends it."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    root = node.id if isinstance(node, ast.Name) else "super()" if ast.unparse(node) == "super()" else ""
    return root, list(reversed(parts))


def defined(tree):
    """The names that a module defines: functions, classes, attributes, fields."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


OWN = {name for path in PACKAGE.rglob("*.py") for name in defined(ast.parse(path.read_text()))}


def reached(source, own=frozenset(OWN)):
    """Private names of others in a module, as they can be read there: imported ones in full."""
    tree = ast.parse(source)
    known, private, here = {}, set(), set(defined(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                known[alias.asname or alias.name.partition(".")[0]] = alias.name if alias.asname else ""
                private |= {alias.name} if any(map(is_private, alias.name.split("."))) else set()
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("rcray"):
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                known[alias.asname or alias.name] = full
                private |= {full} if any(map(is_private, full.split("."))) else set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            root, parts = dotted(node)
            name = ".".join([known.get(root) or root, *parts])
            mine = node.attr in (here if root in ("self", "cls") else own) and root != "super()"
            if not mine and name not in DOCUMENTED:
                private.add(name)
    # `torch._C` is said by `torch._C._dispatch_key_parse`
    return {name for name in private if not any(other.startswith(f"{name}.") for other in private)}


def table():
    text = (ROOT / "CONTRIBUTING.md").read_text().partition("| private name |")[2].partition("\n\n")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| `")
    ]
    return {(where.strip("`"), name.strip("`")): guard for name, where, _, guard in rows}


def test_the_list_is_the_one_that_the_code_has():
    used = {(str(path.relative_to(ROOT)), name) for path in PACKAGE.rglob("*.py") for name in reached(path.read_text())}
    assert used == set(table())


def test_every_one_has_a_guard_that_is_there():
    for (where, name), guard in table().items():
        files = re.findall(r"`(tests/[\w/]+\.py)`", guard)
        assert files and all((ROOT / file).is_file() for file in files), (where, name)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from ray._private import worker", {"ray._private.worker"}),
        ("import ray\nray._private.worker.x()", {"ray._private"}),
        ("import ray\ndef f():\n    return ray.util._tool", {"ray.util._tool"}),
        ("from ray.train.torch.config import _TorchBackend", {"ray.train.torch.config._TorchBackend"}),
        ("class A(B):\n    def _save(self):\n        super()._save()", {"super()._save"}),
        ("node._hidden()", {"node._hidden"}),
        ("from rcray.calibration.band import _logsumexp\nimport os\nos._exit(1)", set()),
        ("self._own = 1\nself._own\nother._own", set()),
        ("class A(B):\n    def f(self):\n        return self._metrics", {"self._metrics"}),
    ],
)
def test_the_scan_sees_what_it_should(source, expected):
    assert reached(source, {"_own"}) == expected


def test_what_is_reached_into_is_bounded_from_above():
    """A release that nobody has tried is not installed by itself."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    bounded = {Requirement(line).name for line in lines if "<" in str(Requirement(line).specifier)}
    assert {"ray", "trl", "lm-eval", "datasets", "torch"} <= bounded
