"""Evaluations as Ray tasks: two models at once on two cores, each read once; the command's output and exit code."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rcray.config import run_id
from rcray.config.evaluation import EvaluationConfig
from rcray.evaluate.remote import evaluate_many
from rcray.store import Store
from rcray.train.launch import launch
from tests.ray.heads import start_ray
from tests.small_runs import small_config

pytestmark = pytest.mark.ray

SETTINGS = EvaluationConfig(benchmarks=("embedded",))


def counting_hook():
    """A function for every Ray worker to start with: each model read from disk leaves a line.

    Nobody goes on before two processes read one: where one evaluation waits for the other's end, both fail.
    """

    def count_loads():  # inside a function, so that it travels by value: workers do not import tests
        import os
        import time
        from pathlib import Path

        import rcray.models.load as load

        plain, loads = load._read_weights, Path(os.environ["LOADS"])

        def counted(config, directory, *rest):
            with loads.open("a") as file:
                file.write(f"{os.getpid()} {directory}\n")
            deadline = time.monotonic() + 600
            while len({line.split()[0] for line in loads.read_text().splitlines()}) < 2:
                assert time.monotonic() < deadline, "the other evaluation does not begin"
                time.sleep(0.05)
            return plain(config, directory, *rest)

        load._read_weights = counted

    return count_loads


@pytest.fixture
def two_runs(store):
    configs = [small_config(calibration={"enabled": on}) for on in (False, True)]
    for config in configs:
        launch(config, store)
    return configs


def test_two_models_at_once_without_loading_either_twice(two_runs, store, tmp_path):
    import ray

    loads = tmp_path / "loads"
    setup = {"env_vars": {"LOADS": str(loads)}, "worker_process_setup_hook": counting_hook()}
    start_ray(num_cpus=2, runtime_env=setup)
    try:
        tables = {}
        evaluate_many(two_runs, store, SETTINGS, lambda config, outcome: tables.update({run_id(config): outcome}))
    finally:
        ray.shutdown()
    first, second = tables.values()
    assert len({outcome.run_id for outcome in (first, second)}) == 2
    assert first.measured == second.measured == ("preference", "rcray_choice", "rcray_cloze")
    read = [line.split()[1] for line in loads.read_text().splitlines()]
    for config in two_runs:
        assert read.count(str(store.run(run_id(config)).final)) == 1
    assert (first.loads, second.loads) == (1, 1)


def rcray(*arguments, folder: Path):
    command = [sys.executable, "-c", "from rcray.cli import main; main()", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=600)


@pytest.mark.slow
def test_the_command(two_runs, store: Store, tmp_path):
    plain, calibrated = (run_id(config) for config in two_runs)
    options = ["--store", store.root, "--benchmark", "rcray_choice", "--limit", 24]
    done = rcray("evaluate", "--run", plain, *options, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "tiny-neox · dpo · no RC: rcray_choice/acc" in done.stdout and "(n=24, 0 shots)" in done.stdout
    assert "RC: " in done.stdout and store.run(calibrated).evaluation.exists() is False
    (store.run(calibrated).final / "adapter_chain.json").unlink()
    shutil.rmtree(store.cache / "evaluation")
    store.run(plain).evaluation.unlink()
    done = rcray("evaluate", "--run", store.root, *options, folder=tmp_path)
    assert done.returncode == 1
    assert "adapter_chain.json is missing" in done.stderr and "of 2 runs: 1 failed" in done.stderr
    assert "Traceback" not in done.stderr
    assert "no RC: rcray_choice/acc" in done.stdout, "the other run is measured all the same"


@pytest.mark.slow
def test_a_worker_groups_cell_is_measured_by_a_task_of_its_own(store: Store, tmp_path):
    content = {"name": "group", "run": small_config(execution={"workers": 1}).model_dump(mode="json")}
    content["evaluation"] = {"benchmarks": ["rcray_choice"], "limit": 24}
    (tmp_path / "group.yaml").write_text(yaml.safe_dump(content))
    done = rcray("sweep", "group.yaml", "--store", store.root, "--no-tracking", "--no-figures", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = (store.root / "runs").iterdir()
    rows = json.loads((run / "evaluation.json").read_text())["rows"]
    assert {row["benchmark"] for row in rows} == {"preference", "rcray_choice"}
    again = rcray("sweep", "group.yaml", "--store", store.root, "--no-tracking", "--no-figures", folder=tmp_path)
    assert "1 cached" in again.stdout
