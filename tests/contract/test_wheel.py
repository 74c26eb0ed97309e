"""A wheel built from a clean clone has what the program needs; installed alone, it runs the quickstart anywhere."""

import os
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from rcray import __version__
from rcray.config.bundled import bundled_experiments, find_experiment
from rcray.config.load import load_experiment
from rcray.errors import ConfigError

ROOT = Path(__file__).parents[2]


def run(*command, cwd, ok=(0,), seconds=1800):
    """In an environment without this clone."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "RCRAY_STORE")}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, timeout=seconds,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert done.returncode in ok, f"$ {' '.join(map(str, command))}\n{done.stdout[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Of the committed state, as anybody clones it; setuptools is the one installed here."""
    place = tmp_path_factory.mktemp("wheel")
    run("git", "clone", "--quiet", "--depth", "1", f"file://{ROOT}", place / "clone", cwd=place)
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "-q",
        "-w",
        place,
        place / "clone",
    ]
    run(*build, cwd=place)
    (wheel,) = place.glob("rcray-*.whl")
    return wheel


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="a wheel is built from a clone")
def test_what_is_in_the_wheel(wheel):
    assert __version__ in wheel.name
    listed = run("git", "ls-tree", "-r", "--name-only", "HEAD", cwd=ROOT).splitlines()
    expected = {name for name in listed if name.startswith("rcray/")}
    expected |= {f"rcray/{name}" for name in listed if re.fullmatch(r"experiments/[\w-]+\.yaml", name)}
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        (metadata,) = (archive.read(name).decode() for name in archive.namelist() if name.endswith("/METADATA"))
    assert names == expected
    for kind in ("templates/style.css", "published/benchmarks.csv", "peaks.json", "py.typed", "quickstart.yaml"):
        assert any(name.endswith(kind) for name in names), kind
    assert f"Version: {__version__}" in metadata and "Provides-Extra: sweep" in metadata


def test_an_experiment_is_found_by_file_first_then_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert {path.stem for path in (ROOT / "experiments").glob("*.yaml")} == set(bundled_experiments())
    assert load_experiment(Path("quickstart")).name == "quickstart"
    assert load_experiment(Path("ema")).run["fidelity"] == "official", "with the base beside it"
    Path("quickstart").write_text("name: mine\n")
    assert load_experiment(Path("quickstart")).name == "mine"
    assert find_experiment(Path("nowhere.yaml")) == Path("nowhere.yaml")
    with pytest.raises(ConfigError, match=r"did you mean 'smoke'.*known: .*displacement"):
        load_experiment(Path("smke"))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_installed_alone_it_says_what_it_needs_and_runs_the_quickstart_elsewhere(wheel, tmp_path):
    """The command that the error names is the one that is given; then `rcray sweep quickstart`, whole."""
    venv.create(tmp_path / "venv", with_pip=True)
    program, elsewhere = tmp_path / "venv" / "bin", tmp_path / "elsewhere"
    elsewhere.mkdir()
    install = [program / "python", "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt"]
    run(*install, wheel, cwd=elsewhere)
    assert __version__ in run(program / "rcray", "--version", cwd=elsewhere)
    assert "33 objectives" in run(program / "rcray", "objectives", cwd=elsewhere)
    _imports_lightly(program / "python", elsewhere)
    refused = run(program / "rcray", "sweep", "quickstart", cwd=elsewhere, ok=(2,))
    extras = re.search(r"pip install 'rcray\[([\w,]+)\]'", refused).group(1)
    assert extras == "sweep,track,eval" and len(refused.splitlines()) == 1

    run(*install, f"{wheel}[{extras}]", cwd=elsewhere)
    said = run(program / "rcray", "sweep", "quickstart", cwd=elsewhere, seconds=3000)
    assert re.search(r"21 ok", said), said[-3000:]
    where = run(program / "python", "-c", "import rcray; print(rcray.__file__)", cwd=elsewhere)
    assert str(tmp_path / "venv") in where
    results = elsewhere / "rcray-store" / "experiments" / "quickstart"
    assert (results / "report.html").is_file() and (results / "tables" / "results.md").is_file()


#: CPU seconds of `import torch`, and of the core's names after it.
IMPORTS = """
import time
began = time.process_time()
import torch
torch_there = time.process_time()
from rcray import Calibrator, UpdateSteering, calibrate
print(torch_there - began, time.process_time() - torch_there)
"""


def _imports_lightly(python, folder):
    """The least of five: 0.3 s beyond torch, or a quarter of torch's own where the machine is slow."""
    taken = [[float(part) for part in run(python, "-c", IMPORTS, cwd=folder).split()] for _ in range(5)]
    torch, core = (min(times) for times in zip(*taken, strict=True))
    print(f"import torch {torch:.2f} CPU seconds, the core {core:.2f} more")
    assert core < max(0.3, torch / 4), taken
