"""What the source must not do, read off its syntax trees: pickles, shells, code from text, code from the hub."""

import ast
from pathlib import Path

import pytest
import yaml

from rcray.config import load

ROOT = Path(__file__).parents[2]
SOURCES = sorted([*(ROOT / "rcray").rglob("*.py"), *(ROOT / "benchmarks").rglob("*.py")])

#: Modules that turn bytes into objects by running what the bytes say, or text into commands.
FORBIDDEN_MODULES = {
    "pickle",
    "cPickle",
    "_pickle",
    "cloudpickle",
    "dill",
    "joblib",
    "marshal",
    "shelve",
    "pty",
    "commands",
}
FORBIDDEN_CALLS = {
    "eval", "exec", "compile", "__import__", "os.system", "os.popen", "os.execl", "os.execlp", "os.spawnl",
    "subprocess.getoutput", "subprocess.getstatusoutput", "pd.read_pickle", "pandas.read_pickle", "yaml.unsafe_load",
    "yaml.full_load", "yaml.load_all", "torch.hub.load", "asyncio.create_subprocess_shell",
}  # fmt: skip
SAFE_LOADERS = ("_PlainLoader", "_QuickLoader")  # of config/load.py; that they are safe ones is asked below
#: The one place that imports by name: the user's own objective, named in the user's own file.
IMPORTS_BY_NAME = {"rcray/objectives/base.py"}


def problems(source: str, where: str = "rcray/x.py") -> list[str]:
    forbidden = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            forbidden += [f"import {name}" for name in names if name.split(".")[0] in FORBIDDEN_MODULES]
        elif isinstance(node, ast.Call):
            forbidden += _call(node, where)
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "trust_remote_code":
                    forbidden += _trusts(value)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "0.0.0.0" in node.value:
            forbidden.append("listens on every interface")
    return forbidden


def _call(node: ast.Call, where: str) -> list[str]:
    name = ast.unparse(node.func)
    given = {keyword.arg: keyword.value for keyword in node.keywords}
    forbidden = [name] if name in FORBIDDEN_CALLS else []
    if name in ("torch.load", "load") and name == "torch.load" and not _is(given.get("weights_only"), True):
        forbidden.append("torch.load without weights_only=True")
    if name in ("np.load", "numpy.load") and not _is(given.get("allow_pickle"), False):
        forbidden.append("np.load without allow_pickle=False")
    if name == "yaml.load" and ast.unparse(node.args[1] if len(node.args) > 1 else node) not in SAFE_LOADERS:
        forbidden.append("yaml.load with a loader of its own")
    if name.startswith("subprocess.") and name.split(".")[1] in ("run", "Popen", "call", "check_call", "check_output"):
        first = node.args[0] if node.args else None
        if "shell" in given or isinstance(first, ast.Constant | ast.JoinedStr | ast.BinOp):
            forbidden.append(f"{name} through a shell")
    if name.endswith("import_module") and where not in IMPORTS_BY_NAME:
        forbidden.append("imports by name")
    if "trust_remote_code" in given:
        forbidden += _trusts(given["trust_remote_code"])
    return forbidden


def _is(value: ast.expr | None, expected: bool) -> bool:
    return isinstance(value, ast.Constant) and value.value is expected


def _trusts(value: ast.expr) -> list[str]:
    asked = isinstance(value, ast.Attribute) and value.attr == "trust_remote_code"
    return [] if asked or _is(value, False) else [f"trust_remote_code={ast.unparse(value)}"]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_source(path):
    assert problems(path.read_text(), str(path.relative_to(ROOT))) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from cloudpickle import loads",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path)",
        "np.load(path, allow_pickle=True)",
        "yaml.load(text, yaml.Loader)",
        "yaml.unsafe_load(text)",
        "eval(text)",
        "os.system(f'git {name}')",
        "subprocess.run(f'git {name}', shell=True)",
        "subprocess.Popen('git status')",
        "subprocess.run('git ' + name)",
        "importlib.import_module(name)",
        "load_dataset(name, trust_remote_code=True)",
        "options = {'trust_remote_code': True}",
        "serve(host='0.0.0.0')",
    ],
)
def test_the_scan_sees_what_it_should(source):
    assert problems(source)


def test_what_may_be_done_passes():
    fine = "subprocess.run(['git', name]); torch.load(p, weights_only=True); f(trust_remote_code=c.trust_remote_code)"
    assert problems(fine) == []
    assert issubclass(load._PlainLoader, yaml.SafeLoader)
    assert issubclass(load._QuickLoader, yaml.CSafeLoader)
