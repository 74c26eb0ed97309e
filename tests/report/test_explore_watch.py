"""`rcray watch`: a store as it is now, and the server that feeds the page to explore."""

import http.client
import json
import os
import platform
import shlex
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import psutil
import pytest
import yaml
from typer.testing import CliRunner

from rcray.aggregate.explore.command import watch_experiments, watch_store
from rcray.aggregate.explore.curves import step_records
from rcray.aggregate.explore.server import PageServer
from rcray.cli import app
from rcray.errors import StoreError
from rcray.files import write_json
from rcray.records.ledger import Ledger, LedgerEntry, write_ledger, write_stopped
from rcray.records.live import FILE as LIVE
from rcray.store import Store
from tests.report import runs
from tests.report.explored import HOSTILE, experiment, made_records, unpacked


def note_progress(run, pid=None, done=37, total=200):
    process = psutil.Process(pid or os.getpid())
    write_json(
        run.path / ".progress.json",
        {"phase": "training", "done": done, "total": total, "host": platform.node(), "pid": process.pid,
         "born": process.create_time(), "updated": time.time()},
    )  # fmt: skip


def test_rows_of_a_running_cell_are_read_as_they_come(own):
    """Parts hold what a checkpoint vouches for; the rest is in the live rows, and a torn line is none."""
    store, cells = own
    run = runs.make(store, cells[0], "running", steps=30)
    runs.write_dynamics(run, cells[0], 30, 1, columns={k: v[:30] for k, v in made_records(cells[0], 200).items()})
    for part in run.dynamics.glob("*00000200.parquet"):
        part.unlink()
    (run.path / ".progress.json").unlink(missing_ok=True)
    watch = watch_experiments(store, [([], experiment(), cells)])
    before = watch.state()
    assert before["runs"][cells[0].run_id]["state"] == "pending", "nobody is at it"
    assert before["runs"][cells[0].run_id]["interrupted"]
    note_progress(run)
    rows = [{"step": step, "loss": step / 10, "log_r": 0.5} for step in (30, 31, 32)]
    (run.path / LIVE).write_text("\n".join(map(json.dumps, rows)) + '\n{"step": 33, "lo')
    watch._looked = 0.0
    after = watch.state(before["version"])
    assert list(after["runs"]) == [cells[0].run_id], "only what changed"
    now = after["runs"][cells[0].run_id]
    assert (now["state"], now["step"], now["doing"]) == ("running", 32, "training 37/200")
    assert list(unpacked(now["curves"]["x"]["d"]))[-3:] == [30, 31, 32]
    assert unpacked(now["curves"]["y"]["loss"][1])[-1] == pytest.approx(3.2)
    assert len(step_records(run)["step"]) == 30, "a report has what is vouched for"
    watch._looked = 0.0
    assert watch.state(after["version"])["runs"] == {}


def test_a_killed_cell_is_not_running_and_a_failed_one_says_why(own):
    store, cells = own
    killed = runs.make(store, cells[0], "running", steps=30)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    note_progress(killed, child.pid)
    runs.make(store, cells[1], "failed", error=f"out of luck {HOSTILE}", steps=30)
    watch = watch_experiments(store, [([], experiment(), cells)])
    assert watch.state()["runs"][cells[0].run_id]["state"] == "running"
    child.kill()
    child.wait()
    watch._looked = 0.0
    state = watch.state()
    assert state["runs"][cells[0].run_id]["state"] == "pending"
    assert state["runs"][cells[1].run_id]["state"] == "failed"
    assert state["runs"][cells[1].run_id]["error"].startswith("out of luck")
    words = next(group["numbers"][0] for group in state["head"]["groups"] if cells[0].run_id in group["runs"])
    assert words == "pending/failed", "a word, never a number"


@contextmanager
def serving(watch):
    server = PageServer(watch, 0)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def get(server, path, host=None, method="GET"):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    connection.request(method, path, headers={"Host": host or f"127.0.0.1:{server.server_port}"})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body


