"""What is delivered, and that repeating, interrupting or sharing it changes nothing; to the tracker in memory."""

import json
import math

import numpy as np
import pyarrow.parquet as pq
import pytest

from rcray.records.columns import METRICS
from rcray.records.evaluation import Evaluation, write_evaluation
from rcray.records.items import Items, write_items
from rcray.records.progress import TRAINING, report, reporting
from rcray.store import Store
from rcray.sync import report_paths
from rcray.track.book import Book, DeliveryBusyError
from rcray.track.describe import flatten, params_of
from rcray.track.tracker import POINTS_PER_CALL
from tests.track.in_memory import URI, delivery_to, kept
from tests.track.stored_runs import evaluate, finish, four_cells, make_cell, row_of, set_status, train_to


@pytest.fixture
def store(empty_store):
    return empty_store


def test_a_sweep_is_one_parent_and_a_nested_run_per_cell(store, tracker):
    cells = four_cells()
    for cell in cells:
        finish(store, cell)
    delivery_to(tracker, store, cells).deliver(final=True)
    assert len(tracker.kept) == 5
    (parent,) = [k.run for k in tracker.kept.values() if k.run.tags["rcray.kind"] == "sweep"]
    assert parent.name == "small (sweep)"
    for cell in cells:
        run = kept(tracker, cell).run
        assert run.tags["mlflow.parentRunId"] == parent.id
        assert run.name == cell.config.label
        assert run.state == "FINISHED"
    names = {kept(tracker, cell).run.name for cell in cells}
    assert "tiny-neox · dpo · RC" in names and "tiny-neox · cpo · no RC" in names


def test_tags_and_params(store, tracker):
    cell = make_cell("cpo", rc=True, calibration={"ema_beta": 0.5}, train={"seed": 7, "epochs": 2})
    finish(store, cell)
    delivery_to(tracker, store, [cell], started_here={cell.run_id}).deliver(final=True)
    run = kept(tracker, cell).run
    expected = {
        "model": "tiny-neox", "objective": "cpo", "family": "entangled", "rc": "on", "ema_beta": "0.5", "epochs": "2",
        "seed": "7", "fidelity": "paper", "rcray.run_id": cell.run_id, "rcray.status": "ok",
    }  # fmt: skip
    assert expected.items() <= run.tags.items()
    assert run.tags["rcray.git"] not in ("", "unknown")
    assert run.params == params_of(cell.config)
    assert run.params["objective.beta"] == "0.1" and run.params["train.seed"] == "7"


def test_curves_are_step_aligned_and_finite(store, tracker):
    cell = make_cell(steps=20)
    finish(store, cell)
    delivery_to(tracker, store, [cell]).deliver(final=True)
    run = kept(tracker, cell).run.id
    for name in METRICS:
        wanted = [(s, float(row_of(cell.config, s)[name])) for s in range(1, 21)]
        assert tracker.curve(run, name) == [(s, v) for s, v in wanted if math.isfinite(v)], name
    assert 3 not in dict(tracker.curve(run, "band_lower")), "an infinite edge is a gap"
    assert dict(tracker.curve(run, "dynamics/in_band"))[5] == 2 / 5
    times = {p.step: p.milliseconds for p in tracker.kept[run].points if p.name == "loss"}
    assert [times[s + 1] - times[s] for s in range(1, 20)] == [250] * 19


def test_long_runs_stay_within_the_limits(store, tracker):
    cell = make_cell(steps=120)
    finish(store, cell)
    delivery_to(tracker, store, [cell]).deliver(final=True)  # the tracker refuses more than its limit
    assert len(tracker.curve(kept(tracker, cell).run.id, "z_w")) == 120
    assert 120 * len(METRICS) / POINTS_PER_CALL < tracker.calls.count("log_points") < 10


def test_a_pass_that_is_cut_short_is_continued_and_favours_nobody(store, tracker):
    cells = [make_cell("dpo", steps=90), make_cell("cpo", steps=90)]
    for cell in cells:
        finish(store, cell)
    delivery = delivery_to(tracker, store, cells, live=True)
    lengths = []
    for _ in range(100):
        sent = tracker.calls.count("log_points")
        delivery.deliver(stop=lambda sent=sent: tracker.calls.count("log_points") > sent)
        tracked = [k for k in tracker.kept.values() if "rcray.run_id" in k.run.tags]
        lengths.append(sorted(len(tracker.curve(k.run.id, "z_w")) for k in tracked))
        if len(tracked) == 2 and all(k.run.state == "FINISHED" for k in tracked):
            break
    assert max(b - a for a, b in (pair for pair in lengths if len(pair) == 2)) < 40
    assert lengths[-1] == [90, 90]
    assert all(kept(tracker, cell).run.state == "FINISHED" for cell in cells)


