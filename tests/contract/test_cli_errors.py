"""A refused command: exit code 2, one screen that names the field, no traceback, nothing started."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from rcray import cli
from rcray.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE

SCREEN = 25  # lines
MANY = ", ".join(f"w{i}: 1" for i in range(90))
ONE_FILE = ("plan", "show-config", "train", "sweep", "evaluate", "report")

#: What a file holds, or None for a file that is not there; what the message must say.
REFUSED = {
    "wrong objective": ("name: x\nrun: {objective: dpoo}\n", ["objective.name", "'dpoo'", "did you mean 'dpo'"]),
    "missing field": ("run: {objective: dpo}\n", ["name", "missing"]),
    "negative beta": ("name: x\nrun: {objective: {name: dpo, beta: -1}}\n", ["objective.beta", "-1", "greater than 0"]),
    "unknown field": ("name: x\nrun: {train: {sed: 3}}\n", ["train.sed", "did you mean 'seed'"]),
    "unreadable YAML": ("name: [x\n", ["bad.yaml", "not valid YAML"]),
    "not UTF-8": (b"\xff\xfe\x00", ["bad.yaml", "UTF-8"]),
    "empty file": ("", ["bad.yaml", "empty"]),
    "python tag": ("name: !!python/object/apply:os.getcwd []\n", ["bad.yaml", "python/object"]),
    "many wrong fields": (f"name: x\nrun: {{train: {{{MANY}}}}}\n", ["train.w0", "more"]),
    "wide value": (f"name: x\nrun: {{train: {{seed: {'z' * 9000}}}}}\n", ["train.seed"]),
    "missing file": (None, ["bad.yaml", "no such file", "files there: bald.yaml"]),
}


def test_a_command_for_one_cell_names_the_choice_that_leaves_one(capsys, tmp_path, monkeypatch):
    """As it is printed, whatever the grid's axes are."""
    store = ["--store", str(tmp_path)]

    def said(*arguments):
        monkeypatch.setattr(sys, "argv", ["rcray", *arguments, *store])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        return ended.value.code or 0, captured.out, captured.err

    code, _, refused = said("train", "quickstart", "--set", "objective=ipo", "--set", "calibration.enabled=true")
    assert code == EXIT_USAGE and "has 2 cells" in refused
    choice = shlex.split(re.search(r"example with (--set .*); or", refused).group(1))
    code, planned, _ = said("plan", "quickstart", "--set", "objective=ipo", *choice)
    assert code == 0 and "1 unique cells" in planned


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with one sound experiment and nothing else."""
    (tmp_path / "bald.yaml").write_text("name: bald\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def assert_refused(code, out, err, expected, folder):
    assert code == EXIT_USAGE
    assert out == "", "nothing on stdout: it may be piped into a file"
    for part in expected:
        assert part in err
    assert "Traceback" not in err
    assert len(err.splitlines()) <= SCREEN
    assert len(err) <= SCREEN * 120
    assert {path.name for path in folder.iterdir()} <= {"bald.yaml", "bad.yaml"}, "no store, no log, nothing"


@pytest.mark.parametrize("command", ONE_FILE)
@pytest.mark.parametrize("kind", REFUSED)
def test_a_wrong_file(rcray, folder, command, kind):
    content, expected = REFUSED[kind]
    if content is not None:
        (folder / "bad.yaml").write_bytes(content if isinstance(content, bytes) else content.encode())
    assert_refused(*rcray(command, "bad.yaml"), expected, folder)


@pytest.mark.parametrize("command", ONE_FILE)
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--set", "objective"], ["--set 'objective'", "FIELD=VALUE", "for example"]),
        (["--set", "objective=dpoo"], ["objective.name", "did you mean 'dpo'"]),
        (["--set", "objective.beta=-1"], ["objective.beta", "-1"]),
        (["--set", "objective.beta=.nan"], ["objective.beta", "nan"]),
        (["--set", "objective.beta=[1"], ["--set", "not valid YAML"]),
        (["--set", "train.sed=1"], ["train.sed", "'seed'"]),
        (["--set", "train.batch_size=10"], ["batch_size 10", "micro_batch_size 8"]),
        (["--no-such-option"], ["--no-such-option"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_arguments(rcray, folder, command, arguments, expected):
    assert_refused(*rcray(command, "bald.yaml", *arguments), expected, folder)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["swep"], ["swep"]),
        (["plan"], ["Missing argument"]),
        (["train", "bald.yaml", "--store"], ["--store"]),
        (["sweep", "bald.yaml", "--concurrency", "0"], ["--concurrency", "greater than or equal to 1"]),
        (["ui", "--port", "99999"], ["--port", "65535"]),
    ],
    ids=" ".join,
)
def test_wrong_usage(rcray, folder, arguments, expected):
    assert_refused(*rcray(*arguments), expected, folder)


def test_a_file_that_lies_among_the_experiments_is_pointed_to(rcray, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "mine.yaml").write_text("name: mine\n")
    code, out, err = rcray("sweep", "mine.yaml")
    assert (code, out) == (EXIT_USAGE, "") and "did you mean experiments/mine.yaml?" in err
    code, out, err = rcray("sweep", "experiments")
    assert (code, out) == (EXIT_USAGE, "") and "is a directory" in err and "files there: mine.yaml" in err
    code, out, err = rcray("plan", "elsewhere/mine.yaml")
    assert (code, out) == (EXIT_USAGE, "") and "rcray init" in err


def test_a_command_for_one_cell_refuses_many(rcray, folder):
    (folder / "bad.yaml").write_text("name: x\ngrid: {train.seed: [1, 2, 3]}\n")
    assert_refused(*rcray("train", "bad.yaml"), ["3 cells", "--set"], folder)


def test_one_wrong_file_among_good_ones_is_named(rcray, folder):
    (folder / "bad.yaml").write_text("name: x\nrun: {objective: dpoo}\n")
    assert_refused(*rcray("plan", "bald.yaml", "bad.yaml"), ["x: not valid", "objective.name"], folder)


@pytest.mark.parametrize("command", ["train", "sweep", "evaluate", "report"])
def test_a_store_that_is_a_file(rcray, folder, command):
    (folder / "taken").write_text("mine")
    code, _, err = rcray(command, "bald.yaml", "--store", "taken")
    assert code == EXIT_FAILED
    assert "taken" in err and "--store" in err and "Traceback" not in err
    assert (folder / "taken").read_text() == "mine"


def test_plan_on_a_store_that_is_a_file(rcray, folder):
    (folder / "taken").write_text("mine")
    code, _, err = rcray("plan", "bald.yaml", "--store", "taken")
    assert code == EXIT_FAILED
    assert "taken" in err and "Traceback" not in err


def test_plan_names_a_damaged_status(rcray, folder):
    _, out, _ = rcray("plan", "bald.yaml", "--json")
    run_id = out.split('"run_id": "')[1].split('"')[0]
    status = folder / "rcray-store" / "runs" / run_id / "status.json"
    status.parent.mkdir(parents=True)
    status.write_text("{")
    code, _, err = rcray("plan", "bald.yaml")
    assert code == EXIT_FAILED
    assert "status.json: damaged JSON" in err and "Traceback" not in err


def test_plan_makes_no_store(rcray, folder):
    code, out, err = rcray("plan", "bald.yaml", "--store", "new")
    assert (code, err) == (0, "")
    assert "1 unique cells, 0 done" in out
    assert not (folder / "new").exists()


def test_interrupting_says_how_to_go_on(rcray, folder, monkeypatch):
    def interrupt(*_args):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.before, "cells_of", interrupt)
    code, _, err = rcray("plan", "bald.yaml")
    assert code == EXIT_INTERRUPTED
    assert err.count("the same command continues") == 1
    assert "Traceback" not in err


# -- the installed command itself


def installed() -> list[str]:
    beside = Path(sys.executable).with_name("rcray")
    return [str(beside)] if beside.exists() else [sys.executable, "-c", "from rcray.cli import main; main()"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["sweep", "bad.yaml"], ["objective.name", "did you mean 'dpo'"]),
        (["train", "bad.yml"], ["no such file", "files there: bad.yaml"]),
        (["sweep", "bald.yaml", "--set", "objective.beta"], ["FIELD=VALUE"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_as_a_process(folder, arguments, expected):
    (folder / "bad.yaml").write_text("name: x\nrun: {objective: dpoo}\n")
    done = subprocess.run([*installed(), *arguments], capture_output=True, text=True, cwd=folder, timeout=240)
    assert_refused(done.returncode, done.stdout, done.stderr, expected, folder)
