"""Where MLflow is: a tracking URI, checked before anything starts, and shown without its password."""

import base64
import http.client
import os
import sqlite3
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from rcray.errors import ConfigError, did_you_mean
from rcray.secrets import redact

SERVERS = ("http", "https", "databricks")
DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
_OPTION = "--tracking-uri"
_EXAMPLES = "http://HOST:5000, or sqlite:////absolute/path/mlflow.db"
_ANSWER_SECONDS = 5


@dataclass(frozen=True)
class Address:
    """A checked tracking URI, without credentials where MLflow can take them from the environment instead."""

    uri: str

    @property
    def shown(self) -> str:
        """For screens and files."""
        return redact(self.uri)

    @property
    def is_server(self) -> bool:
        """Whether somebody else keeps the database."""
        return _kind(self.uri) in SERVERS

    @property
    def sqlite_file(self) -> Path | None:
        """The database file, for SQLite."""
        return Path(self.uri.removeprefix("sqlite:///")) if self.uri.startswith("sqlite:") else None


def tracking_address(uri: str) -> Address:
    """Checks a URI. The user and password of an HTTP address move into MLflow's own environment variables."""
    kind = _kind(uri)
    if kind not in (*SERVERS, *DATABASES):
        if "://" in uri and kind != "file":
            raise ConfigError(
                f"{_OPTION} {redact(uri)!r}: unknown kind {kind!r}{did_you_mean(kind, (*SERVERS, *DATABASES))}",
                fix=f"for example {_EXAMPLES}",
            )
        raise ConfigError(
            f"{_OPTION} {redact(uri)!r}: a directory cannot be tracked into; MLflow keeps runs in a database",
            fix=f"give {_EXAMPLES}; or leave it out for a database in the store",
        )
    if kind == "sqlite":
        return Address(_absolute_sqlite(uri))
    if kind in ("http", "https"):
        return Address(_without_credentials(uri))
    return Address(uri)


def _kind(uri: str) -> str:
    return uri.partition(":")[0].partition("+")[0].lower() if ":" in uri else uri if uri == "databricks" else ""


def _absolute_sqlite(uri: str) -> str:
    """Processes with another working directory must mean the same file."""
    name = uri.removeprefix("sqlite:///")
    if not uri.startswith("sqlite:///") or not name or name == ":memory:":
        raise ConfigError(
            f"{_OPTION} {uri!r}: names no file", fix="three slashes and a path: sqlite:////absolute/path/mlflow.db"
        )
    file = Path(name).expanduser().resolve()
    if not file.parent.is_dir():
        raise ConfigError(f"{_OPTION} {uri!r}: no such directory: {file.parent}", fix="make it, or give another path")
    if file.exists() and not _is_database(file):
        raise ConfigError(f"{_OPTION} {uri!r}: {file} is not an SQLite database", fix="give another path")
    return f"sqlite:///{file}"


def _is_database(file: Path) -> bool:
    try:
        with sqlite3.connect(f"file:{file}?mode=ro", uri=True) as connection:
            connection.execute("select count(*) from sqlite_master").fetchone()
    except sqlite3.OperationalError as error:
        return "locked" in str(error) or "busy" in str(error)  # somebody writes to it: a database it is
    except sqlite3.DatabaseError:
        return False
    return True


def _without_credentials(uri: str) -> str:
    parts = urlsplit(uri)
    try:
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"{_OPTION} {redact(uri)!r}: {error}", fix=f"for example {_EXAMPLES}") from None
    if not host:
        raise ConfigError(f"{_OPTION} {redact(uri)!r}: names no host", fix=f"for example {_EXAMPLES}")
    if parts.username:
        os.environ["MLFLOW_TRACKING_USERNAME"] = unquote(parts.username)
        os.environ["MLFLOW_TRACKING_PASSWORD"] = unquote(parts.password or "")
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])).rstrip("/")


def why_unreachable(address: Address) -> str | None:
    """Asks a server whether it is there: None if it is, else why not.

    Raises:
        ConfigError: it answers, but refuses us or is something else: waiting would not help.
    """
    special = any(os.environ.get(name) for name in ("MLFLOW_TRACKING_AUTH", "MLFLOW_TRACKING_AWS_SIGV4"))
    if not address.uri.startswith("http") or special:
        return None
    request = urllib.request.Request(f"{address.uri}/api/2.0/mlflow/experiments/search?max_results=1")
    # Unredirected: the host that a server points to is not the one that was given the secret.
    if token := os.environ.get("MLFLOW_TRACKING_TOKEN"):
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    elif user := os.environ.get("MLFLOW_TRACKING_USERNAME"):
        both = f"{user}:{os.environ.get('MLFLOW_TRACKING_PASSWORD', '')}"
        request.add_unredirected_header("Authorization", "Basic " + base64.b64encode(both.encode()).decode())
    try:
        with urllib.request.urlopen(request, timeout=_ANSWER_SECONDS):
            return None
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            raise ConfigError(
                f"{_OPTION} {address.shown}: refuses us (HTTP {error.code})",
                fix="set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN",
            ) from None
        if error.code == 404:
            raise _no_server(address) from None
        return f"HTTP {error.code}"
    except OSError as error:
        return redact(str(getattr(error, "reason", error)))
    except http.client.HTTPException:  # after OSError, which a server that hangs up is too: this one speaks no HTTP
        raise _no_server(address) from None


def _no_server(address: Address) -> ConfigError:
    return ConfigError(
        f"{_OPTION} {address.shown}: answers, but is not an MLflow server", fix="check host, port and path"
    )
