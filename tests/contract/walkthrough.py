"""A reader with a clone: the commands of README and docs in order, in one directory, with one store.

Every command of their bash blocks is run as it is printed. What cannot be, because it needs a GPU, a hub or a
paid judge, or would take hours, is listed here with what is run instead and why; nothing is left out silently.
"""

import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from rcray.config import load_experiment
from rcray.sweep.grid import expand
from rcray.sweep.tiny import DOCUMENTS
from tests.contract.pages import ROOT, blocks
from tests.evaluate import judge_server
from tests.ray.heads import TOKEN, free_ports, running_head

BIN = Path(sys.executable).parent
PORT = "127.0.0.1:5000"  # as printed; a free one is taken instead
SECONDS = 600  # for one command, on a machine with other work


@dataclass(frozen=True)
class Instead:
    """What is run in place of a printed command, and why. `{...}` are filled in by the walk; no command: not run."""

    command: str
    why: str


_NO_GPU = "no GPU, no hub: the same cells on the embedded models"
_CLUSTER = "the cluster is a head on this machine; the same cells on the embedded models"
INSTEAD = {
    "make quickstart": Instead("rcray sweep experiments/quickstart.yaml --store rcray-store", "the recipe, installed"),
    "make real": Instead("rcray sweep experiments/real.yaml --tiny", "half an hour, and two downloads: the tiny cells"),
    "make test": Instead("", "this is part of it"),
    "rcray export RUN_ID --to exported --merge": Instead(
        "rcray export {run} --to exported --merge", "of the quickstart"
    ),
    "rcray submit experiments/main.yaml": Instead(
        "rcray submit experiments/main.yaml --tiny --address {dashboard} --store {store}", _CLUSTER
    ),
    "RAY_AUTH_MODE=token ray job submit --working-dir . -- python -m rcray sweep experiments/main.yaml": Instead(
        "RAY_AUTH_MODE=token ray job submit --address {dashboard} --working-dir . -- "
        "python -m rcray sweep experiments/main.yaml --tiny --store {store}",
        _CLUSTER,
    ),
    "rcray sweep experiments/pythia.yaml": Instead("rcray sweep experiments/pythia.yaml --tiny", _NO_GPU),
    "rcray sweep experiments/pythia.yaml --set execution.gpus_per_worker=0.5": Instead(
        "rcray sweep experiments/pythia.yaml --set execution.gpus_per_worker=0 --tiny", _NO_GPU
    ),
    "rcray sweep experiments/main.yaml": Instead("rcray sweep experiments/main.yaml --tiny", _NO_GPU),
    "rcray sweep experiments/main.yaml --set execution.workers=2 --set train.micro_batch_size=2": Instead(
        "rcray sweep experiments/main.yaml --set execution.workers=2 --set train.micro_batch_size=2 --tiny "
        "--set execution.cpus_per_worker=0.5 --set calibration.enabled=true",
        _NO_GPU + "; one of them",
    ),
    "rcray evaluate --run rcray-store --benchmark embedded": Instead(
        f"rcray evaluate --run rcray-store --benchmark embedded --limit {DOCUMENTS}", "a few documents of each task"
    ),
    "rcray diagnose --model tiny-neox --data synthetic --pairs 200 --write-filter bad.rows": Instead(
        "rcray diagnose --model tiny-neox --data synthetic --pairs 200 --write-filter bad.rows "
        "--set data.train_pairs=32",
        "rows that the quickstart has here, too",
    ),
    "rcray ui": Instead("rcray ui --port {port}", "a free port; it stays open, as in a second terminal"),
    "rcray watch experiments/quickstart.yaml": Instead(
        "rcray watch experiments/quickstart.yaml --port {port}", "a free port; it stays open, too"
    ),
    "rcray watch --store rcray-store": Instead("rcray watch --store rcray-store --port {port}", "the same"),
    f"rcray report experiments/quickstart.yaml --from-mlflow http://{PORT}": Instead(
        "rcray report experiments/quickstart.yaml --from-mlflow http://{ui}", "the port of the UI above"
    ),
    f"rcray sweep experiments/quickstart.yaml --tracking-uri http://{PORT}": Instead(
        "rcray sweep experiments/quickstart.yaml --tracking-uri http://{ui}", "the port of the UI above"
    ),
    "rcray alpaca-eval generate --run RUN_ID --instructions alpaca_eval.json --out rc.json": Instead(
        "rcray alpaca-eval generate --run {run} --instructions alpaca_eval.json --out rc.json --max-new-tokens 16",
        "a run of the quickstart; short answers",
    ),
    "rcray alpaca-eval judge rc.json plain.json": Instead(
        "rcray alpaca-eval judge rc.json plain.json --base-url {judge}", "a judge on this machine, not a paid one"
    ),
}