def test_the_server_answers_its_own_page_and_nobody_else(swept):
    store, cells, _ = swept
    before = sorted(store.root.rglob("*"))
    with serving(watch_experiments(store, [(["rcray", "sweep", "x.yaml"], experiment(), cells)])) as server:
        assert server.server_address[0] == "127.0.0.1"
        status, page = get(server, "/")
        assert status == 200 and b"connect-src &#39;self&#39;" in page and b'data-live="yes"' in page
        state = json.loads(get(server, "/state")[1])
        assert len(state["runs"]) == 12 and state["head"]["commands"][0]["text"] == "rcray sweep x.yaml"
        assert json.loads(get(server, f"/state?after={state['version']}")[1])["runs"] == {}
        run = cells[0].run_id
        assert json.loads(get(server, f"/details/{run}")[1])["runs"][run]["displaced"]
        assert len(unpacked(json.loads(get(server, f"/records/{run}")[1])["y"]["loss"][1])) == 200
        assert get(server, "/state", host="evil.example:80")[0] == 403, "a name that somebody else rebound"
        for path in (
            "/details/../../x",
            "/details/%2e%2e%2f",
            "/runs",
            "/records/none",
            "/differences/none",
            "/state/x",
        ):
            assert get(server, path)[0] == 404, path
        assert get(server, "/state", method="POST")[0] == 501
    assert sorted(store.root.rglob("*")) == before, "it only reads"


def test_a_store_alone_is_enough(own):
    store, cells = own
    folder = store.experiment("quickstart")
    write_ledger(folder, Ledger(tuple(LedgerEntry(cell.run_id, cell.label) for cell in cells)))
    for cell in cells[:3]:
        store.run(cell.run_id).config.write_text(yaml.safe_dump(cell.config.model_dump(mode="json")))
    state = watch_store(store).state()
    assert set(state["runs"]) == {cell.run_id for cell in cells[:3]}
    assert state["head"]["description"].startswith("9 cells were not started")
    with pytest.raises(StoreError, match="nothing was swept here"):
        watch_store(Store.at(store.root / "nothing"))


def test_runs_that_experiments_share_are_counted_once(own):
    store, cells = own
    for name in ("quickstart", "other"):
        write_ledger(store.experiment(name), Ledger(tuple(LedgerEntry(cell.run_id, cell.label) for cell in cells)))
    for cell in cells[:3]:
        store.run(cell.run_id).config.write_text(yaml.safe_dump(cell.config.model_dump(mode="json")))
    watch = watch_store(store)
    assert watch.state()["head"]["description"].startswith("9 cells were not started")
    assert "rcray watch FILE" in watch.state()["head"]["no_command"]


def test_a_search_that_begins_later_has_its_stopped_runs_shown(own):
    store, cells = own
    write_ledger(store.experiment("first"), Ledger((LedgerEntry(cells[0].run_id, "x"),)))
    for cell in cells[:2]:
        store.run(cell.run_id).config.write_text(yaml.safe_dump(cell.config.model_dump(mode="json")))
    watch = watch_store(store)
    assert list(watch.state()["runs"]) == [cells[0].run_id]
    runs.write_status(store.run(cells[1].run_id), cells[1], "pending", step=3)
    write_ledger(store.experiment("second"), Ledger((LedgerEntry(cells[1].run_id, "y"),)))
    write_stopped(store.experiment("second"), cells[1].run_id, "behind")
    watch._looked = 0.0
    assert watch.state()["runs"][cells[1].run_id]["state"] == "stopped"


def test_a_damaged_file_is_left_where_it_is(own, caplog):
    """It only reads: what a sweep would set aside stays, and is said once."""
    store, cells = own
    damaged = store.experiment("quickstart") / "stopped.json"
    damaged.parent.mkdir(parents=True, exist_ok=True)
    damaged.write_text("{ no")
    before = sorted(store.root.rglob("*"))
    watch = watch_experiments(store, [([], experiment(), cells)])
    for _ in range(3):
        watch._looked = 0.0
        assert len(watch.state()["runs"]) == 12
    assert sorted(store.root.rglob("*")) == before and damaged.read_text() == "{ no"
    assert sum("stopped.json" in record.message for record in caplog.records) == 1


