"""Secrets of the environment and of addresses reach nothing that is written or shown."""

import json
import logging
import os
import sqlite3
import sys

import pytest

from rcray import cli
from rcray.errors import ConfigError
from rcray.records.ledger import write_ledger
from rcray.secrets import redact, redact_content, redact_logs
from rcray.store import Store
from rcray.sweep.ledger import build_ledger
from rcray.track.address import tracking_address
from rcray.track.provenance import environment
from rcray.train.failure import record_failure
from tests.track.stored_runs import finish, make_cell, set_status, train_to

SECRETS = {
    "OPENAI_API_KEY": "sk-proj-0123456789abcdefXYZ",
    "MLFLOW_TRACKING_PASSWORD": "correct horse/battery",
    "HF_TOKEN": "hf_abcdefghijklmnopqrst",
    "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI/K7MDENG",
    "MY_SERVICE_TOKEN": "plainword-77",
}


@pytest.fixture
def secrets(monkeypatch):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "somebody")
    return SECRETS


def leaks(content: bytes) -> list[str]:
    return [name for name, value in SECRETS.items() if value.encode() in content]


def test_values_of_the_environment_are_masked(secrets):
    for name, value in secrets.items():
        assert value not in redact(f"failed with {value}!"), name
    assert redact("failed with plainword-77!") == "failed with ***!"


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("postgresql://me:pw@db/mlflow", "postgresql://***@db/mlflow"),
        ("http://me:p@ss@host:5000/x is away", "http://***@host:5000/x is away"),
        ("git+https://tok3n@github.com/a/b", "git+https://***@github.com/a/b"),
        ("GET /x?token=abc&y=1", "GET /x?token=***&y=1"),
        ("{'Authorization': 'Bearer abc.def'}", "{'Authorization': 'Bearer ***'}"),
        ("key sk-aaaaaaaaaaaaaaaaaaaa.", "key ***."),
        ("http://127.0.0.1:5000/#/experiments a@b.c", "http://127.0.0.1:5000/#/experiments a@b.c"),
        ("sqlite:////data/mlflow.db", "sqlite:////data/mlflow.db"),
    ],
)
def test_secrets_by_their_shape(text, safe):
    assert redact(text) == safe


def test_innocent_settings_stay(monkeypatch):
    """Short values, and variables that only sound like secrets, would mask half of every text."""
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    monkeypatch.setenv("GIT_AUTHOR_NAME", "synthetic")
    monkeypatch.setenv("MONKEY_BUSINESS", "tiny-neox")
    text = "token false synthetic tiny-neox"
    assert redact(text) == text


def test_nested_content(secrets):
    assert redact_content({"a": ["x plainword-77", 1, None], "plainword-77": {"b": True}}) == {
        "a": ["x ***", 1, None],
        "***": {"b": True},
    }


def test_logs_of_every_library(secrets, capsys):
    before = logging.getLogRecordFactory()
    stream = logging.StreamHandler(sys.stderr)
    logger = logging.getLogger("somebody.elses")
    logger.addHandler(stream)
    try:
        redact_logs()
        redact_logs()
        logger.warning("retrying %s with %s", "http://me:pw@host/", secrets["OPENAI_API_KEY"])
        try:
            raise RuntimeError("plainword-77 was refused")
        except RuntimeError:
            logger.exception("it failed")
    finally:
        logging.setLogRecordFactory(before)
        logger.removeHandler(stream)
    shown = capsys.readouterr().err
    assert "retrying http://***@host/ with ***" in shown
    assert "RuntimeError: *** was refused" in shown and "plainword" not in shown


def test_the_environment_freeze_has_no_variable_in_it(secrets):
    content = json.dumps(environment()).encode()
    assert b"torch==" in content
    assert leaks(content) == []
    assert b"somebody" not in content


