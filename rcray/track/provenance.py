"""Where a result comes from: versions, git state, machine. No environment variable is ever recorded."""

import platform
import subprocess
from importlib import metadata

import rcray

_PACKAGES = ("torch", "transformers", "peft", "ray", "mlflow")


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
