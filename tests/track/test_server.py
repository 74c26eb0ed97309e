"""Against a real `mlflow server` on SQLite, and real SQLite files: what a person will find there."""

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from mlflow.tracking import MlflowClient

from rcray.follower import Follower
from rcray.records.columns import METRICS
from rcray.store import Store
from rcray.sync import delivery_to
from rcray.track.address import Address
from rcray.track.book import Book
from rcray.track.delivery import DeliveryPlan
from rcray.track.describe import params_of
from rcray.track.mlflow import MlflowTracker
from rcray.track.sessions import OpenSession, Session, live_sessions, this_environment
from rcray.track.tracker import TrackerUnavailableError
from rcray.train.dynamics import read_dynamics
from tests.track.servers import LosingProxy, MlflowServer
from tests.track.stored_runs import finish, four_cells, make_cell, train_to

ROOT = Path(__file__).parents[2]
RCRAY = [sys.executable, "-c", "from rcray.cli import main; main()"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    running = MlflowServer(tmp_path_factory.mktemp("server")).start()
    yield running
    running.kill()


@pytest.fixture
def empty_store(tmp_path):
    return Store.open(tmp_path / "store")


def session_of(cells):
    ids = tuple(cell.run_id for cell in cells)
    return Session(ids, ids, is_sweep=True, environment=this_environment())


def follower_of(store, uri, name, cells):
    book = Book(store, name)
    book.enter(cells, "", uri)
    return Follower(book, uri, session_of(cells))


def runs_of(uri, name):
    """The parents, and the cells by run id; no cell twice."""
    client = MlflowClient(uri)
    runs = client.search_runs([client.get_experiment_by_name(name).experiment_id])
    parents = [r for r in runs if r.data.tags["rcray.kind"] == "sweep"]
    cells = {r.data.tags["rcray.run_id"]: r for r in runs if r.data.tags["rcray.kind"] == "cell"}
    assert len(parents) + len(cells) == len(runs), "a cell has two MLflow runs"
    return client, parents, cells


def files_of(client, run, folder=None):
    files = []
    for entry in client.list_artifacts(run, folder):
        files += files_of(client, run, entry.path) if entry.is_dir else [entry.path]
    return sorted(files)


def assert_every_point_once(client, run, store, cell):
    """Step by step what the records say, for every curve, no step twice."""
    records = read_dynamics(store.run(cell.run_id).dynamics).to_pylist()
    for name in METRICS:
        points = sorted((p.step, p.value) for p in client.get_metric_history(run.info.run_id, name))
        wanted = [(row["step"], float(row[name])) for row in records]
        assert points == [(step, v) for step, v in wanted if abs(v) < float("inf")], name


def test_a_new_run_is_known_as_the_server_has_it(server, tmp_path):
    """Else one that is training already would stay scheduled there until it ends."""
    tracker = MlflowTracker(Address(server.url), tmp_path)
    run = tracker.create_run(tracker.open_experiment("new"), "one", {}, 1)
    assert run.state == tracker.read_run(run.id).state == "SCHEDULED"


def test_a_lost_answer_doubles_nothing(server, empty_store, monkeypatch):
    """Every second answer to a log request is lost on the way back, after the server stored it."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")  # ours is the second try, not the client's
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.url)  # `load_table` asks no client
    cell = make_cell(steps=60)
    finish(empty_store, cell)
    with LosingProxy(server.url) as proxy:
        delivery = delivery_to(Address(proxy.url), empty_store, DeliveryPlan("lossy", "", [cell]))
        for _ in range(20):
            try:
                delivery.deliver(final=True)
                break
            except TrackerUnavailableError:
                continue
        else:
            pytest.fail("never delivered")
        assert proxy.lost >= 3
    client, parents, cells = runs_of(server.url, "lossy")
    assert len(parents) == 1
    assert_every_point_once(client, cells[cell.run_id], empty_store, cell)
    assert cells[cell.run_id].data.params == params_of(cell.config)
    table = client.load_table(cells[cell.run_id].info.experiment_id, "benchmarks.json")
    assert table["value"].tolist()[0] == 0.75 and len(table) == 2


def test_a_server_that_never_answers_is_given_up_on(empty_store, monkeypatch):
    """It takes the connection and says nothing: the command ends all the same, and says how to go on."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setattr("rcray.follower.STALL_SECONDS", 600)
    cell = make_cell()
    finish(empty_store, cell)
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen(50)
        uri = f"http://127.0.0.1:{mute.getsockname()[1]}"
        started = time.monotonic()
        with follower_of(empty_store, uri, "mute", [cell]) as follower:
            begun = time.monotonic() - started
            outcome = follower.finish()
    assert begun < (time.monotonic() - started) / 2, "starting it waits for nobody"
    assert not outcome.complete
    assert "timed out" in outcome.problem.lower() or "timeout" in outcome.problem.lower()


@pytest.mark.slow
def test_sync_delivers_what_a_dead_server_did_not_get(server, empty_store):
    """`rcray sync` by itself: refused while the server is away, complete when it is back, nothing new after that."""
    server.kill()
    cells = four_cells()[:2]
    for cell in cells:
        finish(empty_store, cell)
    Book(empty_store, "late").enter(cells, "", server.url)
    (empty_store.experiment("late") / "ledger.json").write_text("{}")
    command = [*RCRAY, "sync", "--store", str(empty_store.root)]
    environment = {**os.environ, "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}

    def sync():
        return subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)

    away = sync()
    assert away.returncode == 1, away.stdout + away.stderr
    assert "does not answer" in away.stderr and "Traceback" not in away.stderr
    server.start()
    done = sync()
    assert done.returncode == 0, done.stderr
    assert "late: 2 cells, 2 new runs" in done.stdout
    assert "nothing new" in sync().stdout
    client, parents, tracked = runs_of(server.url, "late")
    assert len(parents) == 1
    for cell in cells:
        assert_every_point_once(client, tracked[cell.run_id], empty_store, cell)


def test_two_deliverers_at_once_on_one_fresh_database(tmp_path):
    """Two experiments and two followers on a file that neither has opened yet; one shared cell in both."""
    database = f"sqlite:///{tmp_path / 'shared.db'}"
    store = Store.open(tmp_path / "store")
    shared = make_cell("dpo", steps=40)
    grids = {"first": [shared, make_cell("cpo", steps=40)], "second": [shared, make_cell("simpo", steps=40)]}
    for cell in {cell.run_id: cell for cells in grids.values() for cell in cells}.values():
        finish(store, cell)
    followers = {name: follower_of(store, database, name, cells) for name, cells in grids.items()}
    outcomes = {}

    def run(name):
        with followers[name] as follower:
            outcomes[name] = follower.finish()

    threads = [threading.Thread(target=run, args=(name,)) for name in grids]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, cells in grids.items():
        assert outcomes[name].complete, outcomes[name]
        client, parents, tracked = runs_of(database, name)
        assert len(parents) == 1 and set(tracked) == {cell.run_id for cell in cells}
        for cell in cells:
            assert_every_point_once(client, tracked[cell.run_id], store, cell)
    assert sqlite3.connect(tmp_path / "shared.db").execute("pragma integrity_check").fetchone() == ("ok",)


ABANDONED = """
import os, signal, sys
from rcray.follower import Follower
from rcray.store import Store
from rcray.track.book import Book
from rcray.track.sessions import Session
book = Book(Store.open(sys.argv[1]), "orphan")
follower = Follower(book, book.uri, Session(tuple(cell.run_id for cell in book.cells()), is_sweep=True))
follower.__enter__()
print(follower.process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_follower_whose_command_is_killed_still_delivers(empty_store):
    """SIGKILL of the command: what is on disk reaches the tracker, and the follower ends."""
    cell = make_cell()
    train_to(empty_store, cell, 10)
    uri = empty_store.default_tracking_uri
    book = Book(empty_store, "orphan")
    book.enter([cell], "", uri)
    command = [sys.executable, "-c", ABANDONED, str(empty_store.root)]
    killed = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=600)
    pid = int(killed.stdout)
    deadline = time.monotonic() + 600
    while is_alive(pid):
        assert time.monotonic() < deadline, (book.path.parent / "sync.log").read_text()
        time.sleep(0.1)
    client, _, tracked = runs_of(uri, "orphan")
    assert len(client.get_metric_history(tracked[cell.run_id].info.run_id, "loss")) == 10
    assert tracked[cell.run_id].info.status == "KILLED"
    assert list(book.path.parent.glob(".session-*")) == []


def is_alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def follow(store, name, *more, **environment):
    """`rcray sync --follow` as a person starts it."""
    return subprocess.Popen(
        [*RCRAY, "sync", name, "--follow", "--store", str(store.root), *more],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **environment},
    )  # fmt: skip


def test_two_followers_of_a_running_session_double_nothing(empty_store):
    """A person follows a sweep that has its own follower; both end by themselves once the sweep has ended."""
    cell = make_cell(steps=60)
    train_to(empty_store, cell, 20)
    uri = empty_store.default_tracking_uri
    with follower_of(empty_store, uri, "twice", [cell]) as follower:
        by_hand = follow(empty_store, "twice")
        book, holders, deadline = empty_store.experiment("twice") / "tracking.jsonl", set(), time.monotonic() + 600
        while len(holders) < 2:  # both have delivered
            assert time.monotonic() < deadline and by_hand.poll() is None and follower.process.poll() is None
            holders |= {line for line in book.read_text().splitlines(keepends=True) if "holder" in line}
            train_to(empty_store, cell, min(empty_store.run(cell.run_id).read_status().step + 1, 50))
            time.sleep(0.1)
        assert len(live_sessions(empty_store.experiment("twice"))) == 1
        finish(empty_store, cell)
        follower.end_training()
        outcome = follower.finish()
    said, _ = by_hand.communicate(timeout=600)
    assert outcome.complete and by_hand.returncode == 0, (outcome, said)
    assert "delivering twice to sqlite:///" in said and "twice: 1 cells, " in said
    client, parents, tracked = runs_of(uri, "twice")
    assert len(parents) == 1 and parents[0].info.status == "FINISHED"
    assert_every_point_once(client, tracked[cell.run_id], empty_store, cell)
    assert not (empty_store.experiment("twice") / "sync.log").exists()


def test_a_follower_is_ended_by_hand(empty_store):
    """Exit code 130, one line, no traceback; the session stays, and the next command delivers."""
    cell = make_cell()
    train_to(empty_store, cell, 10)
    book = Book(empty_store, "ended")
    book.enter([cell], "", empty_store.default_tracking_uri)
    session = OpenSession(book.path.parent, session_of([cell]))
    session.open()
    for sign in (signal.SIGINT, signal.SIGTERM):
        by_hand = follow(empty_store, "ended")
        assert "delivering ended" in by_hand.stdout.readline() + by_hand.stdout.readline()
        by_hand.send_signal(sign)
        said, _ = by_hand.communicate(timeout=600)
        assert by_hand.returncode == 130, said
        assert said.strip() == "interrupted; the same command continues"
    assert len(live_sessions(book.path.parent)) == 1
    session.close()
    by_hand = follow(empty_store, "ended")
    said, _ = by_hand.communicate(timeout=600)
    assert by_hand.returncode == 0 and "ended: 1 cells, 1 new runs" in said


def test_the_address_is_no_argument_and_in_no_file(empty_store):
    """A database's password reaches the follower by its environment alone."""
    cell = make_cell()
    train_to(empty_store, cell, 5)
    uri = "postgresql://me:topsecret@127.0.0.1:1/db"
    with follower_of(empty_store, uri, "guarded", [cell]) as follower:
        log, deadline = empty_store.experiment("guarded") / "sync.log", time.monotonic() + 600
        while "tried again" not in log.read_text():
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        process = psutil.Process(follower.process.pid)
        assert "--follow" in process.cmdline() and "topsecret" not in " ".join(process.cmdline())
        assert process.environ()["MLFLOW_TRACKING_URI"] == uri
        process.terminate()
        outcome = follower.finish()
    assert not outcome.complete and outcome.problem.startswith("delivery ended early (exit code 130)")
    files = [path for path in empty_store.root.rglob("*") if path.is_file()]
    assert any(path.name == "sync.log" for path in files)
    for path in files:
        assert b"topsecret" not in path.read_bytes(), path