def test_a_run_is_followed_and_only_what_a_checkpoint_vouches_for_is_sent(store, tracker):
    cell = make_cell(steps=20)
    delivery = delivery_to(tracker, store, [cell], live=True, awaits_evaluation=True)
    delivery.deliver()
    assert kept(tracker, cell).run.state == "SCHEDULED"
    train_to(store, cell, 10)
    set_status(store, cell, "running", step=5)  # the second part lies there, its checkpoint does not
    delivery.deliver()
    run = kept(tracker, cell).run
    assert run.state == "RUNNING"
    assert [step for step, _ in tracker.curve(run.id, "z_w")] == [1, 2, 3, 4, 5]
    set_status(store, cell, "running", step=10)
    finish(store, cell)
    store.run(cell.run_id).evaluation.unlink()
    delivery.deliver()
    assert "dynamics.parquet" not in kept(tracker, cell).files, "closed when its metrics are there"
    evaluate(store, cell, 0.5)
    delivery.deliver()
    assert "dynamics.parquet" in kept(tracker, cell).files
    assert [step for step, _ in tracker.curve(run.id, "z_w")] == list(range(1, 21))


def test_files_of_a_cell(store, tracker):
    cell = make_cell()
    finish(store, cell)
    store.run(cell.run_id).adjusted.write_text("{}")
    delivery_to(tracker, store, [cell], started_here={cell.run_id}).deliver(final=True)
    tracked = kept(tracker, cell)
    assert set(tracked.files) == {
        "config.yaml", "status.json", "adjusted.json", "environment.json", "requirements.txt", "evaluation.json",
        "checkpoints.json", "dynamics.parquet", "figures/dynamics.png", "figures/dynamics.svg",
    }  # fmt: skip
    assert b"torch==" in tracked.files["requirements.txt"]
    manifest = json.loads(tracked.files["checkpoints.json"])
    assert manifest["final"]["model.safetensors"]["bytes"] == 23
    (store.root / "one.parquet").write_bytes(tracked.files["dynamics.parquet"])
    assert pq.read_table(store.root / "one.parquet")["step"].to_pylist() == list(range(1, 21))
    table = tracked.tables["benchmarks.json"]
    assert [(row["benchmark"], row["value"]) for row in table] == [("preference", 0.75), ("mmlu", None)]
    assert tracked.run.newest["preference/accuracy"] == 0.75
    assert not any("mmlu" in name for name in tracked.run.newest), "no score is not a number"


def test_items_of_the_newest_measurement_are_sent(store, tracker):
    cell = make_cell()
    finish(store, cell)
    run = store.run(cell.run_id)
    rows = run.read_evaluation().rows
    for key in ("earlier", "newest"):
        write_evaluation(run.evaluation, Evaluation(rows, {"preference": key}))
        write_items(run.items(key), Items(("row 1",), ("",), {"accuracy": np.ones(1)}))
    delivery_to(tracker, store, [cell]).deliver(final=True)
    files = kept(tracker, cell).files
    assert [name for name in files if name.startswith("items/")] == ["items/newest.parquet"]
    assert files["items/newest.parquet"] == run.items("newest").read_bytes()


def test_repeating_sends_nothing(store, tracker):
    cells = four_cells()
    for cell in cells:
        finish(store, cell)
    delivery_to(tracker, store, cells).deliver(final=True)
    points = {run: set(tracked.points) for run, tracked in tracker.kept.items()}
    again = delivery_to(tracker, store, cells)
    tracker.calls.clear()
    again.deliver(final=True)
    assert again.sent.nothing
    assert not {"log_points", "log_files", "log_table", "set_tags", "create_run", "log_params"} & set(tracker.calls)
    assert {run: tracked.points for run, tracked in tracker.kept.items()} == points


def test_later_metrics_replace_earlier_ones(store, tracker):
    cell = make_cell()
    finish(store, cell, accuracy=0.75)
    delivery_to(tracker, store, [cell]).deliver(final=True)
    before = tracker.calls.count("log_files")
    evaluate(store, cell, 0.875)
    second = delivery_to(tracker, store, [cell])
    second.deliver(final=True)
    tracked = kept(tracker, cell)
    assert tracked.run.newest["preference/accuracy"] == 0.875
    assert tracked.tables["benchmarks.json"][0]["value"] == 0.875
    assert tracker.calls.count("log_files") == before + 1
    assert second.sent.files == 1, "only the file that changed"


@pytest.mark.parametrize(("status", "state"), [("failed", "FAILED"), ("oom", "FAILED"), ("degenerate", "FAILED")])
def test_a_cell_without_a_result_says_so(store, tracker, status, state):
    cell = make_cell()
    train_to(store, cell, 10)
    set_status(store, cell, status, error="loss is nan at step 11")
    delivery_to(tracker, store, [cell], awaits_evaluation=True).deliver()
    run = kept(tracker, cell).run
    assert (run.state, run.tags["rcray.status"], run.tags["rcray.error"]) == (state, status, "loss is nan at step 11")
    assert "dynamics.parquet" in kept(tracker, cell).files
    assert not any(name.startswith("preference/") for name in run.newest)
    finish(store, cell)  # run again, and it went well
    set_status(store, cell, "ok", error="")
    delivery_to(tracker, store, [cell]).deliver()
    run = kept(tracker, cell).run
    assert (run.state, run.tags["rcray.status"], run.tags["rcray.error"]) == ("FINISHED", "ok", "")


