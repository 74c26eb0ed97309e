"""`rcray plan` over several files, and `--tiny`."""

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from rcray.cli import app
from rcray.config import Experiment, load_experiment
from rcray.config.models import MODELS
from rcray.errors import ConfigError
from rcray.files import write_json
from rcray.store import RunDir
from rcray.sweep.grid import expand
from rcray.sweep.placement import NodeKind
from rcray.sweep.planning import make_plan, summary
from rcray.sweep.tiny import tiny_cells, tiny_experiment

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def loaded(*names):
    planned = []
    for name in names:
        experiment = load_experiment(EXPERIMENTS / f"{name}.yaml")
        planned.append((EXPERIMENTS / f"{name}.yaml", experiment, expand(experiment)))
    return planned


def test_shared_cells_are_counted_once(tmp_path):
    plan = make_plan(loaded("main", "epochs", "pythia", "ema", "alpaca-eval"), tmp_path, None)
    assert len(plan.cells) == 28 + 3 + 18 + 4  # two epochs, and the start model
    shared = [planned.experiments for planned in plan.cells.values() if len(planned.experiments) > 1]
    assert ["pythia", "ema", "alpaca-eval"] in shared
    assert not plan.conflicts


def test_done_cells_are_not_counted_again(tmp_path):
    files = loaded("epochs")
    before = make_plan(files, tmp_path, None)
    key = files[0][2][0].run_id
    write_json(RunDir(tmp_path / "runs" / key).status, {"status": "ok"})
    after = make_plan(files, tmp_path, None)
    assert after.done == 1
    assert after.gpu_hours == pytest.approx(before.gpu_hours - before.cells[key].cost.gpu_hours)
    assert "5 unique cells, 1 done" in summary(after)


def test_a_degenerate_cell_needs_no_more_work(tmp_path):
    """A sweep would leave it as it is: it would only become degenerate again."""
    files = loaded("epochs")
    write_json(RunDir(tmp_path / "runs" / files[0][2][0].run_id).status, {"status": "degenerate"})
    assert make_plan(files, tmp_path, None).done == 1


def test_a_store_below_the_home_directory(tmp_path, monkeypatch):
    """As RCRAY_STORE may name it, which no shell opens."""
    files = loaded("epochs")
    write_json(RunDir(tmp_path / "store" / "runs" / files[0][2][0].run_id).status, {"status": "ok"})
    monkeypatch.setenv("HOME", str(tmp_path))
    assert make_plan(files, Path("~/store"), None).done == 1


def test_a_finished_cell_of_unknown_size_is_not_said_to_be_left_out(tmp_path):
    experiment = Experiment.model_validate({"name": "x", "run": {"model": "owner/unknown"}})
    (cell,) = expand(experiment)
    files = [(tmp_path / "x.yaml", experiment, [cell])]
    assert "1 cells are not counted" in summary(make_plan(files, tmp_path, None))
    write_json(RunDir(tmp_path / "runs" / cell.run_id).status, {"status": "ok"})
    assert "not counted" not in summary(make_plan(files, tmp_path, None)).splitlines()[1]


def test_cells_are_chosen_out_of_all_files_together(tmp_path):
    (_, _, ours), (_, _, theirs) = loaded("smoke", "epochs")
    files = [str(EXPERIMENTS / f"{name}.yaml") for name in ("smoke", "epochs")]

    def plan(*wanted):
        only = [part for key in wanted for part in ("--only", key)]
        return CliRunner().invoke(app, ["plan", *files, *only, "--store", str(tmp_path), "--json"])

    rows = json.loads(plan(theirs[1].run_id, ours[0].run_id).stdout)
    assert [row["run_id"] for row in rows] == [ours[0].run_id, theirs[1].run_id]
    assert isinstance(plan("nowhere").exception, ConfigError)


