"""`rcray doctor`: what this machine offers, what is wrong with it, and how to fix that. Nothing is started or left."""

import os
import platform
import shutil
import socket
import sys
import tempfile
import textwrap
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import rcray
from rcray.errors import RcrayError
from rcray.extras import installed_extras
from rcray.secrets import redact
from rcray.store import Store

Health = Literal["ok", "warning", "broken"]

GIB = 2**30
WIDTH = 120
HUB_SECONDS = 4.0  # for an answer of the hub, of a Ray head: names that do not resolve hang longer than connections
MLFLOW_SECONDS = 6.0  # a little more than asking a server takes
DISK_BROKEN, DISK_WARNING = 1 * GIB, 20 * GIB  # a quickstart; a 7B model with its caches
SHM_WARNING = 2 * GIB  # below this Ray keeps its objects on disk
OPEN_FILES_WARNING = 4096
LONGEST_RAY_TMP = 40  # Ray's sockets add 67 characters, and the kernel takes 107
HUB = "https://huggingface.co"
_INSTALL = "pip install -U 'rcray[all]'; in a clone: pip install -c constraints.txt -e '.[all]'"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    name: str
    state: Health
    detail: str
    fix: str = ""

    def __post_init__(self) -> None:
        if self.state == "ok":
            object.__setattr__(self, "fix", "")


