"""`rcray submit`: a sweep as a Ray job on a running cluster, followed from here.

The job runs on the cluster and does not need this process: when the connection drops, following picks up where it
left off; after Ctrl-C the same command follows the same job again. A finished job is submitted anew, and its sweep
continues whatever is unfinished.
"""

import os
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rcray.config import content_key
from rcray.errors import EXIT_FAILED, EXIT_INTERRUPTED, ConfigError, RcrayError
from rcray.secrets import is_secret_name, redact

UPLOAD_LIMIT = 100 * 2**20  # Ray refuses more
#: Not needed to run, or large, or private. What .gitignore names is left out by Ray itself.
NOT_UPLOADED = (
    *(".git/", ".venv/", "rcray-store/", "tests/", "docs/", "benchmarks/", "__pycache__/", ".env"),
    *(".mypy_cache/", ".ruff_cache/", ".pytest_cache/", ".hypothesis/"),  # `make test` leaves these
)
_POLL_SECONDS = 1.0
_GIVE_UP_SECONDS = 900.0  # without a word from the cluster


@dataclass(frozen=True)
class Submission:
    """What to run, and with what around it."""

    name: str
    command: Sequence[str]
    working_dir: Path
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def entrypoint(self) -> str:
        """The job's shell command: the uploaded package, whatever is installed on the cluster."""
        return shlex.join(["python", "-m", "rcray", *self.command])

    @property
    def prefix(self) -> str:
        """What the ids of all jobs with this command start with."""
        return f"rcray-{self.name}-{content_key(self.entrypoint, 8)}"

    @property
    def runtime_env(self) -> dict[str, Any]:
        """The directory that is uploaded, what of it is not, and plain environment variables."""
        return {
            "working_dir": str(self.working_dir),
            "excludes": list(NOT_UPLOADED),
            "env_vars": {"RAY_USAGE_STATS_ENABLED": "0", "PYTHONUNBUFFERED": "1", "COLUMNS": "120", **self.env},
        }


def parse_env(items: Sequence[str]) -> dict[str, str]:
    """`NAME=VALUE` items; what looks like a secret is refused, because a job's environment is shown to everybody."""
    variables = {}
    for item in items:
        name, sign, value = item.partition("=")
        if not sign or not name.isidentifier():
            raise ConfigError(f"--env {item!r}: expected NAME=VALUE")
        if is_secret_name(name) or redact(value) != value:
            raise ConfigError(
                f"--env {name}: a job's environment stands in the cluster's dashboard and logs, and this looks secret",
                fix="set it on the nodes, for example in cluster.yaml's setup commands from a secret store",
            )
        variables[name] = value
    return variables


def file_in_job(file: Path, working_dir: Path) -> str:
    """The experiment's path as the job sees it."""
    resolved, root = file.resolve(), working_dir.resolve()
    if not resolved.is_relative_to(root):
        raise ConfigError(
            f"{file}: lies outside {root}, which is what is uploaded",
            fix="run `rcray submit` from the project's directory, or give --working-dir",
        )
    return resolved.relative_to(root).as_posix()


def check_size(working_dir: Path) -> None:
    """Refuses, before an upload that Ray would refuse after it, and names the largest entries."""
    sizes: dict[str, int] = {}
    kept = _not_ignored(working_dir)
    for entry in working_dir.iterdir():
        if f"{entry.name}/" in NOT_UPLOADED or entry.name in NOT_UPLOADED or entry.is_symlink():
            continue
        files = entry.rglob("*") if entry.is_dir() else [entry]
        plain = [path for path in files if path.is_file() and not path.is_symlink() and (kept is None or path in kept)]
        sizes[entry.name] = sum(path.stat().st_size for path in plain)
    total = sum(sizes.values())
    if total > UPLOAD_LIMIT:
        largest = sorted(sizes.items(), key=lambda item: -item[1])[:5]
        listed = ", ".join(f"{name} {size / 2**20:.0f} MiB" for name, size in largest)
        raise ConfigError(
            f"{working_dir}: {total / 2**20:.0f} MiB to upload, more than Ray takes "
            f"({UPLOAD_LIMIT / 2**20:.0f} MiB); the largest: {listed}",
            fix="name them in .gitignore or .rayignore, or keep data and models outside of the project",
        )


def _not_ignored(folder: Path) -> set[Path] | None:
    """The files that neither .gitignore nor .rayignore names, as Ray leaves those out; None where there is no git.

    An empty repository beside the folder makes git read both, whether or not the folder is in one of its own.
    """
    rays = folder / ".rayignore"
    with tempfile.TemporaryDirectory() as aside:
        listing = ["ls-files", "-z", "--others", "--exclude-per-directory=.gitignore"]
        listing += [f"--exclude-from={rays.resolve()}"] if rays.is_file() else []
        try:
            subprocess.run(["git", "init", "--quiet", aside], check=True, capture_output=True)
            where = [f"--git-dir={aside}/.git", f"--work-tree={folder.resolve()}"]
            done = subprocess.run(["git", *where, *listing], check=True, capture_output=True, text=True, cwd=folder)
        except (OSError, subprocess.SubprocessError):
            return None
    return {folder / name for name in done.stdout.split("\0") if name}


