"""The core stands alone, and whatever needs an extra says so in one line with the command that installs it."""

import ast
import contextlib
import json
import os
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import rcray
from rcray.extras import EXTRAS, MissingExtraError, explain_missing, require
from rcray.starter import Wanted, write_starter

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

#: A site without these modules, as an installation without their extra is one. The set may change as it goes.
BLOCK = """
import contextlib, io, json, os, sys
BLOCKED = set()

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())

def run(command):
    from rcray.cli import main
    sys.argv = ["rcray", *command]
    out, err, code = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    return code, out.getvalue(), err.getvalue(), sorted(os.listdir())
"""

COMMANDS = """
answers = []
for missing, command in json.load(sys.stdin):
    BLOCKED.clear(); BLOCKED.update(missing)
    answers.append(run(command))
print(json.dumps(answers))
"""

EVERYTHING = """
BLOCKED.update(json.load(sys.stdin))
import importlib, pkgutil
import rcray
from rcray.extras import MissingExtraError

said = {}
for info in pkgutil.walk_packages(rcray.__path__, "rcray.", onerror=lambda name: None):
    if info.name.endswith("__main__"):
        continue
    try:
        importlib.import_module(info.name)
        said[info.name] = None
    except MissingExtraError as error:
        said[info.name] = str(error)
try:
    rcray.CalibratedDPOTrainer
except ImportError as error:
    said["CalibratedDPOTrainer"] = str(error)
print(json.dumps([said, run(["doctor", "--json"])]))
"""


