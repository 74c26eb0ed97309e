"""Sessions: who trains what, however its process ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rcray.errors import ConfigError
from rcray.follow import one_to_follow
from rcray.follower import Delivered, Follower
from rcray.store import Store
from rcray.track.book import Book
from rcray.track.sessions import OpenSession, Session, live_sessions, read_session, remove_session
from tests.track.stored_runs import make_cell

ROOT = Path(__file__).parents[2]
KILLED = """
import os, signal, sys
from pathlib import Path
from rcray.track.sessions import OpenSession, Session
OpenSession(Path(sys.argv[1]), Session(("a",))).open()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_session_from_its_opening_to_its_end(tmp_path):
    session = Session(("a", "b"), ("b",), is_sweep=True)
    mine = OpenSession(tmp_path, session)
    mine.open()
    assert live_sessions(tmp_path) == {mine.id: session}
    later = Session(("a", "b"), ("b",), is_sweep=True, is_training=False)
    mine.update(later)
    assert live_sessions(tmp_path) == {mine.id: later}
    mine.close()
    assert live_sessions(tmp_path) == {}
    assert read_session(tmp_path, mine.id) == later, "its follower may come late"
    remove_session(tmp_path, mine.id)
    assert list(tmp_path.iterdir()) == []


def test_a_killed_session_is_dead_and_the_next_one_clears_it_away(tmp_path):
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], cwd=ROOT, timeout=240)
    assert done.returncode == -signal.SIGKILL
    (left,) = tmp_path.glob(".session-*.json")
    assert live_sessions(tmp_path) == {}
    mine = OpenSession(tmp_path, Session(("b",)))
    mine.open()
    assert not left.exists() and live_sessions(tmp_path) == {mine.id: Session(("b",))}
    mine.close()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"cells": 3}'])
def test_a_damaged_session_is_not_followed(tmp_path, content):
    mine = OpenSession(tmp_path, Session(("a",)))
    mine.open()
    (tmp_path / f".session-{mine.id}.json").write_text(content)
    assert live_sessions(tmp_path) == {}
    mine.close()


def test_no_address_is_in_a_session(tmp_path):
    mine = OpenSession(tmp_path, Session(("a",), environment=f"host:{os.sep}venv"))
    mine.open()
    assert "://" not in (tmp_path / f".session-{mine.id}.json").read_text()
    mine.close()


def test_which_experiment_is_followed(tmp_path):
    """The only one; of several the only one that is being trained."""
    store = Store.open(tmp_path)
    tracked = [Book(store, name) for name in ("first", "second")]
    for book in tracked:
        book.enter([make_cell()], "", store.default_tracking_uri)
    assert one_to_follow(tracked[:1]) is tracked[0]
    with pytest.raises(ConfigError, match="being trained here: none"):
        one_to_follow(tracked)
    sessions = [OpenSession(book.path.parent, Session((make_cell().run_id,))) for book in tracked]
    sessions[1].open()
    assert one_to_follow(tracked) is tracked[1]
    sessions[0].open()
    with pytest.raises(ConfigError, match="being trained here: first, second"):
        one_to_follow(tracked)
    for session in sessions:
        session.close()


@pytest.mark.parametrize("before", ["", "delivering small to sqlite:///x.db\n"])
def test_what_a_follower_ended_with_is_told(tmp_path, before):
    """Also where it came to say nothing else."""
    ended = f"import sys; sys.stderr.write({before!r} + 'error: no such address\\n  fix: give another'); sys.exit(2)"
    book = Book(Store.open(tmp_path), "small")
    book.enter([make_cell()], "", "sqlite:///x.db")
    follower = Follower(book, "sqlite:///x.db", Session(("a",)))
    with follower._log_file.open("a+") as follower._log:
        follower._log_start = 0
        follower.process = subprocess.Popen([sys.executable, "-c", ended], stderr=follower._log)
        assert follower._await() == Delivered(problem="no such address")
