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


def asked_by_text(node):
    """`getattr(thing, "_name")` and its like: the thing and the name."""
    if not isinstance(node, ast.Call) or ast.unparse(node.func) not in ("getattr", "hasattr", "setattr"):
        return None
    thing, name = node.args[:2]
    private = isinstance(name, ast.Constant) and isinstance(name.value, str) and is_private(name.value)
    return (thing, name.value) if private else None


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
        elif asked := asked_by_text(node):
            thing, attribute = asked
            root, parts = dotted(thing)
            if attribute not in own:
                private.add(".".join([known.get(root) or root, *parts, attribute]))
    # `torch._C` is said by `torch._C._dispatch_key_parse`
    return {name for name in private if not any(other.startswith(f"{name}.") for other in private)}


def table(kind="private"):
    text = (ROOT / "CONTRIBUTING.md").read_text().partition(f"| {kind} name |")[2].partition("\n\n")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| `")
    ]
    return {(where.strip("`"), name.strip("`")): guard for name, where, _, guard in rows}


def test_the_list_is_the_one_that_the_code_has():
    used = {(str(path.relative_to(ROOT)), name) for path in PACKAGE.rglob("*.py") for name in reached(path.read_text())}
    assert used == set(table())


def test_what_no_underscore_tells_is_where_the_list_says():
    for where, name in table("undocumented"):
        assert name in (ROOT / where).read_text(), (where, name)


def with_helpers(path):
    """A test's text, and that of the helpers of ours that it imports."""
    text = path.read_text()
    helpers = [ROOT / f"{name.replace('.', '/')}.py" for name in re.findall(r"^from (tests[.\w]*) import", text, re.M)]
    return "\n".join([text, *(helper.read_text() for helper in helpers if helper.is_file())])


def speaks_of(path, where, name):
    """Whether a test names what is reached into, the module of ours that reaches for it, or all of this list."""
    if path.name == "test_reached_names.py":
        return True
    module = where.removesuffix(".py").replace("/", ".")
    package, _, last = module.rpartition(".")
    words = [re.escape(name.rpartition(".")[2]), re.escape(module), rf"{re.escape(package)} import .*\b{last}"]
    if package.count(".") == 2:  # one tool in several files, asked as a whole
        words.append(re.escape(package))
    text = with_helpers(path)
    return any(re.search(rf"\b{word}\b", text) for word in words)


def test_every_one_has_guards_that_are_there_and_speak_of_it():
    silent = []
    for (where, name), guard in (table() | table("undocumented")).items():
        files = [ROOT / file for file in re.findall(r"`(tests/[\w/]+\.py)`", guard)]
        assert files and all(file.is_file() for file in files), (where, name)
        silent += [(name, file.name) for file in files if not speaks_of(file, where, name)]
    assert silent == []


def test_a_guard_that_does_not_speak_of_it_is_seen():
    where, name = "rcray/models/precision.py", "torch.ops.mkldnn._is_mkldnn_bf16_supported"
    assert speaks_of(ROOT / "tests/unit/test_loop_settings.py", where, name)
    assert not speaks_of(ROOT / "tests/unit/test_float16.py", where, name)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from ray._private import worker", {"ray._private.worker"}),
        ("import ray\nray._private.worker.x()", {"ray._private"}),
        ("import ray\ndef f():\n    return ray.util._tool", {"ray.util._tool"}),
        ("from ray.train.torch.config import _TorchBackend", {"ray.train.torch.config._TorchBackend"}),
        ("class A(B):\n    def _save(self):\n        super()._save()", {"super()._save"}),
        ("node._hidden()", {"node._hidden"}),
        ("getattr(node.place, '_hidden', None)", {"node.place._hidden"}),
        ("hasattr(node, 'shown') and getattr(node, '_own') and getattr(node, name)", set()),
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
