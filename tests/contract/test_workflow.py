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
WORKFLOW, WEEKLY = (yaml.safe_load((ROOT / f".github/workflows/{name}.yml").read_text()) for name in ("ci", "weekly"))
JOBS = WORKFLOW["jobs"]
ALL_JOBS = [*JOBS.items(), *WEEKLY["jobs"].items()]
ROOM = "sudo rm -rf /usr/share/dotnet /usr/local/lib/android /opt/ghc"


def lines_of(jobs):
    """What jobs run, but for making room on the disk."""
    steps = [(name, step["run"]) for name, job in jobs for step in job["steps"] if "run" in step]
    return [(name, line) for name, line in steps if line != ROOM]


LINES = lines_of(JOBS.items())


def test_it_runs_for_every_change_with_no_rights_but_to_read():
    when = WORKFLOW[True]  # YAML 1.1 reads `on` as a switch
    assert set(when) == {"push", "pull_request"} and when["push"]["branches"] == ["main"]
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert all(job["timeout-minutes"] <= 60 for job in JOBS.values())


def test_what_takes_hours_runs_once_a_week():
    when = WEEKLY[True]
    assert set(when) == {"schedule", "workflow_dispatch"} and len(when["schedule"]) == 1
    minute, hour, day, month, weekday = when["schedule"][0]["cron"].split()
    assert (day, month) == ("*", "*") and all(each.isdecimal() for each in (minute, hour, weekday))
    assert WEEKLY["permissions"] == {"contents": "read"}
    assert lines_of(WEEKLY["jobs"].items()) == [("slow", "make test-slow"), ("campaign", "make campaign")]
    assert all(job["timeout-minutes"] <= 360 for job in WEEKLY["jobs"].values()), "a runner's own limit"


def test_whoever_installs_torch_makes_room_for_it_first():
    """The disk of a runner is full of tools that nothing here uses; the site alone is built without torch."""
    without = [name for name, job in ALL_JOBS if job["steps"][2].get("run") != ROOM]
    assert without == ["docs"]


def test_the_slow_tests_of_what_is_shipped_run_for_every_change():
    ((_, line),) = [each for each in LINES if each[0] == "slow"]
    files = re.fullmatch(r'make test-slow ONLY="([^"]+)"', line).group(1).split()
    assert [Path(file).stem for file in files] == ["test_wheel", "test_walkthrough", "test_site"]
    for file in files:
        assert "pytest.mark.slow" in (ROOT / file).read_text(), file


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
    "line",
    [line for _, line in lines_of(ALL_JOBS)] + [ROOM] + [(ROOT / ".ci/run").read_text()],
    ids=lambda line: line[:24],
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
    for _, job in ALL_JOBS:
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
