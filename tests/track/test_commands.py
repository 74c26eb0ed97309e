"""`rcray sync` and `rcray ui` as commands: what they refuse and what they say."""

import socket

import pytest

from rcray.store import Store
from rcray.track.book import Book
from tests.track.servers import free_port
from tests.track.stored_runs import finish, make_cell


def test_an_empty_store_has_nothing_to_sync(rcray):
    code, out, _ = rcray("sync", "--store", "store")
    assert code == 0 and "nothing was tracked here yet" in out


def test_an_unknown_experiment_is_named(rcray, tmp_path):
    Book(Store.open(tmp_path / "store"), "small").enter([make_cell()], "", "sqlite:///x.db")
    code, _, err = rcray("sync", "smal", "--store", "store")
    assert code == 2 and "'smal'" in err and "did you mean 'small'" in err


def test_a_password_that_was_not_kept_is_asked_for(rcray, tmp_path):
    store = Store.open(tmp_path / "store")
    finish(store, make_cell())
    Book(store, "small").enter([make_cell()], "", "postgresql://me:topsecret@host/db")
    code, _, err = rcray("sync", "--store", "store")
    assert code == 2 and "passwords are not kept" in err and "--tracking-uri" in err and "topsecret" not in err


def test_an_experiment_that_was_never_trained(rcray, tmp_path):
    (tmp_path / "new.yaml").write_text("name: new\n")
    code, _, err = rcray("sync", "new.yaml", "--store", "store", "--tracking-uri", "sqlite:///other.db")
    assert code == 1 and "nothing was trained yet" in err
    assert not (tmp_path / "other.db").exists()


def test_one_experiment_in_trouble_keeps_no_other_from_being_delivered(rcray, tmp_path):
    store = Store.open(tmp_path / "store")
    for name in ("first", "third"):
        Book(store, name).enter([make_cell()], "", f"sqlite:///{tmp_path}/{name}.db")
    finish(store, make_cell("cpo"))
    Book(store, "second").enter([make_cell("cpo")], "", f"sqlite:///{tmp_path}/second.db")
    code, out, err = rcray("sync", "--store", "store")
    assert code == 1 and "second: 1 cells" in out
    assert "first: nothing was trained yet" in err and "third: nothing was trained yet" in err
    assert "not delivered: first, third" in err


def test_registering_needs_a_logged_model(rcray):
    code, _, err = rcray("sync", "--store", "store", "--register", "name")
    assert code == 2 and "--log-models best" in err


@pytest.mark.parametrize("command", [("sweep", "x.yaml"), ("train", "x.yaml"), ("ui",)])
def test_a_wrong_address_is_refused_before_a_store_is_made(rcray, tmp_path, command):
    (tmp_path / "x.yaml").write_text("name: x\n")
    code, _, err = rcray(*command, "--store", "store", "--tracking-uri", "mlruns")
    assert code == 2 and "a directory cannot be tracked into" in err
    assert not (tmp_path / "store").exists()


def test_a_taken_port_is_refused(rcray):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, _, err = rcray("ui", "--store", "store", "--port", port)
    assert code == 2 and f"--port {port}" in err and "another --port" in err
    assert err.startswith("starting MLflow's server"), "nobody waits before a silent terminal"


def test_a_server_has_its_own_pages(rcray):
    code, out, _ = rcray("ui", "--store", "store", "--tracking-uri", f"http://me:topsecret@127.0.0.1:{free_port()}")
    assert code == 0 and "http://127.0.0.1" in out and "topsecret" not in out
