"""What GitHub and pre-commit are told to run exists, is written for a shell, and is what a person runs here."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOW = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
JOBS = WORKFLOW["jobs"]
LINES = [(name, step["run"]) for name, job in JOBS.items() for step in job["steps"] if "run" in step]


def test_it_runs_for_every_change_with_no_rights_but_to_read():
    when = WORKFLOW[True]  # YAML 1.1 reads `on` as a switch
    assert set(when) == {"push", "pull_request"} and when["push"]["branches"] == ["main"]
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert all(job["timeout-minutes"] <= 60 for job in JOBS.values())


def test_it_runs_what_ci_runs_builds_the_wheel_and_the_site():
    assert [line for name, line in LINES if name == "tests"] == [".ci/run"]
    assert os.access(ROOT / ".ci/run", os.X_OK)
    build, install, elsewhere = [line for name, line in LINES if name == "wheel"]
    assert build.endswith("python -m build")
    assert "-c constraints.txt dist/*.whl" in install and (ROOT / "constraints.txt").is_file()
    assert elsewhere.startswith('cd "$RUNNER_TEMP" && ') and elsewhere.endswith('/rcray" plan quickstart')
    assert [line for name, line in LINES if name == "docs"] == ["make docs"]
    assert [line for name, line in LINES if name == "browser"] == ["make test-browser"]


@pytest.mark.parametrize("needed", [False, True])
def test_the_job_that_opens_the_pages_skips_nothing(tmp_path, needed):
    """Without a browser its tests are skipped elsewhere; there, that would be a job that opened no page."""
    (name,) = JOBS["browser"]["env"]
    own = {key: value for key, value in os.environ.items() if key not in (name, "RCRAY_CHROMIUM")}
    own |= {"PATH": str(tmp_path)} | ({name: JOBS["browser"]["env"][name]} if needed else {})
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "browser",
        "tests/browser/test_chromium.py",
    ]
    done = subprocess.run(command, cwd=ROOT, env=own, capture_output=True, text=True)
    said = done.stdout + done.stderr
    assert "no Chromium is on the path" in said if needed else "skipped" in said, said
    assert (done.returncode == 0) != needed, said


@pytest.mark.parametrize(
    "line", [line for _, line in LINES] + [(ROOT / ".ci/run").read_text()], ids=lambda line: line[:24]
)
def test_every_line_is_shell(line):
    subprocess.run(["bash", "-n", "-c", line], check=True)
    targets = re.findall(r"^make ([\w-]+)", line, re.MULTILINE)
    assert all(re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE) for target in targets)


def test_what_ci_names_of_the_tests_is_there():
    named = re.findall(r"tests/[\w/]+\.py(?:::\w+)?", (ROOT / ".ci/run").read_text())
    assert named
    for name in named:
        path, _, test = name.partition("::")
        assert f"def {test}(" in (ROOT / path).read_text() if test else (ROOT / path).is_file()


def test_jobs_begin_with_a_checkout_and_the_oldest_python():
    oldest = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"].removeprefix(">=")
    for job in JOBS.values():
        first, second = job["steps"][:2]
        assert first["uses"].startswith("actions/checkout@v")
        assert second["uses"].startswith("actions/setup-python@v") and second["with"]["python-version"] == oldest
        assert all(re.fullmatch(r"actions/[\w-]+@v\d+", step["uses"]) for step in job["steps"] if "uses" in step)


def test_pre_commit_runs_the_linters_of_the_environment():
    """No repository is cloned: the versions are those of constraints.txt, as in `make lint`."""
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repository["repo"] == "local"
    entries = [hook["entry"].removesuffix(" --fix") for hook in repository["hooks"]]
    recipe = re.search(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE).group(1)
    linted = [line.strip().replace("$(BIN)", ".venv/bin") for line in recipe.splitlines()]
    assert entries == [line.removesuffix(" .").removesuffix(" --check") for line in linted]
