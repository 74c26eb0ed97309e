"""What shells and scripts rely on: completion, exit codes as documented, JSON alone on stdout, NO_COLOR."""

import json
import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from rcray import errors
from rcray.cli import app
from tests.contract.pages import page

ROOT = Path(__file__).parents[2]
PROGRAM = "from rcray.cli import main; import sys; sys.argv[0] = 'rcray'; main()"
#: typer looks at the process above for the shell in use; here it is named, whatever runs the tests.
NAMED_SHELL = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
LEDGER = str(ROOT / "tests" / "report" / "quickstart-ledger")


def rcray(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("rcray sw", ["sweep"]),
        ("rcray d", ["doctor", "diagnose"]),
        ("rcray alpaca-eval ", ["generate", "judge", "winrate", "sweep"]),
        ("rcray sweep --ti", ["--tiny"]),
        ("rcray sync --log-models ", ["none", "best", "all"]),
        ("rcray init --method ", ["full", "lora", "qlora"]),
    ],
)
def test_completion(typed, expected):
    words = typed.split(" ")
    environment = {"COMP_WORDS": typed, "COMP_CWORD": str(len(words) - 1), "_RCRAY_COMPLETE": "complete_bash"}
    assert rcray(**environment).stdout.split() == expected


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_itself_completes(tmp_path):
    """The script that `--show-completion bash` prints, in a real bash, on the program as a person types it."""
    program = tmp_path / "rcray"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c {json.dumps(PROGRAM)} "$@"\n')
    program.chmod(0o755)
    script = rcray("--show-completion", "bash", **NAMED_SHELL).stdout
    line = 'COMP_WORDS=(rcray pl); COMP_CWORD=1; _rcray_completion rcray; echo "${COMPREPLY[@]}"'
    done = subprocess.run(
        ["bash", "-c", f"{script}\n{line}"],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)},
        timeout=240,
    )
    assert done.stdout.strip() == "plan"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell"])
def test_a_completion_script_for_every_shell(shell):
    assert "_RCRAY_COMPLETE" in rcray("--show-completion", shell, **NAMED_SHELL).stdout


def test_the_docs_list_every_exit_code():
    codes = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    table = re.search(r"\| exit code .*?\n\n", page("commands.md"), re.DOTALL).group(0)
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)} == {0, *codes}


def test_the_docs_list_every_command_with_json():
    commands = get_command(app).commands  # type: ignore[attr-defined]
    given = {name for name, command in commands.items() if any("--json" in p.opts for p in command.params)}
    said = re.search(r"`--json` \(([^)]*)\)", page("commands.md")).group(1)
    assert set(re.findall(r"`([\w-]+)`", said)) == given


@pytest.mark.parametrize(
    "arguments",
    [
        ("objectives", "--json"),
        ("plan", str(ROOT / "experiments" / "quickstart.yaml"), "--json", "--store", "/nonexistent"),
        ("show-config", str(ROOT / "experiments" / "smoke.yaml"), "--json"),
        ("report", "--ledger", LEDGER, "--no-figures", "--json", "--out", "OUT"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_json_alone_on_stdout(tmp_path, arguments):
    done = rcray(*(str(tmp_path) if argument == "OUT" else argument for argument in arguments))
    assert (done.returncode, done.stderr) == (0, "")
    content = json.loads(done.stdout)
    assert content
    if arguments[0] == "report":
        assert all(Path(path).is_file() for path in [content["report"], *content["tables"], *content["figures"]])
        assert set(content["cells"].values()) == {"ok"}


def on_a_terminal(*arguments, **environment) -> str:
    """What the program writes where it believes to be on a colour terminal."""
    ours, theirs = pty.openpty()
    base = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "TERM")}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**base, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT), **environment},
    )
    os.close(theirs)
    text = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        text += part
    process.wait(timeout=240)
    os.close(ours)
    return text.decode(errors="replace")


#: Foreground, background, 256 and true colours; bold and italics are no colours.
COLOUR = re.compile(r"\x1b\[[\d;]*?\b(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])[\d;]*m")


@pytest.mark.parametrize(
    "arguments",
    [
        ("report", "--ledger", LEDGER, "--no-figures", "--out", "OUT"),
        ("objectives",),
        ("plan", "nowhere.yaml"),
        ("plan", "--no-such-option"),
        ("--help",),
    ],
    ids=lambda arguments: " ".join(arguments)[:20],
)
def test_no_color_is_honoured(tmp_path, arguments):
    given = [str(tmp_path) if argument == "OUT" else argument for argument in arguments]
    assert COLOUR.search(on_a_terminal(*given, NO_COLOR="1")) is None


def test_the_colours_are_seen_where_there_are_some(tmp_path):
    """The check above can fail: rich colours numbers on a terminal unless told otherwise."""
    code = "from rich.console import Console; Console().print('x', style='red')"
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color"}
    environment.pop("NO_COLOR", None)
    subprocess.run([sys.executable, "-c", code], stdout=theirs, env=environment, check=True, timeout=240)
    assert COLOUR.search(os.read(ours, 4096).decode())
    os.close(ours), os.close(theirs)


def test_make_says_which_python_it_wants(tmp_path):
    """Before it makes an environment: the next try, with the right one, would find the old one there."""
    (tmp_path / "python3").write_text("#!/bin/sh\nexit 1\n")  # what one that is older says of its version
    (tmp_path / "python3").chmod(0o755)
    venv = tmp_path / "venv"
    done = subprocess.run(
        ["make", f"PYTHON={tmp_path / 'python3'}", f"VENV={venv}", f"{venv}/.installed"],
        cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2 and not venv.exists()
    assert "python3 is no Python 3.11 or newer; name one: make PYTHON=python3.12 ..." in done.stderr