def submit(submission: Submission, address: str, *, follow_log: bool, write: Callable[[str], Any]) -> int:
    """Submits or finds the job, follows it, and returns the exit code of its command."""
    _use_token()
    check_size(submission.working_dir)
    client = job_client(address)
    job = running_job(client, submission)
    if job:
        write(f"following {job}, which is already running\n")
    else:
        names = [job.submission_id or "" for job in client.list_jobs()]
        before = [name.rpartition("-")[2] for name in names if name.startswith(submission.prefix)]
        number = 1 + max((int(end) for end in before if end.isdecimal()), default=0)  # some may have been deleted
        job = client.submit_job(
            entrypoint=submission.entrypoint,
            submission_id=f"{submission.prefix}-{number}",
            runtime_env=submission.runtime_env,
            metadata={"rcray": submission.name},
        )
        write(f"submitted {job}: {submission.entrypoint}\n")
    if not follow_log:
        write(f"follow it with the same command, or: ray job logs --follow {job}\n")
        return 0
    try:
        return follow_job(lambda: job_client(address), job, write)
    except KeyboardInterrupt:
        write(f"\nno longer following; {job} goes on. The same command follows it again; ray job stop {job} ends it\n")
        return EXIT_INTERRUPTED


def job_client(address: str) -> Any:
    """A client of the cluster's job server."""
    from ray.exceptions import AuthenticationError
    from ray.job_submission import JobSubmissionClient

    try:
        return JobSubmissionClient(address)
    except AuthenticationError:
        raise ConfigError(
            f"the Ray cluster at {address} does not take this token, or there is none",
            fix="give the cluster's own as RAY_AUTH_TOKEN, as a file in RAY_AUTH_TOKEN_PATH, or as ~/.ray/auth_token",
        ) from None
    except (ConnectionError, RuntimeError, OSError) as error:
        raise RcrayError(
            f"no Ray cluster answers at {address}: {' '.join(str(error).split())[:300]}",
            fix="start one, forward its port with `ray dashboard cluster.yaml`, or give --address",
        ) from None


def running_job(client: Any, submission: Submission) -> str | None:
    """The job of the same command that has not ended."""
    for job in client.list_jobs():
        name = job.submission_id or ""
        if name.startswith(submission.prefix) and not job.status.is_terminal():
            return str(name)
    return None


def follow_job(client: Callable[[], Any], job: str, write: Callable[[str], Any]) -> int:
    """Writes the job's log as it grows until the job ends; a lost connection is made again."""
    shown, heard, lost, connection = 0, time.monotonic(), False, None
    while True:
        try:
            connection = connection or client()
            info = connection.get_job_info(job)
            text = connection.get_job_logs(job)
        except ConfigError:
            raise
        except (ConnectionError, RuntimeError, OSError, RcrayError) as error:
            connection = None
            if time.monotonic() - heard > _GIVE_UP_SECONDS:
                raise RcrayError(
                    f"{job}: nothing heard for {_GIVE_UP_SECONDS:.0f} s: {' '.join(str(error).split())[:200]}",
                    fix="the job may still run: the same command follows it again",
                ) from None
            if not lost:
                write("\n[connection lost; the job goes on, trying to reach it]\n")
            lost = True
            time.sleep(_POLL_SECONDS)
            continue
        if lost:
            write("[connected again]\n")
        heard, lost = time.monotonic(), False
        write(text[shown:])
        shown = max(shown, len(text))
        if info.status.is_terminal():
            return _exit_code(info, write)
        time.sleep(_POLL_SECONDS)


def _exit_code(info: Any, write: Callable[[str], Any]) -> int:
    if info.status.value == "SUCCEEDED":
        return 0
    if info.status.value == "STOPPED":
        write("\nthe job was stopped; the same command continues\n")
        return EXIT_INTERRUPTED
    if not info.driver_exit_code:
        write(f"\nthe job failed: {info.message}\n")
    return int(info.driver_exit_code or EXIT_FAILED)


def _use_token() -> None:
    """Ray's clients send their token only when told to."""
    token = os.environ.get("RAY_AUTH_TOKEN") or os.environ.get("RAY_AUTH_TOKEN_PATH")
    if token or Path("~/.ray/auth_token").expanduser().is_file():
        os.environ.setdefault("RAY_AUTH_MODE", "token")
