"""Imports point back along the data flow, light commands stay light, and nothing stops a cluster it did not start."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rcray.extras import EXTRAS

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "rcray"

#: From the first to the last; a layer imports itself and earlier ones.
LAYERS = (
    ("config",),
    ("data",),
    ("models",),
    ("objectives",),
    ("calibration",),
    ("integrations",),
    ("train",),
    ("sweep",),
    ("track",),
    ("evaluate",),
    ("aggregate",),
    ("diagnose",),
    ("pipeline", "follow", "follower", "sync", "progress", "starter", "export", "doctor", "cli", "__main__"),
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
#: For everybody, except config, which takes only errors.
SHARED = {
    "errors": set(),
    "extras": {"errors"},
    "faults": {"errors"},
    "secrets": set(),
    "files": {"errors"},
    "records": {"files"},
    "store": {"errors", "files", "records"},
}
ALL_EXTRAS = tuple(module for modules in EXTRAS.values() for module in modules)
HEAVY = ("torch", "ray", "mlflow", "transformers", "matplotlib")


def imported(tree: ast.AST) -> Iterator[str]:
    """Dotted names of every import, also inside functions; what only a type checker sees is left out."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for other in node.orelse:
                yield from imported(ast.Module([other], []))
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are written in full"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        else:
            yield from imported(node)


def layer_of(name: str) -> str | None:
    """`rcray.train.loop.Job` -> `train`; None for what is not ours, and for the bare package."""
    first, *rest = name.split(".")
    if first != "rcray" or not rest or rest[0].startswith("__"):
        return None
    return rest[0]


def violations(layer: str, source: str) -> list[str]:
    wrong = []
    for name in imported(ast.parse(source)):
        target = layer_of(name)
        if target is None or target == layer:
            continue
        if layer in SHARED:
            allowed = target in SHARED[layer]
        elif target in SHARED:
            allowed = layer != "config" or target == "errors"
        else:
            allowed = LEVEL[target] <= LEVEL[layer]
        if not allowed:
            wrong.append(name)
    return wrong


def modules() -> list[Path]:
    return sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def test_every_module_has_a_layer():
    assert {path.parts[0].removesuffix(".py") for path in modules()} == set(LEVEL) | set(SHARED)


@pytest.mark.parametrize("path", modules(), ids=str)
def test_imports_point_back(path):
    layer = path.parts[0].removesuffix(".py")
    assert violations(layer, (PACKAGE / path).read_text()) == []


@pytest.mark.parametrize(
    ("layer", "source", "expected"),
    [
        ("data", "from rcray.models.load import load_model", ["rcray.models.load.load_model"]),
        ("data", "from rcray import models", ["rcray.models"]),
        ("train", "def f():\n    import rcray.sweep.grid", ["rcray.sweep.grid"]),
        ("config", "from rcray.store import Store", ["rcray.store.Store"]),
        ("store", "from rcray.config import run_id", ["rcray.config.run_id"]),
        ("models", "if TYPE_CHECKING:\n    import rcray.cli\nelse:\n    import rcray.train", ["rcray.train"]),
        (
            "models",
            "class A:\n    def f(self):\n        with x:\n            import rcray.cli",
            ["rcray.cli"],
        ),
        ("aggregate", "from rcray.train.dynamics import read_dynamics\nfrom rcray import __version__", []),
        ("config", "from rcray.errors import ConfigError\nimport yaml", []),
    ],
)
def test_the_check_sees_what_it_should(layer, source, expected):
    assert violations(layer, source) == expected


LIGHT = """
import contextlib, io, sys
from rcray.cli import main

loaded = {}
for command in COMMANDS:
    sys.argv = ["rcray", *command]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            main()
        except SystemExit as end:
            assert not end.code, (command, end.code)
    assert out.getvalue().strip(), command
    loaded[" ".join(command)] = [name for name in HEAVY if name in sys.modules]
print(loaded)
"""


def test_light_commands_import_nothing_heavy(tmp_path):
    """They answer at once; checked in one process, so the first command at fault is the one that shows."""
    quickstart = str(ROOT / "experiments" / "quickstart.yaml")
    commands = [
        ["--help"],
        ["--version"],
        ["train", "--help"],
        ["objectives", "--json"],
        ["objectives"],
        ["show-config", quickstart],
        ["plan", quickstart, "--store", str(tmp_path / "store")],
    ]
    code = f"COMMANDS = {commands!r}\nHEAVY = {HEAVY!r}\n{LIGHT}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=240)
    assert done.returncode == 0, done.stderr
    loaded = ast.literal_eval(done.stdout)
    assert len(loaded) == len(commands)
    assert {command: names for command, names in loaded.items() if names} == {}
    assert list(tmp_path.iterdir()) == [], "and they write nothing"


@pytest.mark.parametrize("name", ["rcray", "rcray.config", "rcray.sweep.grid", "rcray.records.ledger", "rcray.store"])
def test_light_modules_import_nothing_heavy(name):
    code = f"import sys, {name}; print([n for n in {HEAVY!r} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240)
    assert done.stdout.strip() == "[]"


#: What an import may have loaded beside Python's own modules; `torch` comes with whatever torch loads.
CORE = {
    "import rcray": {"rcray"},
    "from rcray import load_experiment": {"rcray", "pydantic", "yaml"},
    "from rcray import Calibrator, UpdateSteering, calibrate": {"rcray", "pydantic", "yaml", "torch", "numpy"},
}


@pytest.mark.parametrize("line", CORE)
def test_the_cores_names_load_what_they_need_and_no_more(line):
    """By what is loaded, and not by seconds: those are the slow test's of the wheel."""
    known = ("rcray", "pydantic", "yaml", "numpy", "torch", "typer", "rich", "psutil", "jinja2", *ALL_EXTRAS)
    code = f"{line}\nimport sys; print([name for name in {known!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240)
    assert set(ast.literal_eval(done.stdout)) <= CORE[line]


def sources() -> list[Path]:
    return [*PACKAGE.rglob("*.py"), ROOT / "Makefile", *(ROOT / ".ci").iterdir()]


def test_nothing_stops_a_cluster():
    """`ray stop` ends every Ray process of the machine, other people's included."""
    pattern = re.compile(r"""\bray["']?[\s,]+["']?stop\b""")
    assert pattern.search("subprocess.run(['ray', 'stop'])") and pattern.search("ray stop --force")
    assert [str(path) for path in sources() if pattern.search(path.read_text())] == []
