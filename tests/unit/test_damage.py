"""Damage and full disks: what can be made again is set aside and said once, what cannot is an error by name."""

import errno
import json
import logging
import os

import pytest

from rcray.config import load_experiment
from rcray.errors import ConfigError, StoreError
from rcray.files import broken_seal, recover_json, seal, storage_fault, write_json
from rcray.records.ledger import read_stopped, write_stopped
from rcray.records.states import State
from rcray.records.status import Adjustment, RunStatus, Standing, parse_status
from rcray.store import RunDir, Store
from rcray.sweep.grid import expand
from rcray.sweep.ledger import build_ledger
from rcray.track.book import Book

DAMAGED = [b"", b"{", b'{"a": 1', b"\xff\xfe", b"no json", b"[1, 2]", b"null"]


@pytest.mark.parametrize("content", DAMAGED)
def test_a_damaged_file_is_kept_under_another_name_and_said_once(tmp_path, caplog, content):
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert recover_json(path, {}, "made again") == {}
        assert recover_json(path, {}, "made again") == {}
    assert [path.name for path in tmp_path.iterdir()] == ["x.json.damaged-1"]
    assert (tmp_path / "x.json.damaged-1").read_bytes() == content
    (message,) = caplog.messages
    assert str(path) in message and "kept as x.json.damaged-1" in message and message.endswith("made again")


def test_a_second_damage_does_not_replace_the_first(tmp_path):
    for content in (b"first", b"second"):
        (tmp_path / "x.json").write_bytes(content)
        recover_json(tmp_path / "x.json", {}, "")
    assert [(tmp_path / f"x.json.damaged-{i}").read_bytes() for i in (1, 2)] == [b"first", b"second"]


def test_what_is_sound_or_absent_is_left_alone(tmp_path):
    write_json(tmp_path / "x.json", {"a": 1})
    assert recover_json(tmp_path / "x.json", {}, "") == {"a": 1}
    assert recover_json(tmp_path / "none.json", [], "") == []
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


def test_a_file_that_cannot_be_read_is_not_damaged(tmp_path):
    (tmp_path / "x.json").mkdir()
    with pytest.raises(StoreError, match="cannot be read"):
        recover_json(tmp_path / "x.json", {}, "")
    assert (tmp_path / "x.json").is_dir()


def test_a_damaged_status_is_one_of_a_run_that_never_started(tmp_path):
    run = RunDir(tmp_path / "abc")
    run.path.mkdir()
    run.status.write_bytes(b'{"status": "ok"')
    assert run.recover_status() == RunStatus()
    assert not run.status.exists()


def test_who_only_reads_a_damaged_status_leaves_it_there(tmp_path):
    (tmp_path / "x.yaml").write_text("name: x\n")
    cells, store = expand(load_experiment(tmp_path / "x.yaml")), Store.open(tmp_path / "store")
    run = store.run(cells[0].run_id)
    run.path.mkdir(parents=True)
    run.status.write_bytes(b'{"status": "ok"')
    for read in (run.read_status, run.scores):
        with pytest.raises(StoreError, match=r"status\.json: damaged JSON"):
            read()
    (entry,) = build_ledger(cells, store, stopped={}).cells
    assert entry.status is State.PENDING and "status.json: damaged JSON" in entry.error
    assert run.status.read_bytes() == b'{"status": "ok"'


def test_the_standing_of_earlier_records_is_read():
    assert parse_status(b'{"best": {"accuracy": 0.5, "margin": 2.0}}').best == Standing(0.5, 2.0)
    assert parse_status(b'{"best": {"ranked": 0.5, "margin": 2.0}}').best == Standing(0.5, 2.0)


def test_what_was_adjusted_cannot_be_guessed(tmp_path):
    run = RunDir(tmp_path / "abc")
    assert run.read_adjusted() == Adjustment()
    run.path.mkdir()
    run.adjusted.write_bytes(b"{")
    with pytest.raises(StoreError, match=r"adjusted\.json: damaged JSON") as caught:
        run.read_adjusted()
    assert f"remove {run.path}" in str(caught.value)


def test_a_damaged_book_and_a_damaged_list_of_stopped_runs_begin_anew(tmp_path):
    (tmp_path / "x.yaml").write_text("name: x\n")
    experiment = load_experiment(tmp_path / "x.yaml")
    cells, store = expand(experiment), Store.open(tmp_path / "store")
    book = Book(store, "x")
    book.enter(cells, "", "sqlite:///x")
    book.path.write_bytes(b"\x00")
    book.enter(cells, "", "sqlite:///x")
    assert [cell.run_id for cell in book.cells()] == [cell.run_id for cell in cells]
    write_stopped(store.experiment("x"), cells[0].run_id, "behind")
    assert read_stopped(store.experiment("x")) == {cells[0].run_id: "behind"}
    (store.experiment("x") / "stopped.json").write_text("[")
    assert read_stopped(store.experiment("x")) == {}


# -- the disk


def wrapped(error):
    try:
        try:
            raise error
        except type(error) as inner:
            raise RuntimeError("training failed") from inner
    except RuntimeError as outer:
        return outer


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_a_disk_that_takes_no_more_is_found_below_what_it_broke(tmp_path, number):
    error = wrapped(OSError(number, os.strerror(number), "/store/file"))
    assert storage_fault(error) == os.strerror(number)
    with pytest.raises(StoreError) as caught, Store(tmp_path).explained():
        raise error
    assert f"store {tmp_path}: {os.strerror(number)}" in str(caught.value)
    assert ("free space" in str(caught.value)) == (number != errno.EROFS)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
def test_torch_on_a_full_disk_is_understood():
    import torch

    with pytest.raises(RuntimeError) as caught:
        torch.save({"x": torch.zeros(1 << 18)}, "/dev/full")
    assert storage_fault(caught.value) == "No space left on device"


def test_safetensors_on_a_full_disk_is_understood():
    error = RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")
    assert storage_fault(error) == "No space left on device"


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), ValueError("x"), ConfigError("x")])
def test_other_errors_pass_as_they_are(tmp_path, error):
    assert storage_fault(error) == ""
    with pytest.raises(type(error)) as caught, Store(tmp_path).explained():
        raise error
    assert caught.value is error


# -- built directories


def built(tmp_path):
    (tmp_path / "model").write_bytes(b"weights")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "file").write_bytes(b"more")
    seal(tmp_path)
    return tmp_path


def test_a_sealed_directory_is_sound_until_a_byte_of_it_changes(tmp_path):
    directory = built(tmp_path)
    assert broken_seal(directory) == ""
    (directory / "deep" / "file").write_bytes(b"mora")
    assert broken_seal(directory) == "deep/file has changed"
    (directory / "deep" / "file").unlink()
    assert broken_seal(directory) == "deep/file has changed"


@pytest.mark.parametrize("content", ["{", "null", json.dumps(["x"]), json.dumps({"model": 3})])
def test_a_damaged_seal_vouches_for_nothing(tmp_path, content):
    directory = built(tmp_path)
    (directory / "rcray-seal.json").write_text(content)
    assert broken_seal(directory)


def test_nothing_is_said_of_a_directory_that_nobody_sealed(tmp_path):
    assert broken_seal(tmp_path) == broken_seal(tmp_path / "none") == ""
