"""The store: files are written whole or not at all, and an unusable path is refused at the door."""

import errno
import json
import os
import tempfile
import threading

import pytest

from rcray.errors import EXIT_FAILED, StoreError
from rcray.files import read_json, write_atomic, write_json
from rcray.records.status import RunStatus
from rcray.store import Store


def test_open_makes_the_directory_and_leaves_nothing_in_it(tmp_path):
    store = Store.open(tmp_path / "deep" / "store")
    assert store.root.is_dir()
    assert list(store.root.iterdir()) == []
    assert Store.open(store.root) == store


def test_the_root_is_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = Store.open("here")
    assert store.root == (tmp_path / "here").resolve()
    assert store.default_tracking_uri == f"sqlite:///{store.root}/mlflow.db"


def refused(path) -> str:
    with pytest.raises(StoreError) as caught:
        Store.open(path)
    message = str(caught.value)
    assert caught.value.exit_code == EXIT_FAILED
    assert str(path) in message and "--store" in message
    return message


def test_a_regular_file_is_no_store(tmp_path):
    path = tmp_path / "file"
    path.write_text("mine")
    refused(path)
    refused(path / "below")
    assert path.read_text() == "mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_without_permission(tmp_path):
    tmp_path.chmod(0o500)
    try:
        refused(tmp_path)
        refused(tmp_path / "below")
    finally:
        tmp_path.chmod(0o700)


def test_a_read_only_file_system(tmp_path, monkeypatch):
    def refuse(*_args, **_kwargs):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(tempfile, "NamedTemporaryFile", refuse)
    assert "Read-only file system" in refused(tmp_path)


def test_paths_of_a_run(tmp_path):
    run = Store(tmp_path).run("abc")
    assert run.run_id == "abc"
    below = {run.config, run.status, run.dynamics, run.checkpoints, run.final, run.evaluation}
    assert len(below) == 6
    assert {path.parent for path in below} == {tmp_path / "runs" / "abc"}


def test_a_run_that_never_started_has_an_empty_status(tmp_path):
    assert Store(tmp_path).run("abc").read_status() == RunStatus()


# -- files


def test_write_atomic_makes_parents_and_a_file_others_can_read(tmp_path):
    path = tmp_path / "a" / "b.txt"
    write_atomic(path, "tränen")
    assert path.read_bytes() == "tränen".encode()
    assert path.stat().st_mode & 0o777 == 0o644
    write_atomic(path, b"\x00\xff")
    assert path.read_bytes() == b"\x00\xff"


@pytest.mark.parametrize("step", ["fsync", "chmod", "replace"])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left"), KeyboardInterrupt()])
def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path, monkeypatch, step, error):
    path = tmp_path / "file.json"
    write_atomic(path, "old")

    def fail(*_args, **_kwargs):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(os, step, fail)
        with pytest.raises(type(error)):
            write_atomic(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_reader_never_sees_half(tmp_path):
    path = tmp_path / "file"
    contents = {bytes([i]) * 200_000 for i in range(1, 9)}
    write_atomic(path, min(contents))
    stop, seen = threading.Event(), set()

    def read():
        while not stop.is_set():
            seen.add(path.read_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    for content in sorted(contents):
        write_atomic(path, content)
    stop.set()
    reader.join()
    assert seen and seen <= contents


def test_json_round_trip(tmp_path):
    content = {"status": "ok", "error": "naïve – “quoted”", "step": 3, "rows": [1.5, None]}
    write_json(tmp_path / "x.json", content)
    assert read_json(tmp_path / "x.json") == content
    assert json.loads((tmp_path / "x.json").read_text(encoding="utf-8")) == content


def test_json_that_cannot_be_written_leaves_the_old(tmp_path):
    write_json(tmp_path / "x.json", {"a": 1})
    with pytest.raises(TypeError):
        write_json(tmp_path / "x.json", {"a": object()})
    assert read_json(tmp_path / "x.json") == {"a": 1}


def test_no_file_is_the_default(tmp_path):
    assert read_json(tmp_path / "x.json") is None
    assert read_json(tmp_path / "x.json", default={}) == {}


@pytest.mark.parametrize("content", [b"", b"{", b'{"a": 1', b"\xff\xfe", b"no json"])
def test_damaged_json_names_the_file(tmp_path, content):
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(StoreError, match=r"x\.json: damaged JSON") as caught:
        read_json(tmp_path / "x.json", default={})
    assert "delete the file" in str(caught.value)


def test_a_path_through_a_file_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be read"):
        read_json(tmp_path / "file" / "status.json", default={})