def test_status_and_ledger(secrets, tmp_path):
    store = Store.open(tmp_path / "store")
    cell = make_cell()
    train_to(store, cell, 5)
    record_failure(store.run(cell.run_id), RuntimeError("401 for plainword-77 at http://me:pw@host/"))
    assert "401 for *** at http://***@host/" in store.run(cell.run_id).status.read_text()
    set_status(store, cell, "failed", error="raw plainword-77")  # by an older version
    write_ledger(tmp_path, build_ledger([cell], store, stopped={}))
    assert leaks((tmp_path / "ledger.json").read_bytes()) == []


def test_http_credentials_move_to_the_environment(monkeypatch):
    for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"):
        monkeypatch.setenv(name, "before")
    address = tracking_address("https://me:p%40ss%2Fword@host:8443/mlflow/")
    assert address.uri == "https://host:8443/mlflow"
    assert (os.environ["MLFLOW_TRACKING_USERNAME"], os.environ["MLFLOW_TRACKING_PASSWORD"]) == ("me", "p@ss/word")
    assert tracking_address("postgresql://me:pw@db/x").shown == "postgresql://***@db/x"


def test_a_refused_address_is_shown_without_its_password(monkeypatch, capsys, tmp_path):
    with pytest.raises(ConfigError, match=r"htp://\*\*\*@host.*did you mean 'http'"):
        tracking_address("htp://me:pw@host")
    (tmp_path / "x.yaml").write_text("name: x\n")
    arguments = ["sweep", "x.yaml", "--store", "store", "--tracking-uri", "htp://me:topsecret@host"]
    monkeypatch.setattr(sys, "argv", ["rcray", *arguments])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    shown = capsys.readouterr()
    assert ended.value.code == 2
    assert "***@host" in shown.err and "topsecret" not in shown.out + shown.err


def test_nothing_in_mlflow_has_a_secret(secrets, tmp_path):
    """A cell whose error, settings and files are full of secrets, delivered to a real database."""
    from rcray.sync import delivery_to
    from rcray.track.address import Address
    from rcray.track.book import Book
    from rcray.track.delivery import DeliveryPlan

    store = Store.open(tmp_path / "store")
    name = f"data {' '.join(SECRETS.values())}"
    parameters = {"x": name, "y": "http://me:topsecret@host"}
    bad = make_cell({"name": "os.path:join", "params": parameters})
    good = make_cell("cpo")
    finish(store, good)
    train_to(store, bad, 5)
    set_status(store, bad, "failed", error=f"raw {' '.join(SECRETS.values())} https://me:topsecret@host/")
    (store.run(bad.run_id).path / "error.log").write_text(f"Traceback ... {' '.join(SECRETS.values())}")
    folder = store.experiment("small")
    folder.mkdir(parents=True)
    (folder / "report.html").write_text(f"<p>{SECRETS['MY_SERVICE_TOKEN']} http://me:topsecret@host</p>")
    uri = store.default_tracking_uri
    Book(store, "small").enter([good, bad], "with http://me:topsecret@host", uri)
    plan = DeliveryPlan("small", "with http://me:topsecret@host", [good, bad], started_here=[bad.run_id])
    delivery = delivery_to(Address(uri), store, plan)
    delivery.deliver(final=True)
    delivery.finish("FAILED", [folder / "report.html"], f"1 failed {SECRETS['HF_TOKEN']}")
    assert delivery.problems == {}

    text = "\n".join(sqlite3.connect(store.root / "mlflow.db").iterdump()).encode()
    assert b"rcray.error" in text and b"objective.params.x" in text and b"1 failed ***" in text
    places = {"the database": text, "tracking.jsonl's ids": b""}
    for path in (store.root / "mlartifacts").rglob("*"):
        if path.is_file():
            places[path.name] = path.read_bytes()
    assert {"error.log", "config.yaml", "status.json", "report.html", "environment.json"} <= set(places)
    for place, content in places.items():
        assert leaks(content) == [], place
        assert b"topsecret" not in content, place
