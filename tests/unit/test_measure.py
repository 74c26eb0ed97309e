"""`plan --measure`: one timed micro-batch, and the estimate beside what a run then took."""

import json
import shutil

import pytest
from torch.utils.flop_counter import FlopCounterMode
from typer.testing import CliRunner

from rcray.cli import app
from rcray.config import Experiment, RunConfig, run_id
from rcray.data.survey import survey
from rcray.errors import ConfigError
from rcray.models import device
from rcray.sweep import measure as measuring
from rcray.sweep import planning
from rcray.sweep.grid import Cell
from rcray.sweep.measure import Measured, measure, measurement_key
from rcray.sweep.memory import Peak
from rcray.sweep.planning import make_plan, plan_table, summary
from rcray.train.launch import launch
from tests.small_runs import small_config

ROWS = [{"prompt": f"map {n}", "chosen": "a b c d", "rejected": "d c b"} for n in range(80)]


@pytest.fixture
def pairs(tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.fixture
def config(pairs):
    data = {"name": str(pairs), "train_pairs": None, "eval_pairs": 8}
    return small_config(data=data, train={"probe_every": 4}, objective={"name": "dpo"})


def test_the_estimate_is_near_what_a_run_takes(tmp_path, store):
    """By a clock that counts the operations of matrix products: no machine is so busy that it goes wrong."""
    rows = [{"prompt": f"map {n}", "chosen": "a b c d " * 8, "rejected": "d c b " * 8} for n in range(160)]
    (tmp_path / "long.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = {"name": str(tmp_path / "long.jsonl"), "train_pairs": None, "eval_pairs": 16}
    config = small_config(data=data, train={"probe_every": 4}, objective={"name": "dpo"})
    with FlopCounterMode(display=False) as counter:

        def clock():
            return counter.get_total_flops() / 1e9

        seen = measure(config, store, clock)
        assert seen.pairs == 144 and not (store.root / "runs").exists(), "no run was touched"
        begun = clock()
        launch(config, store)
        taken = clock() - begun
    expected = 3600 * seen.hours(config) - 2 * seen.held_out * seen.forward_seconds  # which the evaluation would read
    print(f"{expected:.2f} G expected, {taken:.2f} G taken ({expected / taken - 1:+.1%})")
    assert expected == pytest.approx(taken, rel=0.05)


def test_what_costs_the_same_is_measured_once(config):
    def other(**settings):
        return RunConfig.model_validate({**config.model_dump(mode="json"), **settings})

    assert measurement_key(config) == measurement_key(other(objective="ipo"))
    assert measurement_key(config) != measurement_key(other(model="tiny-mistral"))


def test_the_plan_counts_local_rows_and_says_how_many_are_held_out(config, pairs, tmp_path):
    surveyed = survey(config.data, config.model)
    assert (surveyed.rows, surveyed.train, surveyed.held_out) == (80, 72, 8)
    file = tmp_path / "mine.yaml"
    run = {"data": {"name": str(pairs), "eval_pairs": 16}, "train": {"batch_size": 8, "micro_batch_size": 4}}
    file.write_text(json.dumps({"name": "mine", "run": run}))
    done = CliRunner().invoke(app, ["plan", str(file), "--store", str(tmp_path / "none")])
    assert done.exit_code == 0, done.output
    said = " ".join(done.output.split())
    assert "80 rows, 72 to train on, 8 held out (eval_pairs 16 asks for more than a tenth)" in said
    assert "GPU" not in said.replace("1 CPU", "") and "rcray plan --measure" in said, "no card is assumed for CPU cells"
    assert not (tmp_path / "none").exists(), "nothing is written"


def gpu_plan(store, *runs):
    """Of cells on a GPU."""
    configs = [RunConfig.model_validate({"execution": {"gpus_per_worker": 1}, **run}) for run in runs]
    cells = [Cell(run_id(config), config, ()) for config in configs]
    return make_plan([(store.root, Experiment(name="x"), cells)], store.root, None)


KNOWN, RULED = {"model": "pythia-410m", "data": "ultrafeedback"}, {"model": "tiny-neox"}


def test_memory_by_rule_is_marked(store):
    plan = gpu_plan(store, KNOWN, RULED)
    assert [row["memory_by_rule"] for row in plan.rows()] == [False, True]
    (column,) = (column for column in plan_table(plan, 120).columns if column.header == "GB")
    assert [cell.startswith("~") for cell in column.cells] == [False, True]
    assert "~ memory of 1 cells is by rule" in summary(plan)


@pytest.mark.parametrize("card", [True, False])
def test_a_step_that_cannot_be_made_keeps_its_estimate(store, monkeypatch, card):
    """Memory is that of the longest pairs, by a pretended step; on a card its time is the card's."""

    def pretended(config):
        if config.objective.name == "ipo":
            raise ConfigError("no such step", fix="none")
        return Peak(1e9, 0.0)

    seen = Measured(0.1, 0.1, 0.1, 1.0, 64, 0, 16, 0, peak_bytes=7.0)
    monkeypatch.setattr(device, "why_no_gpu", lambda: None if card else ("none", "none"))
    monkeypatch.setattr(measuring, "measure_apart", lambda config, store: seen)
    monkeypatch.setattr(planning, "pretended_peak", pretended)
    before = gpu_plan(store, RULED, {**RULED, "objective": "ipo"})
    costs, said = [planned.cost for planned in before.cells.values()], []
    after = planning.measured_plan(before, store, said.append).cells.values()
    one, other = (planned.cost for planned in after)
    assert one.train_bytes > 1e9 and other.train_bytes == costs[1].train_bytes
    assert [planned.by_rule for planned in after] == [False, True]
    assert "no such step; its estimate stays" in said
    assert [cost.hours == old.hours for cost, old in zip((one, other), costs, strict=True)] == [not card] * 2


@pytest.mark.parametrize("card", [True, False])
@pytest.mark.parametrize("cached", [True, False])
def test_a_hub_models_memory_is_told_by_its_cached_shape_or_by_the_card(
    store, quick_cache, tmp_path, monkeypatch, card, cached
):
    """Before a download nobody knows its shape; measuring on a card downloads it."""
    import huggingface_hub

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    place, asked = tmp_path / "hub" / "models--owner--name", []
    seen = Measured(0.1, 0.1, 0.1, 1.0, 64, 0, 16, 0, peak_bytes=7.0)

    def measured(config, store):
        if cached:
            (place / "refs").mkdir(parents=True)
            (place / "refs" / "main").write_text("c" * 40)
            shutil.copytree(quick_cache / "tiny-neox", place / "snapshots" / ("c" * 40))
        return seen

    def pretended(config):
        asked.append(config.model)
        return Peak(1e9, 0.0)

    monkeypatch.setattr(device, "why_no_gpu", lambda: None if card else ("none", "none"))
    monkeypatch.setattr(measuring, "measure_apart", measured)
    monkeypatch.setattr(planning, "pretended_peak", pretended)
    if not card:
        measured(None, None)  # by another run
    (planned,) = planning.measured_plan(gpu_plan(store, {"model": "owner/name"}), store, print).cells.values()
    if cached:
        assert planned.cost.train_bytes > 1e9 and not planned.by_rule
        assert [model.name for model in asked] == ["owner/name"] and asked[0].shape.layers == 2
    else:
        assert asked == [] and planned.by_rule and planned.cost.train_bytes == (7.0 if card else None)


def test_a_killed_run_is_not_planned_as_running(store, config):
    from dataclasses import replace

    from rcray.aggregate.collect import collect
    from rcray.records.progress import TRAINING, read_progress, report, reporting
    from rcray.records.states import State
    from rcray.sweep.ledger import LiveLedger

    run = store.run(run_id(config))
    run.write_status(replace(run.read_status(), run_id=run.run_id, status=State.RUNNING))
    cells = [Cell(run.run_id, config, ())]
    ledger = LiveLedger(cells, store, store.experiment("x"))
    ledger.start(run.run_id)

    def states():
        plan = make_plan([(run.path, Experiment(name="x"), cells)], store.root, None)
        entry, (result,) = ledger.refresh().cells[0], collect(store, cells)
        assert result.status is entry.status, "in the report as in the ledger"
        return plan.cells[run.run_id].status, entry.status, entry.step, entry.doing

    assert states()[:2] == (State.PENDING, State.PENDING)
    with reporting(run.path):
        report(TRAINING, 3, 9)
        assert states() == (State.RUNNING, State.RUNNING, 3, "training 3/9")
        dead = (run.path / ".progress.json").read_text()
        assert read_progress(run.path).is_alive
    content = {**json.loads(dead), "pid": 2**22 - 3}
    (run.path / ".progress.json").write_text(json.dumps(content))  # as SIGKILL leaves it
    assert states()[:2] == (State.PENDING, State.PENDING)