def test_conflicts_are_named(tmp_path):
    text = (EXPERIMENTS / "epochs.yaml").read_text().replace("main.yaml", str(EXPERIMENTS / "main.yaml"))
    other = tmp_path / "epochs.yaml"
    other.write_text(text.replace("model: mistral-7b", "model: mistral-7b\n  execution: {cpus_per_worker: 2}"))
    experiment = load_experiment(other)
    plan = make_plan([*loaded("epochs"), (other, experiment, expand(experiment))], tmp_path, None)
    assert len(plan.cells) == 5, "how a cell is carried out is not part of it"
    assert any("both named 'epochs'" in text for text in plan.conflicts)
    assert any("differently (4 CPU, 1 GPU" in text for text in plan.conflicts)


def test_a_share_of_a_gpu_must_hold_the_cell(tmp_path):
    files = loaded("epochs")
    experiment = files[0][1]
    settings = {"execution.gpus_per_worker": 0.25, "execution.gradient_checkpointing": False}
    cells = expand(experiment, settings)
    plan = make_plan([(files[0][0], experiment, cells)], tmp_path, None)
    assert any("its share of a RTX A6000 has 12 GB" in text for text in plan.conflicts)


def test_a_cluster_without_room_is_named(tmp_path):
    plan = make_plan(loaded("epochs"), tmp_path, [NodeKind("cpu", {"CPU": 64}, 10)])
    assert len(plan.conflicts) == 5
    assert "no node type of the cluster file has room" in plan.conflicts[0]


def test_rows_are_json(tmp_path):
    (row, *_) = json.loads(json.dumps(make_plan(loaded("smoke"), tmp_path, None).rows()))
    assert row["steps"] == 8
    assert row["gpu_hours"] == 0
    assert row["memory_bytes"] > 0


def test_tiny_keeps_what_is_compared_and_replaces_the_rest():
    (_, experiment, cells) = loaded("runtime")[0]
    tiny = tiny_cells(cells, {})
    assert tiny_experiment(experiment).name == "runtime-tiny"
    assert len(tiny) == len(cells) == 48, "adapters and full fine-tuning stay apart, so no two cells become one"
    for before, after in zip(cells, tiny, strict=True):
        assert after.config.model.name == MODELS[before.config.model.name].tiny
        assert after.config.model.method == before.config.model.method.removeprefix("q")
        for kept in ("objective", "calibration", "likelihood", "fidelity"):
            assert getattr(after.config, kept) == getattr(before.config, kept)
        assert after.config.train.learning_rate == before.config.train.learning_rate
        assert after.config.execution.gpus_per_worker == 0


def test_tiny_gives_way_to_set():
    experiment = load_experiment(EXPERIMENTS / "epochs.yaml")
    overrides = {"data.train_pairs": 64, "model": "tiny-qwen2", "train.seed": 7}
    tiny = tiny_cells(expand(experiment, overrides), overrides)
    assert {cell.config.data.train_pairs for cell in tiny} == {64}
    assert {cell.config.model.name for cell in tiny} == {"tiny-qwen2"}
    assert {cell.config.train.seed for cell in tiny} == {7}


def test_only_takes_the_cells_of_these_run_ids(tmp_path):
    file = tmp_path / "my grid.yaml"
    file.write_text(yaml.safe_dump({"name": "x", "grid": {"objective": ["dpo", "cpo"], "train.seed": [1, 2]}}))

    def ids(*options):
        done = CliRunner().invoke(app, ["show-config", str(file), "--json", *options])
        assert done.exit_code == 0, done.output
        return [cell["run_id"] for cell in json.loads(done.stdout)]

    every = ids()
    assert (
        ids("--only", f"{every[2]},{every[0]}") == [every[0], every[2]] == ids("--only", every[0], "--only", every[2])
    )
    refused = CliRunner().invoke(app, ["plan", str(file), "--only", "nowhere", "--store", str(tmp_path / "store")])
    assert "--only nowhere" in str(refused.exception) and not (tmp_path / "store").exists()