def test_an_interrupted_run_is_not_running(store, tracker):
    cell = make_cell()
    with reporting(store.run(cell.run_id).path):
        train_to(store, cell, 10)
        report(TRAINING, 10, 20)
        delivery_to(tracker, store, [cell]).deliver()
        assert kept(tracker, cell).run.state == "RUNNING"
    delivery_to(tracker, store, [cell]).deliver(final=True)  # it says `running`, and no process reports on it
    run = kept(tracker, cell).run
    assert (run.state, run.tags["rcray.status"]) == ("KILLED", "pending")
    finish(store, cell)
    delivery_to(tracker, store, [cell]).deliver(final=True)
    assert kept(tracker, cell).run.state == "FINISHED"
    assert len(tracker.curve(kept(tracker, cell).run.id, "loss")) == 20


def test_a_single_run_joins_its_sweep_later(store, tracker):
    cells = four_cells()
    finish(store, cells[0])
    delivery_to(tracker, store, cells[:1], parent=False).deliver(final=True)
    assert len(tracker.kept) == 1
    assert "mlflow.parentRunId" not in kept(tracker, cells[0]).run.tags
    for cell in cells[1:]:
        finish(store, cell)
    delivery_to(tracker, store, cells).deliver(final=True)
    assert len(tracker.kept) == 5
    parent = kept(tracker, cells[1]).run.tags["mlflow.parentRunId"]
    assert kept(tracker, cells[0]).run.tags["mlflow.parentRunId"] == parent


def test_two_deliveries_in_turn_double_nothing(store, tracker):
    cell = make_cell(steps=20)
    first, second = (delivery_to(tracker, store, [cell], live=True) for _ in range(2))
    for step in (5, 10, 15):
        train_to(store, cell, step)
        first.deliver()
        second.deliver()
        train_to(store, cell, step + 2)
        second.deliver()
        first.deliver()
    assert [step for step, _ in tracker.curve(kept(tracker, cell).run.id, "loss")] == list(range(1, 18))
    assert sum(call == "log_points" for call in tracker.calls) == 6


def test_a_book_in_use_is_waited_for_and_then_named(store, tracker):
    cell = make_cell()
    finish(store, cell)
    with Book(store, "small").held(0), pytest.raises(DeliveryBusyError, match="small: another process"):
        delivery_to(tracker, store, [cell]).deliver(patience=0.1)


def test_cells_are_entered_while_somebody_delivers(store):
    """A second training of the same experiment must not wait for the first one's slow server."""
    first, second = make_cell("dpo"), make_cell("cpo")
    book = Book(store, "small")
    book.enter([first], "", URI)
    with book.held(0):
        Book(store, "small").enter([second], "A title", None)
        assert [cell.run_id for cell in book.cells()] == [first.run_id, second.run_id]
    assert (book.title, book.uri) == ("A title", URI)
    assert book.cells()[1] == second


def test_a_cell_of_another_version_is_left_alone_and_named(store, caplog):
    book = Book(store, "small")
    book.enter([make_cell("dpo"), make_cell("cpo")], "", URI)
    cell = make_cell("dpo").content()
    cell["config"]["train"]["flux"] = 1
    with book.path.open("a") as file:  # the later line wins
        file.write(json.dumps({"cell": cell}) + "\n")
    assert [cell.run_id for cell in book.cells()] == [make_cell("cpo").run_id]
    assert make_cell("dpo").run_id in caplog.text


def test_two_stores_on_one_server_are_two_sweeps(store, tracker, tmp_path):
    cell = make_cell()
    other = Store.open(tmp_path / "other")
    for place in (store, other):
        finish(place, cell)
        delivery_to(tracker, place, [cell]).deliver(final=True)
    assert len(tracker.kept) == 4
    assert len({tracked.run.tags["rcray.store"] for tracked in tracker.kept.values()}) == 2


def test_the_parent_gets_ledger_tables_figures_and_report(store, tracker):
    cell = make_cell()
    finish(store, cell)
    folder = store.experiment("small")
    there = {"ledger.json", "report.html", "explore.html", "tables/results.md", "figures/a.png"}
    for name in there:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"content of {name}")
    delivery = delivery_to(tracker, store, [cell])
    delivery.deliver(final=True)
    for _ in range(2):
        delivery.finish("FINISHED", [*report_paths(folder), folder / "absent"], "1 ok")
    (parent,) = [k for k in tracker.kept.values() if k.run.tags["rcray.kind"] == "sweep"]
    assert set(parent.files) == there, "the report's link to explore.html leads somewhere"
    assert (parent.run.state, parent.run.tags["rcray.tally"]) == ("FINISHED", "1 ok")
    assert tracker.calls.count("log_files") == 2  # the cell's and the parent's


def test_flat_names():
    assert flatten({"a": {"b": 1, "c": {"d": [2]}}, "e": {}}) == {"a.b": 1, "a.c.d": [2], "e": {}}
