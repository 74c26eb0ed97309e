"""Names are names: none reaches a shell, leaves its directory, becomes markup, or steers the terminal."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from rcray import cli
from rcray.aggregate.command import Request, run_report
from rcray.aggregate.latex import latex_escape
from rcray.aggregate.mlflow_source import _download
from rcray.aggregate.tables import slug
from rcray.config import Experiment
from rcray.errors import ConfigError, StoreError, printable
from rcray.models.sources import weight_files
from rcray.store import RunDir, Store
from rcray.sweep import submit

LEDGER = Path(__file__).parents[1] / "report" / "quickstart-ledger"
TRAVERSALS = [
    "..",
    ".",
    "",
    "../x",
    "a/b",
    "/etc/x",
    "a\\..\\b/",
    "~/x",
    "-rf",
    "a\nb",
    "a b",
    "a;b",
    "$(b)",
    "`b`",
    "a\0b",
]


# -- shells


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), max_size=5))
def test_a_jobs_command_is_what_was_given(arguments):
    entrypoint = submit.Submission("x", arguments, Path()).entrypoint
    assert shlex.split(entrypoint) == ["python", "-m", "rcray", *arguments]


def test_a_real_shell_reads_the_same(tmp_path, monkeypatch):
    """`rcray submit` with hostile values, its job's command run by sh; `python` there writes down what it gets."""
    hostile = [
        "; touch hit",
        "$(touch hit)",
        "`touch hit`",
        "' ; touch hit ; '",
        "\n touch hit \n",
        "&& touch hit",
        "* ? ~",
    ]
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "a; touch hit $(touch hit).yaml"
    file.write_text("name: x\n")
    seen = {}

    def capture(submission, address, **_):
        seen["command"] = submission.entrypoint
        return 0

    monkeypatch.setattr(submit, "submit", capture)
    sets = [part for text in hostile for part in ("--set", f"data.revision={json.dumps(text)}")]
    monkeypatch.setattr(sys, "argv", ["rcray", "submit", file.name, "--set", "data.name=o/n", *sets])
    with pytest.raises(SystemExit):
        cli.main()
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f"#!{sys.executable}\nimport json, sys\njson.dump(sys.argv[1:], open('argv.json', 'w'))\n")
    python.chmod(0o755)
    environment = {"PATH": f"{python.parent}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-c", seen["command"]], cwd=tmp_path, check=True, env=environment)
    expected = ["-m", "rcray", "sweep", file.name, "--set", "data.name=o/n", *sets]
    assert json.loads((tmp_path / "argv.json").read_text()) == expected
    assert not (tmp_path / "hit").exists()


# -- paths


@pytest.mark.parametrize("name", TRAVERSALS)
def test_no_name_leaves_the_store(tmp_path, name):
    store = Store.at(tmp_path)
    for place in (store.run, store.experiment):
        with pytest.raises(StoreError, match="not a name"):
            place(name)
    with pytest.raises(ValueError):
        Experiment(name=name)


@given(st.text())
def test_what_is_taken_stays_inside(name):
    store = Store.at("/store")
    for place, folder in ((lambda n: store.run(n).path, "runs"), (store.experiment, "experiments")):
        try:
            path = place(name)
        except StoreError:
            continue
        assert Path(os.path.normpath(path)).parent == Path("/store") / folder


@given(st.text())
def test_figures_are_files_of_their_folder(name):
    assert not set("/\\\0 ") & set(slug(name)) and not slug(name).startswith(".")


def evil_ledger(folder: Path, **changes) -> Path:
    shutil.copytree(LEDGER, folder)
    path = folder / "experiments" / "quickstart" / "ledger.json"
    content = json.loads(path.read_text())
    content["cells"][0] |= changes
    path.write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("name", ["../../outside", "/etc", "..", 'a"><script>'])
def test_a_ledger_of_somebody_elses_reads_nothing_outside(tmp_path, name):
    with pytest.raises(StoreError, match="not a name"):
        run_report(Request(ledger=evil_ledger(tmp_path / "ledger", run_id=name), out=tmp_path / "out", figures=False))


def test_a_ledger_of_somebody_elses_has_no_base(tmp_path):
    (tmp_path / "secret.yaml").write_text("title: a secret\n")
    ledger = evil_ledger(tmp_path / "ledger")
    file = ledger / "experiments" / "quickstart" / "experiment.yaml"
    file.write_text(f"base: ../../../secret.yaml\n{file.read_text()}")
    with pytest.raises(ConfigError, match="base"):
        run_report(Request(ledger=ledger, out=tmp_path / "out", figures=False))


def test_only_records_are_taken_from_a_server(tmp_path):
    """A server lists what it likes; only the names that rcray itself writes are asked for."""
    listed = {
        None: ["status.json", "../../evil.sh", "items", "dynamics", "/etc/passwd", "model.pkl"],
        "items": ["items/preference.parquet", "items/../../x", "items/a.parquet/../../x"],
    }
    asked = []

    def download(_, path, folder):
        asked.append(path)
        (Path(folder) / Path(path).name).touch()
        return str(Path(folder) / Path(path).name)

    client = SimpleNamespace(
        list_artifacts=lambda _, path=None: [SimpleNamespace(path=name) for name in listed[path]],
        download_artifacts=download,
    )
    _download(client, "id", RunDir(tmp_path / "runs" / "abc"))
    assert asked == ["status.json", "items/preference.parquet"]


@pytest.mark.parametrize("name", ["../../secret.safetensors", "/etc/passwd", "sub/x.safetensors", ".."])
def test_weights_lie_in_their_directory(tmp_path, name):
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(ValueError, match="beside it"):
        weight_files(tmp_path)


# -- pages, tables, terminals


def test_names_are_text_on_the_page_and_in_tables(tmp_path):
    script = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>"
    ledger = evil_ledger(tmp_path / "ledger")
    for path in (*ledger.rglob("config.yaml"), *ledger.rglob("experiment.yaml")):
        content = yaml.safe_load(path.read_text())
        if path.name == "config.yaml":
            content["model"]["name"] = f"./{script}"
        else:
            content |= {"title": script, "description": script}
        path.write_text(yaml.safe_dump(content))
    report = run_report(Request(ledger=ledger, out=tmp_path / "out", figures=False))
    page = report.html.read_text()
    assert "<script>alert" not in page and "<img src=x" not in page
    assert "&lt;script&gt;alert" in page, "and it is there, as text"


def test_latex_is_text():
    assert latex_escape(r"\input{/etc/passwd}") == r"\textbackslash{}input\{/etc/passwd\}"


@given(st.text())
def test_messages_steer_no_terminal(text):
    assert all(line.isprintable() for line in printable(text).split("\n"))