def printed_commands() -> list[str]:
    """Every command of every bash block, in order, without comments."""
    lines = [line.partition("#")[0] for block in blocks("bash") for line in block.splitlines()]
    return [" ".join(line.split()) for line in lines if line.strip()]


@dataclass
class Walk:
    """The reader's directory, and what runs beside it."""

    folder: Path
    environment: dict[str, str]
    stack: contextlib.ExitStack
    judge: str
    places: dict[str, str] = field(default_factory=dict)
    took: dict[str, float] = field(default_factory=dict)

    def run(self, printed: str) -> str:
        """One printed command; returns what it wrote. Anything but success is an error."""
        instead = INSTEAD.get(printed)
        command = printed if instead is None else instead.command
        if not command:
            return ""
        started = time.monotonic()
        if "{port}" in command:
            output = self._open_server(command)
        else:
            output = self.finish(self._fill(command), self._environment(command))
        self.took[printed] = time.monotonic() - started
        return output

    def finish(self, command: str, environment: dict[str, str] | None = None) -> str:
        """Runs a command to its end."""
        before, command = _assignments(command)
        done = subprocess.run(
            _arguments(command), cwd=self.folder, env={**(environment or self.environment), **before}, timeout=SECONDS,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        assert done.returncode == 0 and "Traceback" not in done.stdout, f"$ {command}\n{done.stdout}"
        return done.stdout

    def _environment(self, command: str) -> dict[str, str]:
        if "{dashboard}" not in command:
            return self.environment
        self._fill(command)  # starts the head
        return {**self.environment, **self.head_environment}

    def _fill(self, command: str) -> str:
        commands: dict[str, Callable[[], str]] = {
            "dashboard": self._start_head,
            "store": lambda: str(self.folder / "rcray-store"),
            "run": lambda: expand(load_experiment(self.folder / "experiments" / "quickstart.yaml"))[0].run_id,
            "judge": lambda: self.judge,
        }
        for name in re.findall(r"\{(\w+)\}", command):
            if name not in self.places:
                self.places[name] = commands[name]()
        return command.format(**self.places)

    def _start_head(self) -> str:
        """As a user starts one: a token in the home directory, as any sweep leaves it, and no word of it elsewhere."""
        home = self.folder.parent / "home"
        (home / ".ray").mkdir(parents=True)
        (home / ".ray" / "auth_token").write_text(TOKEN)
        inherited = {name: self.environment[name] for name in ("PYTHONPATH", "HF_HUB_OFFLINE")}
        started = running_head(lambda _: ["--num-cpus=2"], own_token=False, HOME=str(home), **inherited)
        head = self.stack.enter_context(started)
        self.head_environment = {name: head.environment[name] for name in ("HOME", "PATH")}
        return head.dashboard

    def _open_server(self, command: str) -> str:
        (port,) = free_ports(1)
        process = subprocess.Popen(
            _arguments(command.format(port=port)), cwd=self.folder, env=self.environment,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self.stack.callback(_close, process)
        assert process.stdout is not None
        lines: list[str] = []
        while not (lines and f"http://127.0.0.1:{port}" in lines[-1]):
            lines.append(process.stdout.readline())
            assert lines[-1], "".join(lines)
        name, title = ("ui", "MLflow") if " ui " in command else ("watch", "<title>")
        self.places[name] = f"127.0.0.1:{port}"
        with urllib.request.urlopen(f"http://127.0.0.1:{port}", timeout=30) as page:
            assert title in page.read().decode()
        return "".join(lines)


def _assignments(command: str) -> tuple[dict[str, str], str]:
    """`NAME=value` before a command, as a shell reads it, and the command."""
    pages: dict[str, str] = {}
    while match := re.match(r"([A-Z_]+)=(\S+) ", command):
        pages[match.group(1)], command = match.group(2), command[match.end() :]
    return pages, command


def _arguments(command: str) -> list[str]:
    program, *rest = shlex.split(command)
    start = {"rcray": [sys.executable, "-m", "rcray"], "ray": [str(BIN / "ray")]}
    return [*start[program], *rest]


def _close(process: "subprocess.Popen[str]") -> None:
    """As the reader does at the end; it takes its server along. Not by SIGINT, which background jobs ignore."""
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextlib.contextmanager
def walk(folder: Path) -> Iterator[Walk]:
    """A clone to walk through, with a judge that prefers the longer answer; everything ends with the block."""
    with contextlib.ExitStack() as stack:
        judge = stack.enter_context(judge_server.JudgeServer(strength=0.1))
        _clone(folder, judge.url)
        own = ("RCRAY_", "MLFLOW_", "RAY_AUTH")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(own)}
        environment |= {"PYTHONPATH": str(folder), "HF_HUB_OFFLINE": "1", "DEEPSEEK_API_KEY": "none", "COLUMNS": "120"}
        yield Walk(folder, environment, stack, judge.url)


def _clone(folder: Path, judge: str) -> None:
    """The parts of the repository that the commands need, and the reader's own files."""
    for name in ("rcray", "experiments", "tests/report/quickstart-ledger"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "cluster.yaml", folder)
    _shrink(folder / "experiments", judge)
    rows = [{"prompt": f"render {i}", "chosen": f"mema {i}", "rejected": f"nema {i}"} for i in range(40)]
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    instructions = [{"instruction": f"render filu tilu {word}"} for word in ("mema", "bema", "nema")]
    for place in (folder, folder / "experiments"):  # alpaca-eval.yaml looks beside itself
        (place / "alpaca_eval.json").write_text(json.dumps(instructions))
    answers = [{**row, "output": "kano", "generator": "plain"} for row in instructions]
    (folder / "plain.json").write_text(json.dumps(answers))


def _shrink(experiments: Path, judge: str) -> None:
    """The same files with fewer pairs, objectives and documents: the commands stay as printed."""

    def change(name: str, edit: Callable[[dict[str, Any]], object]) -> None:
        content = yaml.safe_load((experiments / name).read_text())
        edit(content)
        (experiments / name).write_text(yaml.safe_dump(content, sort_keys=False))

    def quickstart(content: dict[str, Any]) -> None:
        content["run"]["data"] |= {"train_pairs": 32, "eval_pairs": 16}  # four steps: a profile skips two
        content["evaluation"]["limit"] = DOCUMENTS
        content["grid"]["objective"] = ["dpo"]  # every calibration: what --set chooses is chosen as in the whole file

    def alpaca_eval(content: dict[str, Any]) -> None:
        content["base"] = "quickstart.yaml"
        content["run"] = {"model": "tiny-neox"}
        content["grid"]["objective"] = ["dpo"]  # as in the quickstart: trained already
        section = content["evaluation"]["alpaca_eval"]
        section["judge"] |= {"base_url": judge}
        section["generation"] = {"max_new_tokens": 16}

    change("quickstart.yaml", quickstart)
    change("alpaca-eval.yaml", alpaca_eval)
    change("main.yaml", lambda content: content["grid"].update(model=["mistral-7b"], objective=["dpo"]))
    change("pythia.yaml", lambda content: content["grid"].update(objective=["dpo"]))
    change("real.yaml", lambda content: content["grid"].update(objective=["dpo"]))