def python(code, given, cwd):
    """One process for many questions: starting Python is most of what each takes."""
    done = subprocess.run(
        [sys.executable, "-c", f"{BLOCK}\n{code}"], input=json.dumps(given), capture_output=True, text=True,
        timeout=300, cwd=cwd, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


ALL = sorted(module for modules in EXTRAS.values() for module in modules)


def closure(extra):
    """An extra and those that it brings along."""
    brought = [Requirement(line) for line in PROJECT["optional-dependencies"][extra]]
    return {extra}.union(*(closure(other) for wanted in brought if wanted.name == "rcray" for other in wanted.extras))


def normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def names_of(lines):
    return {normal(Requirement(line).name) for line in lines} - {"rcray"}


def test_modules_and_packages_of_an_extra_are_the_same():
    """rcray/extras.py names what is imported, pyproject.toml what is installed for it."""
    places = metadata.packages_distributions()
    for extra, modules in EXTRAS.items():
        packages = names_of(PROJECT["optional-dependencies"][extra])
        holders = [{normal(place) for place in places[module]} for module in modules]  # mlflow is in two packages
        assert all(holder & packages for holder in holders), extra
        assert packages <= set().union(*holders), extra
    assert closure("all") == {"all", *EXTRAS}
    assert "all" in closure("dev")


def test_every_import_belongs_to_the_core_or_to_an_extra():
    """A module that nobody declares would be missing from somebody's installation."""
    core = {"torch", "numpy", "pydantic", "yaml", "typer", "rich", "psutil", "packaging", "filelock", "jinja2"}
    assert len(core) == len(PROJECT["dependencies"])
    brought = {"markupsafe", "huggingface_hub", "click"}  # by jinja2, transformers and typer
    by_choice = {"vllm", "liger_kernel"}  # refused by name where they are missing
    known = {*core, *brought, *by_choice, *(module for modules in EXTRAS.values() for module in modules)}
    imported = set()
    for path in (ROOT / "rcray").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            imported |= {name.partition(".")[0] for name in names}
    assert imported - set(sys.stdlib_module_names) - {"rcray"} <= known


def test_with_the_core_alone_every_module_is_there_or_says_what_it_needs(tmp_path):
    said, (code, out, _, _) = python(EVERYTHING, ALL, tmp_path)
    assert len(said) > 150
    for name in ("rcray.objectives", "rcray.calibration.steering", "rcray.config", "rcray.cli", "rcray.sweep.planning"):
        assert said[name] is None, name
    for name in ("rcray.train.loop", "rcray.integrations.trl", "rcray.track.mlflow", "rcray.aggregate.figures"):
        assert said[name] is not None, name
    assert all(re.fullmatch(r"[^\n]+: pip install 'rcray\[\w+\]'", text) for text in said.values() if text)
    assert "rcray[trl]" in said["CalibratedDPOTrainer"]
    findings = {finding["name"]: finding for finding in json.loads(out)}  # the doctor's
    assert code == 0, "what was not asked for is no fault"
    assert "none, the core alone" in findings["extras"]["detail"]
    assert findings["ray"]["fix"] == "pip install 'rcray[sweep]'"
    assert findings["mlflow"]["fix"] == "pip install 'rcray[track]'"


#: Of a model's directory: words between spaces, the least that the library takes.
TOKENIZER = json.dumps({
    "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
    "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None,
    "model": {"type": "WordLevel", "vocab": {"?": 0}, "unk_token": "?"},
})  # fmt: skip
LEDGER = ROOT / "tests" / "report" / "quickstart-ledger"
NO_TRACKING = "; without MLflow: --no-tracking"


REFUSED = [
    ("sweep track eval", "sweep quickstart", f"pip install 'rcray[sweep,track,eval]'{NO_TRACKING}"),
    ("track", "train smoke --set calibration.enabled=true", f"mlflow not installed, and needed here: pip install "
     f"'rcray[track]'{NO_TRACKING}"),
    ("eval", "sweep quickstart --no-tracking", "httpx2, lm_eval, openai not installed, and needed here: "
     "pip install 'rcray[eval]'"),
    ("sweep", "diagnose quickstart", "pip install 'rcray[sweep]'"),
    ("sweep", "show-pairs quickstart", "pip install 'rcray[sweep]'"),
    ("sweep", "plan smoke --measure", "pip install 'rcray[sweep]'"),
    ("sweep", "submit quickstart", "pip install 'rcray[sweep]'"),
    ("sweep", "export abc --to there", "pip install 'rcray[sweep]'"),
    ("eval", "evaluate quickstart", "pip install 'rcray[eval]'"),
    ("eval", "alpaca-eval winrate a.json b.json", "pip install 'rcray[eval]'"),
    ("report", f"report --ledger {LEDGER} --out there", "pip install 'rcray[report]'"),
    ("report", "watch quickstart", "pip install 'rcray[report]'"),
    ("track", "report quickstart --from-mlflow http://127.0.0.1:9", "pip install 'rcray[track]'"),
    ("track", "ui", "pip install 'rcray[track]'"),
    ("track", "sync", "pip install 'rcray[track]'"),
    ("real", "sweep real --no-tracking", "pip install 'rcray[real]'"),
    ("search", "sweep searched.yaml --no-tracking", "pip install 'rcray[search]'"),
]  # fmt: skip
INIT = "init mine.yaml --model ./model --data pairs.jsonl"
ANSWERED = ["--help", "--version", "objectives", "plan quickstart", "show-config smoke", INIT]


def test_a_command_without_its_extra_is_one_line_and_exit_code_2(tmp_path):
    (tmp_path / "searched.yaml").write_text(
        "name: s\nsearch: {method: optuna, samples: 2, space: {train.learning_rate: {low: 1.0e-6, high: 1.0e-3}}}\n"
    )
    pair = {"prompt": "Why is that?", "chosen": "Because of this.", "rejected": "Never mind."}
    (tmp_path / "pairs.jsonl").write_text(f"{json.dumps(pair)}\n" * 20)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "tokenizer.json").write_text(TOKENIZER)
    there = sorted(path.name for path in tmp_path.iterdir())
    blocked = [[module for extra in missing.split() for module in EXTRAS[extra]] for missing, _, _ in REFUSED]
    given = [(modules, command.split()) for modules, (_, command, _) in zip(blocked, REFUSED, strict=True)]
    given += [(ALL, command.split()) for command in ANSWERED]
    answers = python(COMMANDS, given, tmp_path)
    for (_, command, said), (code, out, err, files) in zip(REFUSED, answers, strict=False):
        assert (code, out) == (2, ""), f"{command}: {err}"
        assert len(err.splitlines()) == 1 and err.startswith("error: "), f"{command}: {err}"
        assert err.rstrip().endswith(said), f"{command}: {err}"
        assert files == there, f"{command}: refused before anything was made"
    for command, (code, out, err, _) in zip(ANSWERED, answers[len(REFUSED) :], strict=True):
        assert code == 0 and out.strip(), f"the core answers {command}: {err}"
    said = "# max_length: estimated from characters; pip install 'rcray[sweep]' counts tokens."
    assert said in (tmp_path / "mine.yaml").read_text(), "a guess is no count"
    with contextlib.chdir(tmp_path):
        write_starter(tmp_path / "counted.yaml", Wanted("./model", "pairs.jsonl"))
    assert "estimated" not in (tmp_path / "counted.yaml").read_text(), "with the extra, tokens are counted"


def test_a_module_of_nobodys_extra_is_not_explained():
    assert explain_missing(ModuleNotFoundError("no", name="tomllib_of_the_future")) is None
    assert "rcray[search]" in str(explain_missing(ModuleNotFoundError("no", name="optuna.samplers")))
    require(*EXTRAS)  # all of them are installed where the tests run
    assert issubclass(MissingExtraError, ImportError)


# -- the public names


def test_public_names_are_there_and_no_others():
    assert set(rcray.__all__) <= set(dir(rcray))
    for name in set(rcray.__all__) - {"CalibratedDPOTrainer"}:  # imports TRL, which is tested where it is needed
        assert getattr(rcray, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'calibrator'"):
        _ = rcray.calibrator
    source = ast.parse((ROOT / "rcray" / "__init__.py").read_text())
    typed = {
        alias.name
        for node in ast.walk(source)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rcray")
        for alias in node.names
    }
    assert typed == set(rcray.__all__) - {"__version__"}, "what a type checker sees is what there is"


def test_the_version_stands_in_one_place():
    assert "version" in PROJECT["dynamic"] and "version" not in PROJECT
    lines = (ROOT / "CHANGELOG.md").read_text().splitlines()
    assert f"## {rcray.__version__}" in {line.split(" (")[0] for line in lines}
    assert f"\nversion: {rcray.__version__}\n" in (ROOT / "CITATION.cff").read_text()