def test_a_page_of_an_earlier_server_gets_everything(own):
    store, cells = own
    earlier = watch_experiments(store, [([], experiment(), cells)])
    for _ in range(5):
        earlier._looked = 0.0
        runs.make(store, cells[0], "failed", error=str(time.monotonic_ns()))
        known = earlier.state()["version"]
    time.sleep(0.05)
    later = watch_experiments(store, [([], experiment(), cells)])
    assert len(later.state(known)["runs"]) == 12
    assert len(later.state(10**15)["runs"]) == 12, "nor is a version that is still to come one of ours"
    assert later.state(later.state()["version"])["runs"] == {}


def test_differences_depend_on_what_tables_say(own):
    """A step more of a running cell is no news for them: the head keeps its version."""
    store, cells = own
    run = runs.make(store, cells[0], "running", steps=30)
    note_progress(run, done=30)
    watch = watch_experiments(store, [([], experiment(), cells)])
    before = watch.state()
    note_progress(run, done=31)
    watch._looked = 0.0
    after = watch.state()
    assert after["version"] > before["version"] and after["head_version"] == before["head_version"]
    runs.make(store, cells[0], "failed", error="no luck", steps=30)
    (run.path / ".progress.json").unlink()
    watch._looked = 0.0
    assert watch.state()["head_version"] > before["head_version"]


def test_a_store_that_cannot_be_read_is_answered_and_asked_again(own, monkeypatch):
    store, cells = own
    watch = watch_experiments(store, [([], experiment(), cells)])
    with serving(watch) as server, monkeypatch.context() as patch:

        def refuse(*_):
            raise StoreError("the disk is away", fix="mount it")

        patch.setattr("rcray.aggregate.explore.watch.read_run", refuse)
        for path in ("/", "/state"):
            assert get(server, path) == (503, b"the disk is away\n")
        patch.undo()
        assert get(server, "/")[0] == 200 and len(json.loads(get(server, "/state")[1])["runs"]) == 12


def test_the_command_that_the_page_offers_names_the_store(own, tmp_path, monkeypatch):
    """Whoever watches another store runs cells there, too; a page that is a file names none."""
    store, _ = own
    made = experiment()
    file = tmp_path / "grid.yaml"
    file.write_text(yaml.safe_dump(made.model_dump(mode="json", include={"name", "run", "grid"})))
    watched = []
    monkeypatch.setattr("rcray.aggregate.explore.server.serve", lambda watch, *_: watched.append(watch))
    for place in (["--store", str(store.root)], []):
        done = CliRunner().invoke(app, ["watch", str(file), *place])
        assert done.exit_code == 0, done.output
        (command,) = watched.pop().state()["head"]["commands"]
        assert command["text"] == shlex.join(["rcray", "sweep", str(file), *place])


def test_two_files_that_share_cells_are_watched_together(own, tmp_path, monkeypatch):
    """A shared run is there once; each file's command runs all of its own cells."""
    store, cells = own
    made = experiment()
    files = []
    for name, objectives in (("first", ["dpo", "cpo"]), ("second", ["cpo", "dil-bce"])):
        content = made.model_dump(mode="json", include={"run"}) | {
            "name": name,
            "grid": {**made.grid, "objective": objectives},
        }
        files.append(tmp_path / f"{name}.yaml")
        files[-1].write_text(yaml.safe_dump(content))
    watched = []
    monkeypatch.setattr("rcray.aggregate.explore.server.serve", lambda watch, *_: watched.append(watch))
    done = CliRunner().invoke(app, ["watch", *map(str, files), "--store", str(store.root)])
    assert done.exit_code == 0, done.output
    state = watched.pop().state()
    assert (state["head"]["name"], state["head"]["title"]) == ("first, second", "2 experiments")
    assert set(state["runs"]) == {cell.run_id for cell in cells}, "eight and eight, four of them shared"
    assert [run for group in state["head"]["groups"] for run in group["runs"]].count(cells[4].run_id) == 1
    first, second = (set(command["runs"]) for command in state["head"]["commands"])
    assert (len(first), len(second), len(first & second)) == (8, 8, 4)
    assert all(run["state"] == "ok" for run in state["runs"].values())