def examine(store: Path, tracking_uri: str | None = None) -> list[Finding]:
    """Every check in turn; one that fails by itself is a finding, not a crash."""
    checks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("python", check_python),
        ("packages", check_packages),
        ("extras", check_extras),
        ("devices", check_devices),
        ("disk", lambda: check_disk(store)),
        ("store", lambda: check_store(store)),
        ("ray", check_ray),
        ("mlflow", lambda: check_mlflow(store, tracking_uri)),
        ("hub", check_hub),
    ]
    findings: list[Finding] = []
    for name, check in checks:
        try:
            findings.extend(check())
        except Exception as error:  # whatever a broken installation raises
            reason = redact(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
            findings.append(Finding(name, "broken", reason, f"install again: {_INSTALL}"))
    return findings


def is_broken(findings: Sequence[Finding]) -> bool:
    """Whether something must be fixed before anything can run."""
    return any(finding.state == "broken" for finding in findings)


def report_of(findings: Sequence[Finding]) -> str:
    """One line each, the fix under what needs one, and the sum of it."""
    lines = []
    for finding in findings:
        start = f"{finding.state:8} {finding.name:10} "
        for text, first in ((finding.detail, start), (finding.fix and f"fix: {finding.fix}", " " * len(start))):
            lines += textwrap.wrap(text, WIDTH, initial_indent=first, subsequent_indent=" " * len(start))
    broken, warnings = (sum(finding.state == state for finding in findings) for state in ("broken", "warning"))
    last = "all is well" if not broken + warnings else f"{broken} broken, {warnings} to know about"
    return "\n".join([*lines, last])


def check_python() -> Iterator[Finding]:
    """The interpreter, and whether it is the one rcray was made for."""
    detail = f"rcray {rcray.__version__} on Python {platform.python_version()}, {platform.platform()}"
    recent = sys.version_info >= (3, 11)
    yield Finding("python", "ok" if recent else "broken", detail, "use Python 3.11 or newer")


def check_packages() -> Iterator[Finding]:
    """Installed versions against those the package asks for, with the extras that are installed."""
    from packaging.requirements import Requirement

    extras = ["", *(extra for extra, modules in installed_extras().items() if not modules)]
    versions, wrong = [], []
    for line in metadata.requires("rcray") or []:
        wanted = Requirement(line)
        if wanted.name == "rcray":  # one extra brings another
            continue
        if wanted.marker is not None and not any(wanted.marker.evaluate({"extra": extra}) for extra in extras):
            continue
        try:
            version = metadata.version(wanted.name)
        except metadata.PackageNotFoundError:
            wrong.append(f"{wanted.name} is missing")
            continue
        versions.append(f"{wanted.name} {version}")
        if not wanted.specifier.contains(version, prereleases=True):
            wrong.append(f"{wanted.name} {version} is not {wanted.specifier}")
    if wrong:
        yield Finding("packages", "broken", "; ".join(wrong), _INSTALL)
    else:
        yield Finding("packages", "ok", ", ".join(versions))


def check_extras() -> Iterator[Finding]:
    """Which extras of the package are installed; those that are not are the user's choice."""
    absent = installed_extras()
    lacking = [f"{extra} ({', '.join(modules)})" for extra, modules in absent.items() if modules]
    there = [extra for extra, modules in absent.items() if not modules]
    detail = f"installed: {', '.join(there) or 'none, the core alone'}"
    yield Finding("extras", "ok", detail + (f"; not installed: {', '.join(lacking)}" if lacking else ""))


def check_devices() -> Iterator[Finding]:
    """What a cell could run on."""
    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB
    yield Finding("cpu", "ok", f"{cores} cores, {memory:.1f} GiB of memory")
    if torch.cuda.is_available():
        yield from _check_cards(torch.cuda.device_count())
    elif Path("/dev/nvidia0").exists() or Path("/proc/driver/nvidia/version").exists():
        from rcray.models.device import why_no_gpu

        reason, fix = why_no_gpu() or ("", "")
        yield Finding("gpu", "broken", f"there is an NVIDIA device, and no GPU can be used: {reason}", fix)
    else:
        yield Finding("gpu", "ok", "none: the embedded models run on CPUs, everything larger wants one")


def _check_cards(count: int) -> Iterator[Finding]:
    """Each card is tried, then two of them together."""
    from rcray.models.cards import try_card, try_pair

    tried = [(f"gpu {i}", try_card(i)) for i in range(count)]
    if count > 1:
        tried.append(("gpus", try_pair(0, 1)))
    for name, card in tried:
        if not card.problems:
            yield Finding(name, "ok", card.detail)
        for problem, fix in card.problems:
            yield Finding(name, "broken", f"{card.detail}; {problem}", fix)


def check_disk(store: Path) -> Iterator[Finding]:
    """Room where the store is or will be."""
    place = _existing(store)
    free = shutil.disk_usage(place).free
    state: Health = "broken" if free < DISK_BROKEN else "warning" if free < DISK_WARNING else "ok"
    fix = "make room, or give a --store on another disk; a 7B model with its caches takes 20 GiB and more"
    yield Finding("disk", state, f"{free / GIB:.1f} GiB free under {place}", fix)


def check_store(store: Path) -> Iterator[Finding]:
    """Whether the store can be written and locked; one that is not there is not made."""
    from filelock import FileLock

    root = Store.at(store).root
    place = _existing(store)
    try:
        if not place.is_dir():
            raise NotADirectoryError(0, f"{place} is not a directory")
        with tempfile.TemporaryDirectory(dir=place, prefix=".doctor-") as folder:
            (Path(folder) / "file").write_bytes(b"x")
            with FileLock(Path(folder) / "lock", timeout=5):
                pass
    except (OSError, NotImplementedError) as error:
        reason = getattr(error, "strerror", None) or error
        yield Finding("store", "broken", f"{root}: cannot be written: {reason}", "give another --store, or RCRAY_STORE")
        return
    yield Finding("store", "ok", f"{root} can be written" + ("" if place == root else " (made when it is needed)"))


def check_ray() -> Iterator[Finding]:
    """The cluster named by RAY_ADDRESS, or what a local one needs; none is started."""
    if "ray" in installed_extras()["sweep"]:
        yield Finding("ray", "warning", "not installed: nothing can be trained here", "pip install 'rcray[sweep]'")
        return
    import ray

    if address := os.environ.get("RAY_ADDRESS"):
        problem = _cluster_problem(address)
        detail = f"{ray.__version__}, cluster at {redact(address)}"
        fix = "start it (`ray start --head`), correct RAY_ADDRESS, or unset it for a cluster of this machine alone"
        yield Finding("ray", "broken" if problem else "ok", detail + (f": {problem}" if problem else ""), fix)
        return
    troubles, fixes = [], []
    tmp = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
    if not (Path(tmp).is_dir() and os.access(tmp, os.W_OK)):
        yield Finding("ray", "broken", f"{ray.__version__}: {tmp} cannot be written", "set RAY_TMPDIR to a directory")
        return
    if len(tmp) > LONGEST_RAY_TMP:
        troubles.append(f"{tmp} is too long a path for Ray's sockets")
        fixes.append("set RAY_TMPDIR to a short one, as /tmp/ray")
    shm = Path("/dev/shm")
    if shm.is_dir() and shutil.disk_usage(shm).total < SHM_WARNING:
        troubles.append(f"/dev/shm has {shutil.disk_usage(shm).total / GIB:.1f} GiB, objects go to disk")
        fixes.append("start the container with --shm-size=4g")
    if (limit := _open_files()) < OPEN_FILES_WARNING:
        troubles.append(f"only {limit} files may be open at once")
        fixes.append("ulimit -n 65536")
    detail = f"{ray.__version__}, a cluster of this machine is started when it is needed"
    if troubles:
        yield Finding("ray", "warning", "; ".join([detail, *troubles]), "; ".join(fixes))
    else:
        yield Finding("ray", "ok", detail)


def check_mlflow(store: Path, tracking_uri: str | None) -> Iterator[Finding]:
    """Where runs would be tracked to, and whether somebody is there."""
    if installed_extras()["track"]:
        yield Finding("mlflow", "warning", "not installed: --no-tracking is needed", "pip install 'rcray[track]'")
        return
    from rcray.track.address import Address, tracking_address, why_unreachable

    version = metadata.version("mlflow")
    try:
        address = tracking_address(tracking_uri) if tracking_uri else Address(Store.at(store).default_tracking_uri)
        if address.sqlite_file is not None and address.sqlite_file.exists():
            tracking_address(address.uri)  # is it a database?
        problem = _within(MLFLOW_SECONDS, lambda: why_unreachable(address))
    except RcrayError as error:
        yield Finding("mlflow", "broken", redact(f"{version}: {error.message}"), error.fix or "")
        return
    if problem:
        detail = f"{version}, {address.shown} does not answer ({problem})"
        yield Finding("mlflow", "warning", detail, "start it; runs go on without, and `rcray sync` delivers later")
    else:
        yield Finding("mlflow", "ok", f"{version}, tracking to {address.shown}")


def check_hub() -> Iterator[Finding]:
    """Whether models and datasets can be downloaded; the embedded ones need no hub."""
    endpoint = (os.environ.get("HF_ENDPOINT") or HUB).rstrip("/")
    without = "embedded models, local files and what is cached work without it"
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        yield Finding("hub", "warning", f"switched off by HF_HUB_OFFLINE; {without}", "unset HF_HUB_OFFLINE")
        return
    problem = _within(HUB_SECONDS, lambda: _ask(endpoint))
    if problem:
        fix = "check the network and its proxy (HTTPS_PROXY), or set HF_ENDPOINT to a mirror; offline: HF_HUB_OFFLINE=1"
        yield Finding("hub", "warning", redact(f"{endpoint} is not reachable ({problem}); {without}"), fix)
    else:
        token = "with" if os.environ.get("HF_TOKEN") else "without"
        yield Finding("hub", "ok", redact(f"{endpoint} answers; {token} a token (HF_TOKEN)"))


def _ask(url: str) -> str | None:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=HUB_SECONDS):
            return None
    except urllib.error.HTTPError as error:
        return f"HTTP {error.code}" if error.code >= 500 else None  # it is there, whatever it thinks of us
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", error))


def _cluster_problem(address: str) -> str | None:
    """Whether somebody listens at a cluster's address; `auto` and `local` name none."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return None if address in ("auto", "local") else "not HOST:PORT"

    def connect() -> str | None:
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=HUB_SECONDS):
                return None
        except (OSError, OverflowError) as error:
            return str(getattr(error, "strerror", None) or error)

    return _within(HUB_SECONDS, connect)


def _within(seconds: float, ask: Callable[[], str | None]) -> str | None:
    """The answer, or that there was none in time: resolving a name has no timeout of its own."""
    answer: list[Any] = []

    def run() -> None:
        try:
            answer.append(ask())
        except RcrayError as error:
            answer.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if not answer:
        return f"no answer within {seconds:g} s"
    if isinstance(answer[0], RcrayError):
        raise answer[0]
    return answer[0]


def _existing(path: Path) -> Path:
    """The path, or the nearest of its parents that is there."""
    place = Store.at(path).root
    while not place.exists() and place != place.parent:
        place = place.parent
    return place


def _open_files() -> int:
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else sys.maxsize
