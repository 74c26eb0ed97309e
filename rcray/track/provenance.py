"""Where a result comes from: versions, git state, machine. No environment variable is ever recorded."""

import json
import platform
import subprocess
from importlib import metadata
from typing import Any

import rcray
from rcray.files import recover_json, write_json
from rcray.secrets import redact, redact_content
from rcray.store import RunDir

_PACKAGES = ("torch", "transformers", "peft", "ray", "mlflow")
UNKNOWN = "unknown"
FILE = "environment.json"


def provenance() -> dict[str, str]:
    """Flat facts for tags."""
    facts = {"version": rcray.__version__, "python": platform.python_version(), "git": git_state()}
    for package in _PACKAGES:
        try:
            facts[f"{package}_version"] = metadata.version(package)
        except metadata.PackageNotFoundError:
            facts[f"{package}_version"] = "absent"
    return facts


def git_state() -> str:
    """Commit of the working directory, with `+changes` where files differ; `none` outside a repository."""
    try:
        commit = _git("rev-parse", "--short=12", "HEAD")
        return commit + ("+changes" if _git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return "none"


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()


def freeze() -> list[str]:
    """Every installed distribution, as pip would name it."""
    lines = set()
    for package in metadata.distributions():
        name = package.metadata["Name"]
        origin = json.loads(package.read_text("direct_url.json") or "{}").get("url", "")
        remote = origin and not origin.startswith("file:")  # an address may carry a password; a directory is nobody's
        lines.add(redact(f"{name} @ {origin}") if remote else f"{name}=={package.version}")
    return sorted(lines, key=str.lower)


def environment() -> dict[str, Any]:
    """What this process runs on."""
    facts = {**provenance(), "platform": platform.platform(), "machine": platform.machine()}
    return redact_content({**facts, "packages": freeze()})


def record_environment(run: RunDir, facts: dict[str, Any]) -> None:
    """Notes the environment a run was started in; one that it is resumed in later is added if it differs."""
    kept = recorded(run)
    if facts not in kept:
        write_json(run.path / FILE, [*kept, facts])


def recorded(run: RunDir) -> list[dict[str, Any]]:
    """Every environment a run was started in; empty for a run that nobody noted it for."""
    return recover_json(run.path / FILE, [], "earlier environments of the run are forgotten")


def recorded_tags(run: RunDir) -> dict[str, str]:
    """Git state and versions of a run, for tags; several where it was resumed under others."""
    environments = recorded(run)
    names = ("version", "git", "python", *(f"{package}_version" for package in _PACKAGES))
    values = {name: ", ".join(dict.fromkeys(str(entry.get(name, UNKNOWN)) for entry in environments)) for name in names}
    return {f"rcray.{name}": value or UNKNOWN for name, value in values.items()}
